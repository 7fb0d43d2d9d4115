"""Parts of a model that were left out when the optimizer was made. It may be meant that only the last part of a model
is trained, or that parameters are chosen by name; but a whole part that comes after one that is trained, gets gradients
and does not change, was forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.constants import Behind
from gradviz.diagnose.homeless import homeless
from gradviz.events.kinds import Kind
from gradviz.sets import contained

_LOOKED_AT = 64  # nodes that lead to the leaves


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A part of a model that is in no optimizer: its name, its leaves, the first pass that gave them gradients, the
    number of the optimizer of the other parts, and the event at which that was made."""

    part: str
    leaves: tuple[int, ...]
    number: int
    optimizer: int
    made: int


def forgotten(case: Case) -> list[Forgotten]:
    """The parts of models that were forgotten."""
    trained = _by_part(case, list(case.training.owners))
    left_out = _by_part(case, case.of(homeless))
    chosen_by_name = {_model(part) for part in trained.keys() & left_out.keys()}
    found = []
    for part, leaves in left_out.items():
        others = {t for own, tensors in trained.items() if _model(own) == _model(part) for t in tensors}
        if not others or _model(part) in chosen_by_name:
            continue
        number = _first_pass(case, leaves)
        if _comes_after(case, leaves, others, number):
            optimizer = min(number for leaf in others for number in case.training.owners[leaf])
            found.append(Forgotten(part, tuple(leaves), number, optimizer, _made(case, optimizer)))
    return found


def _by_part(case: Case, leaves: list[int]) -> dict[str, list[int]]:
    """Parameters by the part of their model: `net.head` of `net.head.weight`."""
    found: dict[str, list[int]] = {}
    for leaf in leaves:
        name = case.trace.parameters.get(leaf, "")
        if "." in name:
            found.setdefault(".".join(name.split(".")[:2]), []).append(leaf)
    return found


def _model(part: str) -> str:
    return part.partition(".")[0]


def _first_pass(case: Case, leaves: list[int]) -> int:
    came = case.trace.table(Kind.ACCUMULATED)
    return int(came["in_pass"][contained(came["tensor"], leaves)][0])


def _comes_after(case: Case, leaves: list[int], others: set[int], number: int) -> bool:
    """Whether one of these leaves meets, in a pass, what was computed from other leaves."""
    received = case.trace.table(Kind.RECEIVED)
    behind = Behind(case)
    direct = [
        node
        for node in received["node"][received["in_pass"] == number].tolist()
        if any(edge.tensor in leaves for edge in case.query.nodes.edges(node))
    ]
    return any(behind.leaves(node) & others for node in direct[:_LOOKED_AT])


def _made(case: Case, optimizer: int) -> int:
    """The event at which an optimizer was made."""
    held = case.trace.table(Kind.HOLDS)
    rows = np.flatnonzero(held["optimizer"] == optimizer)
    return int(held.events[rows[0]]) if len(rows) else int(case.training.stepped.events[0])
