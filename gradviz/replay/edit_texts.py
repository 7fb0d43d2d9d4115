"""Edits of a pass as the user types them: `x=4`, `w[0,2]=0`, `detach@6`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from gradviz.query.replayable_functions import base_name
from gradviz.replay.outcome import Edits
from gradviz.replay.plan import Input, Plan, ReplayError
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import few_of, listed
from gradviz.words.subject import UnknownName, element_of, subject
from gradviz.words.words import Words

DTYPES = ("float32", "float64")
_PLACE = re.compile(r"^(?P<op>\w+)@(?P<line>\d{1,9})$")
# The calls that can be left out: the first argument becomes the result.
_LEFT_OUT = frozenset(
    """
    detach data clamp clip clamp_min clamp_max relu dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout nan_to_num hardtanh
    """.split()
)
_MOST = 6  # the most names in a message


def edits_of(words: Words, plan: Plan, sets: Sequence[str], dtype: str, without: Sequence[str]) -> Edits:
    """The edits that the options describe. Raises ReplayError if they name something that the pass does not have."""
    values: dict[int, np.ndarray] = {}
    for text in sets:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise ReplayError(f"--set takes NAME=NUMBER, as x=4 or 'w[0,2]=0', not {_shown(text)}")
        entered, index = _input(words, plan, name.strip())
        array = values.get(entered.tensor, entered.value.array)
        assert array is not None
        values[entered.tensor] = _changed(array, index, value.strip(), name.strip())
    left_out = frozenset(event for text in without for event in _left_out(words, plan, text))
    return Edits(values, dtype, left_out)


def _shown(text: str) -> str:
    return shortened(clean(text), 40)


def _input(words: Words, plan: Plan, text: str) -> tuple[Input, str | None]:
    """The named input of a plan, and its element (None: all of it). `w[0]` may be the name of a tensor that the
    program took out of `w`, or an element: the one that enters the pass is meant."""
    names: list[tuple[str, str | None]] = [(text, None)]
    if (element := element_of(text)) is not None:
        names.append(element)
    known_as = []
    for name, index in names:
        with suppress(UnknownName):
            named = subject(words, name, plan.began.index)
            entered = [step for step in plan.inputs if step.tensor == named.tensor]
            if entered:
                return entered[-1], index
            known_as.append(named)
    named = known_as[0] if known_as else subject(words, names[-1][0], plan.began.index)
    known = few_of([words.called(step.tensor) for step in plan.inputs], _MOST)
    call = next((call for call in plan.calls if named.tensor in call.outputs), None)
    if call is not None:
        where = words.at_line(call.site)
        raise ReplayError(
            f"{named.called} is computed, by {call.function}{where}: set what enters it, as {known}"
        )
    raise ReplayError(f"{named.called} does not enter pass {plan.number}: what does is {known}")


def _changed(array: np.ndarray, index: str | None, text: str, name: str) -> np.ndarray:
    """A copy of an array with a number in one place, or everywhere."""
    changed = np.array(array)
    try:
        place = () if index is None else tuple(map(_part, index.split(",")))
        changed[place] = _number(text, array.dtype)
    except (ValueError, OverflowError, KeyError):
        raise ReplayError(
            f"{_shown(text)} is no number that {_shown(name)} can have ({array.dtype.name})"
        ) from None
    except IndexError:
        raise ReplayError(f"{_shown(name)} is outside of its shape {tuple(array.shape)}") from None
    return changed


def _part(text: str) -> int | slice:
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":")))


def _number(text: str, dtype: np.dtype) -> complex | float | int | bool:
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if dtype.kind in "iu":
        return int(text)
    return complex(text) if dtype.kind == "c" else float(text)


def _left_out(words: Words, plan: Plan, text: str) -> list[int]:
    """The calls that are named as `detach@6`: an op and a line."""
    place = _PLACE.match(text.strip())
    if place is None:
        raise ReplayError(f"--without takes OP@LINE, as detach@6, not {_shown(text)}")
    line = int(place["line"])
    here = [call for call in plan.calls if words.query.places.line(call.site)[1] == line]
    named = [call for call in here if base_name(f".{place['op']}") == call.op]
    if not named:
        there = listed(sorted({call.op for call in here})) or "no call that can be made again"
        raise ReplayError(f"pass {plan.number} has no {place['op']} on line {line}: there is {there}")
    if named[0].op not in _LEFT_OUT:
        raise ReplayError(f"{named[0].op} cannot be left out: what can is {listed(sorted(_LEFT_OUT))}")
    return [call.event for call in named]
