"""Parameters that were frozen when the optimizer was made, require grad from some line on, and are in no optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.diagnose.homeless import homeless
from gradviz.events.kinds import Kind


@dataclass(frozen=True, slots=True)
class Thawed:
    """Leaves at which one line switched requires_grad on, and the first event of this line; the last optimizer that was
    made before it, and the event at which it was made."""

    leaves: tuple[int, ...]
    event: int
    optimizer: int
    made: int


def thawed(case: Case) -> list[Thawed]:
    """The parameters in no optimizer at which requires_grad was switched on after an optimizer was made, by line. An
    input that requires grad is no parameter: the program wants its own gradient."""
    changed, held = case.trace.table(Kind.REQUIRES_GRAD_CHANGED), case.trace.table(Kind.HOLDS)
    if not len(changed) or not len(held):
        return []
    events: dict[int, list[int]] = {}
    leaves: dict[int, list[int]] = {}
    for leaf in filter(case.trace.parameters.get, case.of(homeless)):
        for event in changed.events[changed["tensor"] == leaf].tolist():
            if event > held.events[0] and case.query.tensors.requires_grad(leaf, event):
                site = int(case.trace.events["site"][event])
                events.setdefault(site, []).append(event)
                leaves.setdefault(site, []).append(leaf)
                break
    found = []
    for site, own in leaves.items():
        first = min(events[site])
        row = int((held.events < first).sum()) - 1
        found.append(Thawed(tuple(own), first, int(held["optimizer"][row]), int(held.events[row])))
    return found
