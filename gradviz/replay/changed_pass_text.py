"""The results of a pass with changes, as text for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.events.kinds import CallMade
from gradviz.events.values import stats_of
from gradviz.query.equal_elements import largest_change, same_bits
from gradviz.replay.bad_origin import BadOrigin
from gradviz.replay.changed_pass import Changed, WhatIf
from gradviz.replay.outcome import Check
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import SHOWN, array_text, few_of, listed, number, plural
from gradviz.words.words import Words

_MOST = 6  # names in a line


def what_if_text(words: Words, found: WhatIf) -> Group:
    """The results of the replay, and its comparison with the recording."""
    calls, inputs = plural(len(found.plan.calls), "call"), plural(len(found.plan.inputs), "input")
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}: {calls}, {inputs}"
    parts: list[RenderableType] = [Text(head, "bold"), Text(check_text(words, found.check))]
    if found.added:
        names = _some([f"{name}.grad" for name in found.added])
        parts.append(Text(f"added to an earlier gradient in the run, here as of this pass alone: {names}"))
    if found.cut:
        why = f"what made {'it' if len(found.cut) == 1 else 'them'} cannot run again"
        parts.append(Text(f"no gradient goes on behind {_some(found.cut)}: {why}"))
    parts += [Text(line) for line in _bad(words, found)]
    if found.has_hooks:
        parts.append(Text("hooks changed gradients of this pass: they do not run again"))
    parts += [Text(), _table(found)]
    if found.is_edited:
        parts += [Text(), Text(_first(words, found))]
    if found.held:
        names = _some([name for _, name in found.held])
        parts.append(Text(f"held as recorded, not computed again: {names}"))
    if found.is_edited:
        parts.append(Text("numbers and branches that the program worked out in Python stay as they were"))
    return Group(*parts)


def _bad(words: Words, found: WhatIf) -> Iterator[str]:
    """Lines about the origin of the NaN or infinities, before and after."""
    before, after = found.bad
    if before is not None:
        yield bad_text(words, before)
    if after is not None and after != before:
        yield f"as it would be, {bad_text(words, after)}"


def bad_text(words: Words, bad: BadOrigin) -> str:
    """`NaN comes first from F.softmax, line 20, at index 5 of the first dimension`"""
    called = "NaN" if bad.is_nan else "an infinity"
    few = few_of([str(index) for index in bad.indices], _MOST)
    at = f", at {'index' if len(bad.indices) == 1 else 'indices'} {few} of the first dimension"
    where = at if bad.indices else ""
    if bad.tensor:
        return f"{called} enters the pass with {clean(words.called(bad.tensor))}{where}"
    if bad.call:
        call = words.query.trace.event(bad.call)
        assert isinstance(call, CallMade)
        return f"{called} comes first from {clean(call.function)}{words.at_line(call.site)}{where}"
    made = words.query.nodes.event(bad.node)
    line = words.at_line(made.site) if made is not None else ""
    becomes = "NaN" if bad.is_nan else "infinite"
    return f"a finite gradient becomes {becomes} in {words.node_name(bad.node)}{line}{where}"


def _some(names: Sequence[str]) -> str:
    return few_of([clean(name) for name in names], _MOST)


def check_text(words: Words, check: Check) -> str:
    """The comparison of a replay with the recording."""
    compared = []
    if check.roots:
        is_equal = check.equal_roots == check.roots
        compared.append(
            "the recorded loss to the last bit" if is_equal else "another loss than the recorded one"
        )
    if check.gradients:
        by_statistics = check.equal_gradients - check.to_the_bit
        how = f", {by_statistics} of them by their statistics" if by_statistics else ""
        compared.append(f"{check.equal_gradients} of {plural(check.gradients, 'recorded gradient')}{how}")
    if not compared:
        return "nothing was recorded that the replay could be compared with"
    text = f"it gives {listed(compared)}"
    if check.differences:
        first = check.differences[0]
        size = "" if np.isnan(first.largest) else f" by up to {number(first.largest, 3)}"
        text += f"; it differs first in {words.called(first.tensor)} (event {first.event + 1}){size}"
        sizes = [one.largest for one in check.differences if not np.isnan(one.largest)]
        if len(sizes) > 1:
            text += f", and by at most {number(max(sizes), 3)} where elements were recorded"
    return text


def _table(found: WhatIf) -> Table:
    edited = ("after", "largest change") if found.is_edited else ()
    values = table("", "before", *edited)
    values.show_header = found.is_edited
    values.columns[0].no_wrap = True
    for change in found.changes:
        row = [Text(clean(change.called)), Text(array_text(change.before))]
        if found.is_edited:
            row += [Text(array_text(change.after)), Text(_size(change))]
        values.add_row(*row)
    return values


def table(*titles: str) -> Table:
    """A table without lines."""
    result = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        result.add_column(title, overflow="fold")
    return result


def _size(change: Changed) -> str:
    if change.before is None or change.after is None:
        return (
            "" if change.before is change.after else "there is one now" if change.before is None else "gone"
        )
    if change.before.shape != change.after.shape:
        return "another shape"
    if same_bits(change.before, change.after):
        return "none"
    return number(largest_change(change.before, change.after), 4)


def _first(words: Words, found: WhatIf) -> str:
    text = (
        []
        if found.sample is None
        else [f"index {found.sample} of the first dimension is left out of the loss"]
    )
    if found.dtype:
        text.append(f"floating-point numbers are computed in {found.dtype}")
    elif found.first is None:
        text.append("no call gives anything else")
    else:
        text.append(f"differs first: {clean(found.first.function)}{words.at_line(found.first.site)}")
    return "; ".join(text)


def what_if_json(words: Words, found: WhatIf) -> dict[str, Any]:
    """The results of the replay as plain data."""
    check = found.check
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "calls": len(found.plan.calls),
        "inputs": len(found.plan.inputs),
        "replay": {
            "equal": check.is_equal,
            "roots": {"compared": check.roots, "equal": check.equal_roots},
            "gradients": {"compared": check.gradients, "equal": check.equal_gradients},
            "differences": [
                {
                    "tensor": words.called(one.tensor),
                    "event": one.event + 1,
                    "largest": json_number(one.largest),
                }
                for one in check.differences
            ],
        },
        "changes": [_change_json(change, found.is_edited) for change in found.changes],
        "first": None
        if found.first is None
        else {"function": found.first.function, "event": found.first.event + 1},
        "sample": found.sample,
        "held": [name for _, name in found.held],
        "cut": list(found.cut),
        "hooks": found.has_hooks,
        "bad": [None if bad is None else bad_text(words, bad) for bad in found.bad],
        "added": [f"{name}.grad" for name in found.added],
    }


def _change_json(change: Changed, is_edited: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"of": change.called, "before": _array_json(change.before)}
    if is_edited:
        data |= {"after": _array_json(change.after), "change": _size(change)}
    return data


def _array_json(array: np.ndarray | None) -> Any:
    if array is None:
        return None
    if array.size <= SHOWN and array.dtype.kind != "c":
        return json_number(array.tolist())
    stats = stats_of(array)
    return {"shape": list(array.shape), "rms": json_number(stats.rms), "nan": stats.nan, "inf": stats.inf}
