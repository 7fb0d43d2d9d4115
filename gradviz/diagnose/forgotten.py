"""Parts of models that were left out when the optimizer was made. This may be meant: only the last part of a model is
trained, parameters are chosen by name, or a network with loaded values stays as it is. But a part was forgotten if it
gets gradients, does not change, and comes after the trained leaves or beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gradviz.diagnose.case import Case
from gradviz.diagnose.homeless import homeless
from gradviz.events.kinds import Kind
from gradviz.query.flow import Use, groups_behind, op_of, uses
from gradviz.query.missing_gradients import Lacks
from gradviz.query.ops import JOINING, PRODUCTS
from gradviz.query.pass_owners import PassOwners
from gradviz.query.training import BY_HAND
from gradviz.query.writes import Writes
from gradviz.sets import contained

_TRAINED, _LEFT_OUT = 1, 2  # bits


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Leaves of a model that are in no optimizer. `number` is the first pass that gave them gradients, `optimizer` the
    optimizer of the other leaves, `made` the event at which it was made. `comes_after` is True if the leaves are used
    on results of the leaves that the optimizer trains."""

    leaves: tuple[int, ...]
    number: int
    optimizer: int
    made: int
    comes_after: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of some leaves in a pass, relative to the trained leaves: whether some of them, or all of them, come
    after trained leaves; whether trained leaves come after them (`before`); whether these trained leaves are in a
    product with data (`is_layer`); whether the leaves read results of trained leaves joined with data, as a critic that
    reads a state and an action (`takes_data`)."""

    some_after: bool
    all_after: bool
    before: bool
    is_layer: bool
    takes_data: bool


def forgotten(case: Case) -> list[Forgotten]:
    """The parts of models that were forgotten, one entry for each optimizer. Use `case.of(forgotten)`."""
    found: dict[int, Forgotten] = {}
    for leaves in _by_model(case, case.of(homeless)).values():
        number, optimizers = _first_pass(case, leaves)
        others = {leaf for leaf, own in case.training.owners.items() if own & optimizers}
        others &= case.trace.parameters.keys()
        if not others:
            continue
        for part in _parts(case, leaves, others, number):
            place = _place(case, number, set(part), others)
            if _is_forgotten(case, part, others, place):
                optimizer = _nearest(case, part, others, optimizers)
                new = Forgotten(tuple(part), number, optimizer, _made(case, optimizer), place.some_after)
                before = found.get(optimizer)
                found[optimizer] = new if before is None else _together(before, new)
    return list(found.values())


def _together(one: Forgotten, other: Forgotten) -> Forgotten:
    after = one.comes_after and other.comes_after
    return replace(one, leaves=(*one.leaves, *other.leaves), comes_after=after)


def _nearest(case: Case, leaves: list[int], others: set[int], optimizers: set[int]) -> int:
    """The optimizer that leaves were left out of: first choice is an optimizer of another part of their model."""
    model = _model(case, leaves[0])
    near = {leaf for leaf in others if _model(case, leaf) == model} or others
    return min(number for leaf in near for number in case.training.owners[leaf] & optimizers)


def _is_forgotten(case: Case, leaves: list[int], others: set[int], place: _Place) -> bool:
    """Whether leaves were left out by mistake, judged by their place in the pass and their values."""
    if not place.is_layer:
        return False
    near = any(_model(case, leaf) == _model(case, leaves[0]) for leaf in others)
    is_part = _parts_of(case, leaves).isdisjoint(_parts_of(case, others))
    if near and place.some_after and (is_part or not place.before):
        return True
    if place.takes_data:
        return False
    beside = not place.before and (place.all_after or not place.some_after)
    apart = _layers(case, leaves).isdisjoint(_layers(case, others))
    return beside and apart and not any(map(case.query.of(Writes).has_loaded_values, leaves))


def _parts(case: Case, leaves: list[int], others: set[int], number: int) -> Iterator[list[int]]:
    """The leaves of a model as one group; as one group for each part, if trained leaves come after some of them."""
    if not _place(case, number, set(leaves), others).before:
        yield leaves
        return
    by_part: dict[str, list[int]] = {}
    for leaf in leaves:
        by_part.setdefault(_part(case, leaf), []).append(leaf)
    yield from by_part.values()


def _by_model(case: Case, leaves: Iterable[int]) -> dict[str, list[int]]:
    """Parameters by the variable that holds their model."""
    found: dict[str, list[int]] = {}
    for leaf in leaves:
        if leaf in case.trace.parameters:
            found.setdefault(_model(case, leaf), []).append(leaf)
    return found


def _model(case: Case, leaf: int) -> str:
    return case.trace.parameters[leaf].partition(".")[0]


def _part(case: Case, leaf: int) -> str:
    """The part of the model that a parameter belongs to: `net.head` for `net.head.weight`."""
    return ".".join(case.trace.parameters[leaf].split(".")[:2])


def _parts_of(case: Case, leaves: Iterable[int]) -> set[str]:
    return {_part(case, leaf) for leaf in leaves}


def _layers(case: Case, leaves: Iterable[int]) -> set[str]:
    """The layers that directly hold these parameters."""
    return {case.trace.parameters[leaf].rpartition(".")[0] for leaf in leaves}


def _first_pass(case: Case, leaves: list[int]) -> tuple[int, set[int]]:
    """The first pass that gave some leaves gradients and belongs to an optimizer, with its optimizers. If no pass
    belongs to an optimizer: the first pass, and an empty set."""
    came = case.trace.table(Kind.ACCUMULATED)
    numbers = came["in_pass"][contained(came["tensor"], leaves)].tolist()
    owners = case.query.of(PassOwners).optimizers
    first = next((number for number in numbers if owners(number) - {BY_HAND}), numbers[0])
    return first, owners(first) - {BY_HAND}


def _place(case: Case, number: int, leaves: set[int], others: set[int]) -> _Place:
    """The place of leaves in a pass, relative to the `others`."""
    began = case.query.passes.began(number)
    root = next((root.tensor for root in began.roots if root.tensor), 0)
    ways = case.query.of(Lacks).ways(root, began.index)
    bits = dict.fromkeys(others, _TRAINED) | dict.fromkeys(leaves, _LEFT_OUT)
    behind = groups_behind(case.query, ways, bits)
    after: list[bool] = []
    before = is_layer = takes_data = False
    for use in uses(case.query, ways):
        above = 0
        for tensor in use.data:
            above |= behind.get(tensor, 0)
        if use.leaves & leaves:
            after.append(bool(above & _TRAINED))
            takes_data |= bool(above & _TRAINED) and _is_joined_with_data(case, use)
        if use.leaves & others:
            before |= bool(above & _LEFT_OUT)
            is_layer |= case.query.tensors.op(use.event).op in PRODUCTS
    return _Place(any(after), bool(after) and all(after), before, is_layer, takes_data)


def _is_joined_with_data(case: Case, use: Use) -> bool:
    """Whether a use reads a tensor that was joined from computed values and data."""
    for tensor in use.data:
        maker = op_of(case.query, tensor)
        if maker is not None and maker.op in JOINING:
            flags = [case.query.tensors.requires_grad(source, maker.index) for source in maker.inputs]
            if not all(flags):
                return True
    return False


def _made(case: Case, optimizer: int) -> int:
    """The event at which an optimizer was made."""
    held = case.trace.table(Kind.HOLDS)
    events = held.events[held["optimizer"] == optimizer]
    return int(events[0]) if len(events) else int(case.training.stepped.events[0])
