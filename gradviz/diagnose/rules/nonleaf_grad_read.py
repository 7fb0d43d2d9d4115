"""`nonleaf-grad-read`: `.grad` of a non-leaf that retains none is read, though passes go through it: it is None.
Often an op (`.to()`, `* scale`, `w = w - ...`) has made the non-leaf out of the leaf that is meant."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind


def _search(case: Case) -> Iterator[Found]:
    table = case.trace.table(Kind.GRAD_READ)
    ran = set(case.trace.table(Kind.RECEIVED)["node"].tolist())
    for events in case.by_site(table.events).values():
        event = int(events[0])
        tensor = table.object(event).tensor
        made = case.query.tensors.maker(tensor)
        if case.query.nodes.grad_fn(tensor, event) not in ran:
            continue
        name = case.words.called(tensor)
        place = f": it was computed at {case.at(made)}" if made is not None else ""
        yield Found(
            f"{name}.grad is read and is None, because {name} is not a leaf{place}",
            _cure(case, name, made),
            (event, *((made,) if made is not None else ())),
            tensors=(tensor,),
        )


def _cure(case: Case, name: str, made: int | None) -> str:
    site = None if made is None else case.query.places.site(int(case.trace.events["site"][made]))
    if f"{name}.grad" in case.line_of(site):  # `w = w - lr * w.grad` is meant as an update of the leaf
        return f"with torch.no_grad(): {name} -= ...  # update the leaf in place: it stays the leaf"
    return (
        f"{name}.retain_grad()  # before backward(); or read .grad of the leaf that {name} is computed from"
    )


RULE = Rule(
    "nonleaf-grad-read",
    WARNING,
    "a read of `.grad` of a non-leaf, which is None",
    _search,
    needs=(Need.DETAILS, Need.PASS),
)
