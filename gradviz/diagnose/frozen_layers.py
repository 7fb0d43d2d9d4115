"""Single layers that are frozen with their first random values, between layers that learn, so that gradients pass
through them. Nothing in the program shows that this is meant.

A layer that is frozen on purpose looks different: a backbone or a loss network has several layers, has loaded values,
or has no trained layer before it; an adapter reads the same input as the frozen layer; a network that takes turns is
switched on again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.copies import original
from gradviz.query.flow import leaves_of, transposed_of
from gradviz.query.ops import RANDOM_STARTS, TRANSPOSING
from gradviz.sets import contained, distinct

_STAYING = re.compile(
    r"(^|_)(fixed|frozen|random|rand|static|reservoir|rff|hash(ing)?)(_|$|\d)", re.IGNORECASE
)
_STAYING_WORD = re.compile(
    r"(?<![-\w])(fixed|frozen|random|stays?|not (to be )?(trained|learned)|untrained)(?![-\w])", re.IGNORECASE
)
_MATRIX = 2  # the fewest dimensions of a matrix


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    """The path of a layer, its leaves, the first event that switched one off, and the trained leaves before it."""

    path: str
    leaves: tuple[int, ...]
    event: int
    before: tuple[int, ...]


def frozen_layers(case: Case) -> list[FrozenLayer]:
    """The single layers that are frozen for good between layers that learn. Use `case.of(frozen_layers)`."""
    names = case.trace.parameters
    frozen = {leaf: event for leaf, event in _switched_off(case).items() if leaf in names}
    learning = {names[leaf] for leaf in case.training.trained if leaf in names}
    layers: dict[str, list[int]] = {}
    for leaf in frozen:
        layers.setdefault(_module(names[leaf]), []).append(leaf)
    frozen_names = {names[leaf] for leaf in frozen}
    found = []
    for path, leaves in layers.items():
        around = _module(path)
        if not around or not _learns_beside(around, learning) or _learns_itself(around, learning):
            continue
        if _is_all_frozen(around, frozen_names, learning):
            continue
        event = min(frozen[leaf] for leaf in leaves)
        if _is_said_to_stay(case, path, event):
            continue
        before = _learning_before(case, leaves)
        if before and all(_has_a_random_start(case, leaf, frozen[leaf]) for leaf in leaves):
            found.append(FrozenLayer(path, tuple(leaves), event, before))
    return found


def _is_said_to_stay(case: Case, path: str, event: int) -> bool:
    """Whether the name of a layer, or a comment on the line that freezes it, says that it keeps its first values."""
    site = case.place(event)
    line = case.trace.source(site.place.file)[site.place.line - 1 :][:1] if site is not None else []
    comment = "".join(line).partition("#")[2]
    return _STAYING.search(path.rpartition(".")[2]) is not None or _STAYING_WORD.search(comment) is not None


def _switched_off(case: Case) -> dict[int, int]:
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


def _learns_beside(around: str, learning: set[str]) -> bool:
    return any(name.startswith(f"{around}.") for name in learning)


def _learns_itself(around: str, learning: set[str]) -> bool:
    """Whether a module has a parameter of its own that learns, as an adapter around a frozen layer has."""
    return any(_module(name) == around for name in learning)


def _is_all_frozen(around: str, frozen: set[str], learning: set[str]) -> bool:
    """Whether a module has more frozen layers than trained layers: then the trained layers are the exception."""
    layers = [
        {_module(name) for name in names if name.startswith(f"{around}.")} for names in (frozen, learning)
    ]
    return len(layers[0]) > len(layers[1])


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


def _uses(case: Case, leaf: int) -> Iterator[int]:
    """The ops that read a matrix, directly or transposed, and that gradients flow back through."""
    received = case.trace.table(Kind.RECEIVED)["node"]
    for reader in case.downstream.readers(leaf):
        op = case.query.tensors.op(reader)
        ops = case.downstream.readers(op.outputs[0]) if op.op in TRANSPOSING and op.outputs else [reader]
        yield from (event for event in ops if contained(case.query.nodes.of_op(event), received).any())


def _is_read_by_what_learns(case: Case, tensor: int, event: int) -> bool:
    """Whether another op reads a tensor together with a trained leaf, as an adapter does, or a query beside a key."""
    for reader in case.downstream.readers(tensor):
        op = case.query.tensors.op(reader)
        if reader != event and any(
            transposed_of(case.query, other) in case.training.trained for other in op.inputs if other
        ):
            return True
    return False


def _has_a_random_start(case: Case, leaf: int, event: int) -> bool:
    """Whether only an initialiser wrote to a leaf before the first pass. The trace has no writes of a constructor, but
    the version of the leaf at `event`, where it was switched off, counts them: one write made the values."""
    tensors, first = case.query.tensors, case.trace.passes[0].first
    writes = [write for write in tensors.writes(leaf) if write < first]
    untold = tensors.version(leaf, event) - sum(write < event for write in writes)
    return (
        untold <= 1
        and original(case.query, leaf) in (0, leaf)
        and all(tensors.writer(write) in RANDOM_STARTS for write in writes)
    )
