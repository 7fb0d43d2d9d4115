"""`frozen-parameter`: requires_grad was switched off at all leaves of a root, so that backward() fails; or at a whole
parameter group of an optimizer, for good; or at a layer, or a module in an optimizer, with random values between layers
that learn; or at an adapter whose elements are all 0. Also reported: a call that reads none of the parameters that an
optimizer holds, where a library froze the rest; parameters that are frozen and switched on again before any op reads
them; a line that sets a misspelt `requires_grad`, as `p.require_grad = False`, or the `requires_grad` of a module,
which has none, so that nothing is frozen.

Why it is bad: a frozen parameter never learns. If no leaf requires grad, backward() raises. If a group is frozen, its
learning rate has no effect.

Example:

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for parameter in model.parameters():
        parameter.requires_grad = False  # <- frozen-parameter
    loss = model(torch.randn(5, 3)).pow(2).mean()
    loss.backward()

Cure: leave out the line, freeze only the part that is meant, or switch requires_grad on again with
`requires_grad_(True)` before the forward.

Not reported: fine-tuning, which is a frozen part of several layers, or a frozen layer with loaded values, with no
trained layer before it or with an adapter beside it. A new head that is frozen with a body whose values are random,
too, as no checkpoint was loaded, looks like that body. A layer whose name or line has a word for frozen (`fixed`,
`frozen`, `random`, `static`, `reservoir`). A group whose `.grad` the program assigns itself.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, as_leaf, removed, typed_as
from gradviz.diagnose.rule import ERROR, WARNING, Case, Found, Rule, Site
from gradviz.diagnose.without_gradient import Rootless, rootless
from gradviz.errors import nearest
from gradviz.events.kinds import Kind, TensorMade
from gradviz.events.values import Stat
from gradviz.query.copies import LOADED, original
from gradviz.query.flow import NEAR, leaves_of, transposed_of
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.missing_gradients import Lacks
from gradviz.query.ops import PRODUCTS, RANDOM_STARTS, TRANSPOSING
from gradviz.query.pass_owners import seen_at
from gradviz.query.source_trees import trees
from gradviz.query.statements import StatementsRun
from gradviz.sets import contained, distinct, grouped
from gradviz.words.numbers import few_of

_LEAST = 2  # steps
_OFF = ".requires_grad_(False)"


@Rule(
    "frozen-parameter",
    ERROR,
    "parameters that are frozen, all of a loss or of a group that an optimizer is to train",
    follows=("stale-optimizer", "not-updated"),
)
def frozen_parameter(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.frozen:
            changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
            leaves = [changed.object(event).tensor for event in failed.frozen]
            yield Found(
                _switched_off_for(case, failed, leaves),
                _switching_on(case, failed.frozen[-1], leaves),
                (next(one for one in failed.frozen if case.site(one) == case.site(failed.frozen[-1])),),
                tensors=tuple(leaves),
                severity=case.severity_of(failed.failure),
            )
        if failed.held:
            does = "does" if len(failed.held) == 1 else "do"
            leaf = case.words.called(failed.held[0])
            yield Found(
                f"{case.called(failed.held)}, which an optimizer holds, {does} not require grad, nor does anything "
                f"else that {case.words.called(failed.root)} is computed from",
                Fix(f"{leaf}.requires_grad_()  # where it is made", as_leaf(leaf)),
                tuple(filter(None, map(case.query.tensors.maker, failed.held))),
                tensors=failed.held,
                severity=case.severity_of(failed.failure),
            )
        if failed.unread:
            behind = case.query.of(Lacks).ways(failed.root, failed.failure.event).leaves
            readers = [one for leaf in behind for one in case.downstream.readers(leaf)]
            calls = case.query.scopes.entered_at(max(one for one in readers if one < failed.failure.event))
            yield Found(
                f"{case.words.called(failed.root)} is computed from none of the parameters that an optimizer holds and "
                f"that require grad, as {case.called(failed.unread)}: this call reads only others, which are frozen",
                "call the model here so that it reads them: without a context that turns adapters off",
                (failed.failure.event,),
                site=calls[0] if calls else None,
                tensors=failed.unread,
                severity=case.severity_of(failed.failure),
            )
    yield from _groups(case)
    yield from _zeros(case)
    yield from _layers(case)
    yield from _undone(case)
    yield from _misspelt(case)
    yield from _flags(case)


def _switched_off_for(case: Case, failed: Rootless, leaves: list[int]) -> str:
    root, switched = case.words.called(failed.root), case.called(leaves)
    if failed.since:
        return (
            f"after pass {failed.since}, requires_grad is switched off for {switched}: nothing that {root} is computed "
            "from requires grad"
        )
    return f"requires_grad is switched off for all that {root} is computed from: {switched}"


def _switching_on(case: Case, event: int, leaves: list[int]) -> Fix:
    """The call that switched requires_grad off, as the call that switches it on. That of the last leaf if it was no
    call, or if it switched more leaves off than these: the others may be meant."""
    call, changed = case.words.expression(case.site(event), 80), case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    owner, leaf = call.removesuffix(_OFF), case.words.called(leaves[-1])
    if not set(changed["tensor"][changed.sites == case.site(event)].tolist()) <= set(leaves):
        root = re.split(r"[.[]", leaf)[0]
        named = f"{leaf}." if seen_at(case.query, case.site(event), root) == root else ""
        return Fix(f"{named}requires_grad_(True)  # behind this line, as all that is to be trained")
    return Fix(f"{owner if owner != call else leaf}.requires_grad_(True)  # for what is to be trained", _switched_on)


def _layers(case: Case) -> Iterator[Found]:
    """Single layers that are frozen between layers that learn, without a sign that this is meant."""
    by_line = grouped((case.site(layer.event), layer) for layer in case.of(_frozen_layers))
    for site, layers in by_line.items():
        leaves = [leaf for layer in layers for leaf in layer.leaves]
        paths = few_of([layer.path for layer in layers])
        is_one, before = len(layers) == 1, layers[0].before
        they, them = ("it", "it") if is_one else ("they", "them")
        yield Found(
            f"{paths} {'is' if is_one else 'are'} frozen with the random values that {they} began with, while "
            f"{case.called(before)} before {them} learn{'s' * (len(before) == 1)}: no line switches {them} on again",
            Fix("leave out the line, or requires_grad_(True) before the training", _switched_on),
            (layers[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=WARNING,
        )


def _zeros(case: Case) -> Iterator[Found]:
    """Matrices of 0 that are frozen before the first pass, while other parameters learn, and that ops with grad mode
    read: an adapter that was to learn changes nothing."""
    by_line: dict[int, list[int]] = {}
    off = _layers_switched_off(case) if case.training.trained else {}
    for leaf, event in off.items():
        is_matrix = leaf in case.trace.parameters and len(case.shape(leaf)) >= _MATRIX
        is_zero = is_matrix and case.trace.states.statistic(Stat.RMS, leaf, case.trace.passes[0].first) == 0
        readers = map(case.query.tensors.op, case.downstream.readers(leaf) if is_zero else ())
        if any(op.grad_enabled and op.op in PRODUCTS for op in readers):
            by_line.setdefault(case.site(event), []).append(leaf)
    for site, leaves in by_line.items():
        them = "it" if len(leaves) == 1 else "them"
        yield Found(
            f"{case.called(leaves)} {'is' if len(leaves) == 1 else 'are'} frozen with all elements 0: what is "
            f"multiplied with {them} stays 0",
            Fix("leave out the line, or requires_grad_(True) before the optimizer is made", _switched_on),
            (off[leaves[0]],),
            site=site,
            tensors=tuple(leaves),
            severity=WARNING,
        )


def _groups(case: Case) -> Iterator[Found]:
    """Parameter groups in which no parameter requires grad at the last steps of the optimizer; or, where an error ended
    the run before the first, at the last backward() and at the end."""
    held, stepped, begun = case.trace.table(Kind.HOLDS), case.training.stepped, case.trace.table(Kind.PASS_BEGAN)
    last = begun.events[case.trace.named(begun["how"], ("backward",))][-1:]
    is_ended = any(not failure.handled for failure in case.failures)
    ended = np.append(last, case.trace.count - 1)[: 2 * is_ended]
    assigned = case.trace.table(Kind.GRAD_ASSIGNED)
    given = assigned["tensor"][assigned["grad"] > 0]
    for optimizer in distinct(held["optimizer"]).tolist():
        event = held.object(int(held.events[held["optimizer"] == optimizer][-1]))
        steps = stepped.events[(stepped["optimizer"] == optimizer) & (stepped.events > event.index)]
        if not len(steps):
            steps = ended[ended > event.index]
        at = 0
        for group in event.groups:
            own = event.parameters[at : at + group.size]
            at += group.size
            if (
                len(steps) < _LEAST
                or not own
                or contained(given, own).any()  # gradients that the program computes itself
                or any(case.query.tensors.requires_grad(one, at) for one in own for at in steps[-_LEAST:].tolist())
            ):
                continue
            changed, is_one = case.trace.table(Kind.REQUIRES_GRAD_CHANGED), len(own) == 1
            by = changed.events[contained(changed["tensor"], own)].tolist()[:1]
            ever = "no longer" if contained(own, case.trace.table(Kind.ACCUMULATED)["tensor"]).any() else "never"
            group = f" as a group of {'its' if is_one else 'their'} own" if len(event.groups) > 1 else ""
            yield Found(
                f"{case.called(own)} {'is' if is_one else 'are'} given to {event.type}{group} at "
                f"{case.at(event.index)}, but {'does' if is_one else 'do'} not require grad: "
                f"{'it is' if is_one else 'they are'} {ever} trained",
                Fix(
                    "requires_grad_(True)  # for what is to be trained; or leave them out of the optimizer",
                    _switched_on,
                ),
                (*by, event.index),
                tensors=tuple(own),
                severity=WARNING,
            )


def _undone(case: Case) -> Iterator[Found]:
    """Lines that freeze parameters, all of which another line switches on again before any op reads them. Where some
    stay frozen, as where all but the head is to be frozen, the order is meant."""
    by_line = grouped((case.site(off), (leaf, off, on)) for leaf, off, on in _switched_off(case))
    for switched in by_line.values():
        leaves = tuple(dict.fromkeys(leaf for leaf, _, _ in switched))
        _, off, on = switched[0]
        events = off, on
        is_own = on >= 0 and not any(case.query.places.is_in_library(event) for event in events)
        if not is_own or any(again < 0 for _, _, again in switched) or case.at(off) == case.at(on):
            continue
        if case.training.trained.issuperset(leaves):
            is_one = len(leaves) == 1
            are = "is" if is_one else "are"
            yield Found(
                f"{case.called(leaves)}, which {are} frozen at {case.at(off)}, {are} switched on again here before any "
                f"op reads {'it' if is_one else 'them'}, and trained: the freezing has no effect",
                Fix("leave out this line for what is to stay frozen, or freeze it after this line", removed),
                (on, off),
                tensors=leaves,
                severity=WARNING,
            )


def _switched_off(case: Case) -> Iterator[tuple[int, int, int]]:
    """(leaf, off, on) for each event that freezes a parameter: that event, and the next one that switches requires_grad
    on again, or −1 if there is none or if an op reads the leaf before it."""
    changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    for leaf in filter(case.trace.parameters.get, distinct(changed["tensor"]).tolist()):
        events = changed.events[changed["tensor"] == leaf].tolist()
        readers = case.downstream.readers(leaf)
        for event, following in zip(events, [*events[1:], -1], strict=True):
            if case.query.tensors.requires_grad(leaf, event):
                continue
            is_read = any(event < reader < following for reader in readers)
            yield leaf, event, -1 if is_read else following


def _switched_on(spot: Spot) -> list[Edit]:
    """`requires_grad = True` in place of False at the line that freezes."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Assign) and source.code(statement.value) == "False":
        return [source.replaced(statement.value, "True")]
    for call in spot.calls_here("requires_grad_"):
        if call.args and source.code(call.args[0]) == "False":
            return [source.replaced(call.args[0], "True")]
    return []


# --- assignments to `requires_grad` of a module


_FLAG = "requires_grad"


def _flags(case: Case) -> Iterator[Found]:
    """Lines that would freeze a module, and set an attribute of it that PyTorch does not read: assignments of False to
    `requires_grad` of modules whose parameters all require grad at the end and are trained, as far as they are sure to
    have run."""
    run = case.query.of(StatementsRun)
    for site, statement, target in _assignments(case):
        if target.attr != _FLAG or ast.unparse(statement.value) != "False":
            continue
        paths = tuple(f"{path}." for path in run.modules(site.place.file, target.value, statement.lineno))
        leaves = tuple(leaf for leaf, name in case.trace.parameters.items() if name.startswith(paths))
        if (
            leaves
            and case.training.trained.issuperset(leaves)
            and all(case.query.tensors.requires_grad(leaf, case.trace.count - 1) for leaf in leaves)
            and run.has_run(site.place.file, statement)
        ):
            yield _without_effect(
                case,
                site,
                f"{ast.unparse(statement)} sets an attribute of a module, which PyTorch does not read: "
                f"{case.called(leaves)} still require grad and are trained",
                f"{ast.unparse(target.value)}.requires_grad_(False)",
                leaves,
            )


def _without_effect(case: Case, site: Site, message: str, cure: str, leaves: tuple[int, ...] = ()) -> Found:
    """The finding for a line that only seems to switch requires_grad."""
    first = case.trace.passes[0]
    return Found(
        message,
        Fix(cure, typed_as(cure)),
        (first.first,),
        site=site,
        number=first.number,
        tensors=leaves,
        severity=WARNING,
    )


# --- single layers that are frozen with random values


_STAYING = re.compile(r"(^|_)(fixed|frozen|random|rand|static|reservoir|rff|hash(ing)?)(_|$|\d)", re.IGNORECASE)
_STAYING_WORD = re.compile(
    r"(?<![-\w])(fixed|frozen|random|stays?|not (to be )?(trained|learned)|untrained)(?![-\w])", re.IGNORECASE
)
_MATRIX = 2  # the fewest dimensions of a matrix


class FrozenLayer(NamedTuple):
    """The path of a layer, its leaves, the first event that switched one off, and the trained leaves before it."""

    path: str
    leaves: tuple[int, ...]
    event: int
    before: tuple[int, ...]


def _frozen_layers(case: Case) -> list[FrozenLayer]:
    """The layers, or modules of several layers, that are frozen for good between layers that learn. A module has to be
    in an optimizer, and a layer that learns behind it. Use `case.of(_frozen_layers)`."""
    names = case.trace.parameters
    frozen = {leaf: event for leaf, event in _layers_switched_off(case).items() if leaf in names}
    learning = {names[leaf] for leaf in case.training.trained if leaf in names}
    layers: dict[str, list[int]] = {}
    for path, leaves in case.query.modules.whole(frozen):
        layers.setdefault(_module(path) if path in map(names.get, leaves) else path, []).extend(leaves)
    # loaded layers may stay as they are, beside a random one that may not
    frozen_names = {names[leaf] for leaf, event in frozen.items() if _has_a_random_start(case, leaf, event)}
    found = []
    for path, leaves in layers.items():
        around = _module(path)
        if not around or not any(name.startswith(f"{around}.") for name in learning):
            continue
        if any(_module(name) == around or name.startswith(f"{path}.") for name in learning):  # an adapter
            continue
        inside = ([name for name in names if name.startswith(f"{around}.")] for names in (frozen_names, learning))
        within = [{*map(_module, names)} for names in inside]
        if len(within[0]) > len(within[1]):  # the trained layers are the exception
            continue
        event = min(frozen[leaf] for leaf in leaves)
        if _is_said_to_stay(case, path, event):
            continue
        before = _learning_before(case, leaves)
        is_single = len({_module(names[leaf]) for leaf in leaves}) == 1
        if not is_single and (not case.training.holders.keys() >= set(leaves) or not _learns_behind(case, leaves)):
            continue
        shapes = {leaf: case.query.tensors.shape(leaf) or () for leaf in leaves}
        matrices = [leaf for leaf, shape in shapes.items() if len(shape) >= _MATRIX]
        if before and all(_has_a_random_start(case, leaf, frozen[leaf]) for leaf in matrices):
            found.append(FrozenLayer(path, tuple(leaves), event, before))
    return found


def _is_said_to_stay(case: Case, path: str, event: int) -> bool:
    """Whether the name of a layer, or a comment on the line that freezes it, says that it keeps its first values."""
    site = case.place(event)
    line = case.trace.source(site.place.file)[site.place.line - 1 :][:1] if site is not None else []
    comment = "".join(line).partition("#")[2]
    return _STAYING.search(path.rpartition(".")[2]) is not None or _STAYING_WORD.search(comment) is not None


def _layers_switched_off(case: Case) -> dict[int, int]:
    """The leaves that are switched off from before the first pass to the end of the run and never got a gradient, each
    with the event that switched it off."""
    changed, trace = case.trace.table(Kind.REQUIRES_GRAD_CHANGED), case.trace
    got = trace.table(Kind.ACCUMULATED)["tensor"]
    first = trace.passes[0].first if trace.passes else 0
    found: dict[int, int] = {}
    for leaf in distinct(changed["tensor"][~contained(changed["tensor"], got)]).tolist():
        events = changed.events[changed["tensor"] == leaf].tolist()
        flags = [case.query.tensors.requires_grad(leaf, event) for event in events]
        if events[-1] < first and not any(flags):
            found[leaf] = events[0]
    return found


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _learning_before(case: Case, leaves: list[int]) -> tuple[int, ...]:
    """The trained leaves to which gradients pass through a layer. Empty if there are none, if the layer has no matrix,
    or if another layer that learns reads the same input."""
    matrix = next((leaf for leaf in leaves if len(case.query.tensors.shape(leaf) or ()) >= _MATRIX), 0)
    for event in _uses(case, matrix) if matrix else ():
        op = case.query.tensors.op(event)
        data = [t for t in op.inputs if t and t not in leaves and case.query.tensors.requires_grad(t, event)]
        before = tuple(leaf for leaf in leaves_of(case.query, *data) if leaf in case.training.trained)
        if before and not any(_is_read_by_what_learns(case, tensor, event) for tensor in data):
            return before
        break
    return ()


def _learns_behind(case: Case, leaves: list[int]) -> bool:
    """Whether an op reads a trained leaf beside what was computed from a frozen module."""
    uses = [use for use in case.downstream.readers(leaves[0]) if case.query.nodes.of_op(use)]  # no copy of it
    first = case.query.tensors.op([*uses, *case.downstream.readers(leaves[0])][0])
    results = case.downstream.results(first.outputs[0], NEAR) if first.outputs else {}
    readers = distinct(np.array([op for ops in results.values() for op in ops], np.int64)).tolist()
    return any(
        other not in results and transposed_of(case.query, other) in case.training.trained
        for reader in readers
        for other in case.downstream.inputs(reader)
        if other
    )


def _uses(case: Case, leaf: int) -> Iterator[int]:
    """The ops that read a matrix, directly or transposed, and that gradients flow back through."""
    received = case.trace.table(Kind.RECEIVED)["node"]
    for reader in case.downstream.readers(leaf):
        op = case.query.tensors.op(reader)
        ops = case.downstream.readers(op.outputs[0]) if op.op in TRANSPOSING and op.outputs else [reader]
        yield from (event for event in ops if contained(case.query.nodes.of_op(event), received).any())


def _is_read_by_what_learns(case: Case, tensor: int, event: int) -> bool:
    """Whether another op reads a tensor together with a trained leaf, as an adapter does, or a query beside a key."""
    readers = (case.query.tensors.op(one) for one in case.downstream.readers(tensor) if one != event)
    return any(transposed_of(case.query, one) in case.training.trained for op in readers for one in op.inputs if one)


def _has_a_random_start(case: Case, leaf: int, event: int) -> bool:
    """Whether only an initialiser wrote to a leaf before the first pass. The trace has no writes of a constructor, but
    the version of the leaf at `event`, where it was switched off, counts them: one write made the values."""
    tensors, first = case.query.tensors, case.trace.passes[0].first
    writes = [write for write in tensors.writes(leaf) if write < first]
    untold = tensors.version(leaf, event) - sum(write < event for write in writes)
    made = tensors.made(leaf)
    source = tensors.made(made.source) if isinstance(made, TensorMade) and made.source else None
    is_loaded = isinstance(source, TensorMade) and source.how == LOADED
    return (
        untold <= 1
        and not is_loaded
        and original(case.query, leaf) in (0, leaf)
        and all(tensors.writer(write) in RANDOM_STARTS for write in writes)
    )


# --- assignments to a misspelt `requires_grad`


_GRAD = "grad"  # what each misspelling of it still has


def _misspelt(case: Case) -> Iterator[Found]:
    """Assignments to an attribute that is called nearly `requires_grad`, and that the program never reads, as far as
    they are sure to have run."""
    nodes = [node for tree in case.query.of(trees).values() for node in nodes_of(tree)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    # `getattr` may be given a text
    read |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for site, statement, target in _assignments(case):
        # a class may have attributes of its own that are called alike
        is_own = isinstance(target.value, ast.Name) and target.value.id == "self"
        is_near = target.attr != _FLAG and _GRAD in target.attr and nearest(target.attr, [_FLAG]) != ""
        if target.attr in read or is_own or not is_near:
            continue
        if case.training.trained and case.query.of(StatementsRun).has_run(site.place.file, statement):
            yield _without_effect(
                case,
                site,
                f"{ast.unparse(statement)} sets an attribute that PyTorch does not know and that no line of the "
                "program reads: it switches no requires_grad",
                f"{ast.unparse(target.value)}.{_FLAG} = {ast.unparse(statement.value)}",
            )


def _assignments(case: Case) -> Iterator[tuple[Site, ast.Assign, ast.Attribute]]:
    """The assignments to one attribute, with their lines and their targets; none without a pass."""
    for file, tree in case.query.of(trees).items() if case.trace.passes else ():
        for node in nodes_of(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
                site = case.query.places.of_line(file, node.lineno)
                if site is not None:
                    yield site, node, target
