"""`print w[0, :3]`: the elements of a tensor, its gradient or a part of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gradviz.step.errors import CommandError
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import shape, value
from gradviz.words.subject import subject

_MOST = 10_000  # elements on one page
_INDEX = re.compile(r"^(?P<name>.*?)\s*\[(?P<index>[^\[\]]*)\](?P<part>\.grad)?$")
_PART = re.compile(r"^\s*(-?\d*)\s*(?:(:)\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?)?$")


def print_(session: Session, argument: str) -> None:
    """Show elements as the tensor has them at this event. Raises CommandError for an index that does not fit."""
    name, index, part = argument.strip(), None, ""
    if found := _INDEX.match(name):
        name, index, part = found["name"], _parsed(found["index"]), found["part"] or ""
    about = subject(session.words, name + part, session.position)
    moment = session.stop.moment
    tensor = moment.grad(about.tensor) if about.part == "grad" else about.tensor
    snapshot = moment.value(tensor) if tensor else None
    if snapshot is None:
        session.page = [f"{about} is None here" if about.part == "grad" else f"{about} has no value here"]
        return
    if snapshot.array is None:
        kept = "its elements were not kept: record it with --values full"
        session.page = [f"{about} {value(snapshot)}", f"  {kept}"]
        return
    array = snapshot.array if index is None else _picked(snapshot.array, index, argument)
    if array.size > _MOST:
        raise CommandError(
            f"{array.size:,} elements are too many for a page: ask for a part, as {name}[0, :10]"
        )
    where = "" if index is None else f" of {shape(snapshot)}"
    told = np.array2string(array, max_line_width=76, threshold=_MOST + 1, separator=", ", precision=6)
    session.page = [
        f"{clean(argument)}{where}, {snapshot.dtype}",
        *(f"  {line}" for line in told.splitlines()),
    ]


def _parsed(text: str) -> tuple[Any, ...]:
    """`0, :3, ...` as an index. Nothing is evaluated."""
    found: list[Any] = []
    for part in text.split(","):
        if part.strip() == "...":
            found.append(Ellipsis)
            continue
        match = _PART.match(part)
        if match is None or not part.strip():
            raise CommandError(f"an index is like [0, :3, -1], not [{shortened(clean(text), 30)}]")
        first, colon, last, step = match.groups()
        if not colon:
            found.append(int(first))
            continue
        numbers = [int(number) if number else None for number in (first, last, step)]
        if numbers[2] == 0:
            raise CommandError("the step of a slice is not 0")
        found.append(slice(*numbers))
    return tuple(found)


def _picked(array: np.ndarray, index: tuple[Any, ...], argument: str) -> np.ndarray:
    try:
        return np.asarray(array[index])
    except IndexError as error:
        raise CommandError(f"{clean(argument)}: {error}") from None
