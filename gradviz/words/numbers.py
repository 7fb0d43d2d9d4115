"""Numbers and text as a reader wants them: few digits, one line, nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradviz.tracefile import Snapshot

SHOWN = 6  # tensors of up to so many elements are written out
BRIEF = 4  # ... and of up to so many in a sentence
_COMPACT = 30  # characters


def clean(text: str) -> str:
    """Text of a trace as one line: control characters by their escapes."""
    return "".join(map(clean_character, text))


def clean_character(character: str) -> str:
    """One character as it may be shown."""
    if character == "\t":
        return "    "
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def shortened(text: str, width: int) -> str:
    """Text of at most `width` characters, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def number(value: object, digits: int = 6) -> str:
    """A number in few digits."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (complex, np.complexfloating)):
        return f"{value:.{digits}g}"
    if isinstance(value, (int, np.integer)):
        return str(value)
    text = f"{float(value):.{digits}g}"  # type: ignore[arg-type]
    return "0" if text == "-0" else text


def scalar(snapshot: Snapshot | None) -> float | None:
    """The only element of a real tensor; None where it has not exactly one, or it was not kept."""
    array = snapshot.array if snapshot is not None else None
    if array is None or array.size != 1 or array.dtype.kind == "c":
        return None
    return float(array.reshape(-1)[0])


def value(snapshot: Snapshot | None) -> str:
    """A tensor in one line: its elements when few, else shape and statistics."""
    if snapshot is None:
        return "?"
    array = snapshot.array
    if array is not None and array.size <= SHOWN:
        return nested(array)
    stats = snapshot.stats
    if stats is None:
        return f"{shape(snapshot)} {snapshot.dtype}, value not kept"
    span = "" if np.isnan(stats.min) else f", {number(stats.min, 4)} to {number(stats.max, 4)}"
    return brief(snapshot) + span


def brief(snapshot: Snapshot | None) -> str:
    """A tensor in a few words, for a sentence: its elements when very few, else shape and rms."""
    if snapshot is None:
        return "?"
    if snapshot.stats is None:
        return f"a {shape(snapshot)} tensor" if snapshot.shape else "a scalar"
    array = snapshot.array
    if array is not None and array.size <= BRIEF:
        return nested(array)
    stats = snapshot.stats
    bad = [f"{count} {name}" for count, name in ((stats.nan, "nan"), (stats.inf, "inf")) if count]
    size = [] if np.isnan(stats.rms) else [f"rms {number(stats.rms, 4)}"]
    return f"{shape(snapshot)} {', '.join(bad + size)}".rstrip()


def compact(snapshot: Snapshot | None) -> str:
    """A tensor at full length where that is short."""
    full = value(snapshot)
    return full if len(full) <= _COMPACT else brief(snapshot)


def shape(snapshot: Snapshot) -> str:
    """A shape as `(8×3)`."""
    return f"({'×'.join(map(str, snapshot.shape))})"


def nested(array: np.ndarray, digits: int = 0) -> str:
    """A small array in brackets."""
    digits = digits or (6 if array.size == 1 else 4)
    if array.ndim == 0:
        return number(array[()], digits)
    return "[" + ", ".join(nested(row, digits) for row in array) + "]"


def listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def plural(n: int, one: str, many: str = "") -> str:
    """`1 pass`, `2 passes`, `1,000 events`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
