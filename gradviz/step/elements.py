"""`print w[0, :3]`: the elements of a tensor, its gradient or a part of them, page by page if there are many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradviz.step.command_error import CommandError
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import number as number_of
from gradviz.words.numbers import shape, value
from gradviz.words.stop import subject

_MOST = 1_000  # elements on one page
_ON_A_LINE = 5
_INDEX = re.compile(r"^(?P<name>.*?)\s*\[(?P<index>[^\[\]]*)\](?P<part>\.grad)?$")
_PAGE = re.compile(r"^(?P<what>.*\S)\s+page\s+(?P<number>[0-9]{1,9})$")
_PART = re.compile(r"^\s*(-?\d*)\s*(?:(:)\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?)?$")


def print_(session: Session, argument: str) -> None:
    """Show the elements of a tensor at this event. Raises CommandError for an index that does not fit."""
    page = _PAGE.match(argument.strip())
    argument = argument.strip() if page is None else page["what"]
    name, index, part = argument, None, ""
    if found := _INDEX.match(name):
        name, index, part = found["name"], _parsed(found["index"]), found["part"] or ""
    about = subject(session.words, name + part, session.position)
    moment = session.stop.moment
    tensor = moment.grad(about.tensor) if about.part == "grad" else about.tensor
    snapshot = moment.value(tensor) if tensor else None
    if snapshot is not None and snapshot.array is None and session.fill(session.query, session.position):
        snapshot = moment.value(tensor)
    if snapshot is None:
        session.page = [
            session.say(
                "{name} is None here" if about.part == "grad" else "{name} has no value here", name=about
            )
        ]
        return
    if snapshot.array is None:
        kept = "its elements were not kept: record it with --values full"
        if snapshot.part is not None:
            kept = "its elements lie on several ranks, and are not kept"
        session.page = [f"{about} {value(snapshot)}", f"  {session.say(kept)}"]
        return
    array = snapshot.array if index is None else _picked(snapshot.array, index, argument)
    where = "" if index is None else f" of {shape(snapshot)}"
    if array.size > _MOST or page is not None:
        _show_page(session, argument, array, 1 if page is None else int(page["number"]), where)
        return
    text = np.array2string(array, max_line_width=76, threshold=_MOST + 1, separator=", ", precision=6)
    session.page = [
        f"{clean(argument)}{where}, {snapshot.dtype}",
        *(f"  {line}" for line in text.splitlines()),
    ]


def _show_page(session: Session, argument: str, array: np.ndarray, number: int, where: str) -> None:
    """Show one page of many elements, each line with the index of its first element."""
    count = max(-(-array.size // _MOST), 1)
    if not 1 <= number <= count:
        none = "there is no page {number}: {name} has {count} page, from 1"
        some = "there is no page {number}: {name} has {count} pages, from 1"
        raise CommandError(
            none if count == 1 else some, number=number, name=clean(argument), count=f"{count:,}"
        )
    first, end = (number - 1) * _MOST, min(number * _MOST, array.size)
    following = session.say(
        " (Space, or print {name} page {number}: the next)", name=clean(argument), number=number + 1
    )
    part = session.say(
        "elements {first} to {end} of {size}, page {number} of {count}",
        first=f"{first + 1:,}",
        end=f"{end:,}",
        size=f"{array.size:,}",
        number=f"{number:,}",
        count=f"{count:,}",
    )
    size = "×".join(map(str, array.shape))
    session.page = [
        f"{clean(argument)}{where}, ({size}) {array.dtype}",
        f"  {part}{following if number < count else ''}",
        *_lines(array, first, end),
    ]
    if number < count:
        session.page_keys = {"space": f"print {argument} page {number + 1}"}


def _lines(array: np.ndarray, first: int, end: int) -> Iterator[str]:
    """The elements from `first` to `end`, in row-major order; each row of the tensor begins a line."""
    row = array.shape[-1] if array.ndim else 1
    while first < end:
        index = np.unravel_index(first, array.shape)
        until = min(first + _ON_A_LINE, first - first % row + row, end)
        row_text = "  ".join(f"{number_of(element):>11}" for element in array.flat[first:until])
        yield f"  {'[' + ', '.join(map(str, index)) + ']':<10} {row_text}"
        first = until


def _parsed(text: str) -> tuple[Any, ...]:
    """`0, :3, ...` as an index. Nothing is evaluated."""
    parts: list[Any] = []
    for part in text.split(","):
        if part.strip() == "...":
            parts.append(Ellipsis)
            continue
        match = _PART.match(part)
        if match is None or not part.strip():
            raise CommandError("an index is like [0, :3, -1], not [{text}]", text=shortened(clean(text), 30))
        first, colon, last, step = match.groups()
        if not colon:
            parts.append(int(first))
            continue
        numbers = [int(number) if number else None for number in (first, last, step)]
        if numbers[2] == 0:
            raise CommandError("the step of a slice is not 0")
        parts.append(slice(*numbers))
    return tuple(parts)


def _picked(array: np.ndarray, index: tuple[Any, ...], argument: str) -> np.ndarray:
    try:
        return np.asarray(array[index])
    except IndexError as error:
        raise CommandError(f"{clean(argument)}: {error}") from None
