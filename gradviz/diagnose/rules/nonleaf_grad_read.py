"""`nonleaf-grad-read`: the program reads `.grad` of a non-leaf that passes go through. A non-leaf retains no gradient,
so the `.grad` is None. Often an op (`.to()`, `* scale`, `w = w - ...`) has made the non-leaf from the leaf that is
meant.

Why it is bad: the program computes with None, or takes None for 'no gradient'.

Example:

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    z = (y ** 2).sum()
    z.backward()
    print(y.grad)  # <- nonleaf-grad-read

Cure: call `y.retain_grad()` before backward(), read `.grad` of the leaf, or make the leaf itself with the right
`device=` or `dtype=`.

Not reported: a read in a short program that trains nothing is a note only: a lesson reads such a `.grad` to
show that it is None.
"""

import ast
import re
from collections.abc import Iterator

from gradviz.diagnose.fix import Edit, Fix, Spot, updated_in_place
from gradviz.diagnose.own_words import by_expressions, update_in_place
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Found, Kind, Need, Rule
from gradviz.query.statements import wrong_values

_SHORT = 2_000  # events


@Rule("nonleaf-grad-read", WARNING, "a read of `.grad` of a non-leaf, which is None", needs=(Need.DETAILS, Need.PASS))
def nonleaf_grad_read(case: Case) -> Iterator[Found]:
    table = case.trace.table(Kind.GRAD_READ)
    ran = case.query.nodes.ran
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
            severity=_severity(case, name, made),
        )


def _severity(case: Case, name: str, made: int | None) -> str:
    if any(ast.unparse(value.origin) == f"{name}.grad" for value in case.query.of(wrong_values)):
        return ERROR
    trace, has_optimizer = case.trace, any(len(case.trace.table(kind)) for kind in (Kind.HOLDS, Kind.STEPPED))
    is_lesson = trace.count <= _SHORT and not has_optimizer and not case.query.passes.are_a_loop(trace.passes)
    return NOTE if is_lesson and not _is_update(case, name, made) else ""


def _is_update(case: Case, name: str, made: int | None) -> bool:
    """Whether the line that made a tensor reads the `.grad` of the same name: `w = w - lr * w.grad` is meant as an
    update."""
    return made is not None and f"{name}.grad" in case.query.places.line_text(case.site(made))


def _cure(case: Case, name: str, made: int | None) -> Fix:
    if _is_update(case, name, made):
        return Fix(update_in_place(case, made, name), updated_in_place)
    return Fix(
        f"{name}.retain_grad()  # before backward(); or read .grad of the leaf that {name} is computed from",
        lambda spot: _retained(spot, by_expressions(case, name)),
    )


def _retained(spot: Spot, name: str) -> list[Edit]:
    """`y.retain_grad()` before the pass."""
    call = spot.backward_before(spot.statement)
    if call is None or not re.fullmatch(r"[\w.]+", name):
        return []
    return [spot.source.before(spot.source.statement(call), f"{name}.retain_grad()")]
