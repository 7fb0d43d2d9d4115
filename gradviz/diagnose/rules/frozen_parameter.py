"""`frozen-parameter`: requires_grad was switched off at all leaves of a root, so that backward() fails; or at a whole
parameter group of an optimizer, for good; or at a single layer with random values, between layers that learn. Also
reported: parameters that are frozen and switched on again before any op reads them; a line that sets a misspelt
`requires_grad`, as `p.require_grad = False`, or the `requires_grad` of a module, which has none, so that nothing is
frozen.

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
trained layer before it or with an adapter beside it. A layer whose name or line has a word for frozen (`fixed`,
`frozen`, `random`, `static`, `reservoir`). A group whose `.grad` the program assigns itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, WARNING
from gradviz.diagnose.frozen_layers import FrozenLayer, frozen_layers
from gradviz.diagnose.misspelt import misspelt
from gradviz.diagnose.module_flags import module_flags
from gradviz.diagnose.rootless import Rootless, rootless
from gradviz.diagnose.rule import Found, Rule
from gradviz.events.kinds import Kind
from gradviz.sets import contained, distinct
from gradviz.words.escape import clean
from gradviz.words.numbers import few_of

_LEAST = 2  # steps
_OFF = ".requires_grad_(False)"


def _search(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.frozen:
            changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
            leaves = [changed.object(event).tensor for event in failed.frozen]
            yield Found(
                _switched_off_for(case, failed, leaves),
                _switching_on(case, failed.frozen[-1], leaves[-1]),
                (failed.frozen[0],),
                tensors=tuple(leaves),
                severity=case.severity_of(failed.failure),
            )
    yield from _groups(case)
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


def _switching_on(case: Case, event: int, leaf: int) -> str:
    """The call that switched requires_grad off, as the call that switches it on; that of the leaf if it was no call."""
    call = case.words.expression(case.site(event), 80)
    owner = call.removesuffix(_OFF)
    return f"{owner if owner != call else case.words.called(leaf)}.requires_grad_(True)  # for what is to be trained"


def _misspelt(case: Case) -> Iterator[Found]:
    """Lines that would switch requires_grad, and set another attribute."""
    first = case.trace.passes[0] if case.trace.passes and case.training.trained else None
    if first is None:
        return
    for line in case.of(misspelt):
        yield Found(
            f"{clean(line.text)} sets an attribute that PyTorch does not know and that no line of the "
            "program reads: it switches no requires_grad",
            clean(line.cure),
            (first.first,),
            site=line.site,
            number=first.number,
            severity=WARNING,
        )


def _flags(case: Case) -> Iterator[Found]:
    """Lines that would freeze a module, and set an attribute of it that PyTorch does not read."""
    first = next(iter(case.trace.passes), None)
    for flag in case.of(module_flags) if first is not None else ():
        assert first is not None
        yield Found(
            f"{clean(flag.text)} sets an attribute of a module, which PyTorch does not read: "
            f"{case.called(flag.leaves)} still require grad and are trained",
            clean(flag.cure),
            (first.first,),
            site=flag.site,
            number=first.number,
            tensors=flag.leaves,
            severity=WARNING,
        )


def _layers(case: Case) -> Iterator[Found]:
    """Single layers that are frozen between layers that learn, without a sign that this is meant."""
    for site, layers in _by_line(case).items():
        leaves = [leaf for layer in layers for leaf in layer.leaves]
        paths = few_of([clean(layer.path) for layer in layers])
        is_one, before = len(layers) == 1, layers[0].before
        they, them = ("it", "it") if is_one else ("they", "them")
        yield Found(
            f"{paths} {'is' if is_one else 'are'} frozen with the random values that {they} began with, while "
            f"{case.called(before)} before {them} learn{'s' * (len(before) == 1)}: no line switches {them} on again",
            "leave out the line, or requires_grad_(True) before the training",
            (layers[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=WARNING,
        )


def _by_line(case: Case) -> dict[int, list[FrozenLayer]]:
    found: dict[int, list[FrozenLayer]] = {}
    for layer in case.of(frozen_layers):
        found.setdefault(case.site(layer.event), []).append(layer)
    return found


def _groups(case: Case) -> Iterator[Found]:
    """Parameter groups in which no parameter requires grad at the last steps of the optimizer."""
    held, stepped = case.trace.table(Kind.HOLDS), case.training.stepped
    for optimizer in distinct(held["optimizer"]).tolist():
        event = held.object(int(held.events[held["optimizer"] == optimizer][-1]))
        steps = stepped.events[(stepped["optimizer"] == optimizer) & (stepped.events > event.index)]
        at = 0
        for group in event.groups:
            own = event.parameters[at : at + group.size]
            at += group.size
            if (
                len(steps) < _LEAST
                or not own
                or _are_given_gradients(case, own)
                or not all(_is_frozen(case, own, s) for s in steps[-_LEAST:].tolist())
            ):
                continue
            by, is_one = _freezing(case, own), len(own) == 1
            group = f" as a group of {'its' if is_one else 'their'} own" if len(event.groups) > 1 else ""
            yield Found(
                f"{case.called(own)} {'is' if is_one else 'are'} given to {clean(event.type)}{group} at "
                f"{case.at(event.index)}, but {'does' if is_one else 'do'} not require grad: "
                f"{'it is' if is_one else 'they are'} never trained",
                "requires_grad_(True)  # for what is to be trained; or leave them out of the optimizer",
                (by if by is not None else event.index, event.index),
                tensors=tuple(own),
                severity=WARNING,
            )


def _undone(case: Case) -> Iterator[Found]:
    """Lines that freeze parameters, all of which another line switches on again before any op reads them. Where some
    stay frozen, as where all but the head is to be frozen, the order is meant."""
    by_line: dict[int, list[tuple[int, int, int]]] = {}
    for leaf, off, on in _switched_off(case):
        by_line.setdefault(case.site(off), []).append((leaf, off, on))
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
                "leave out this line for what is to stay frozen, or freeze it after this line",
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


def _are_given_gradients(case: Case, leaves: Sequence[int]) -> bool:
    """Whether the program computes the gradients itself and assigns them to `.grad`: an optimizer steps by them."""
    assigned = case.trace.table(Kind.GRAD_ASSIGNED)
    return bool(contained(assigned["tensor"][assigned["grad"] > 0], leaves).any())


def _is_frozen(case: Case, leaves: Sequence[int], at: int) -> bool:
    return not any(case.query.tensors.requires_grad(leaf, at) for leaf in leaves)


def _freezing(case: Case, leaves: Sequence[int]) -> int | None:
    """The event that switched requires_grad off first; None if they never required grad."""
    changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    events = changed.events[contained(changed["tensor"], leaves)]
    return int(events[0]) if len(events) else None


RULE = Rule(
    "frozen-parameter",
    ERROR,
    "parameters that are frozen, all of a loss or of a group that an optimizer is to train",
    _search,
    follows=("stale-optimizer",),
)
