"""Text for pictures: values in few characters, and strings from a trace made harmless."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

import graphviz
import numpy as np

from gradviz.tracefile import Snapshot

SMALL = 6  # tensors of up to so many elements are written out
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, invisible, direction-changing characters


def plain(text: str, limit: int = 60) -> str:
    """Text of a stranger's as one short line: control and invisible characters by their escapes."""
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return "".join(
        c.encode("unicode_escape", "backslashreplace").decode() if unicodedata.category(c) in _HIDDEN else c
        for c in text
    )


def visible(line: str) -> str:
    """A line of source in which each control or invisible character but a tab is `�`: its columns stay."""
    if line.isascii() and line.isprintable():
        return line
    return "".join("\ufffd" if unicodedata.category(c) in _HIDDEN and c != "\t" else c for c in line)


def quoted(lines: Iterable[str], end: str = "") -> str:
    """Lines as a DOT string that means them literally: no escape (`\\N`), no entity, no HTML-like label. `end` is
    what DOT is to end each with (`\\l`: left-aligned), where they are not centred."""
    escaped = [graphviz.escape(line.replace("&", "&amp;")) for line in lines]
    return graphviz.nohtml("".join(line + end for line in escaped) if end else "\\n".join(escaped))


def value(snapshot: Snapshot) -> str:
    """A value in few characters: the elements of a small tensor, else its rms and what is odd about it."""
    array = snapshot.array
    if array is not None and array.size <= SMALL and snapshot.dtype != "bfloat16":
        return _elements(array, 4 if array.size == 1 else 3)
    stats = snapshot.stats
    if stats is None:
        return ""
    odd = [f"{count:,} {what}" for count, what in ((stats.nan, "NaN"), (stats.inf, "inf")) if count]
    return ", ".join([*([] if np.isnan(stats.rms) else [f"rms {number(stats.rms)}"]), *odd])


def _elements(array: np.ndarray, digits: int) -> str:
    if array.ndim == 0:
        return number(array[()], digits)
    return f"[{', '.join(_elements(part, digits) for part in array)}]"


def number(x: object, digits: int = 4) -> str:
    """A number to so many digits, as a person would write it."""
    if isinstance(x, (bool, np.bool_)):
        return str(bool(x))
    if isinstance(x, (int, np.integer)):
        return str(int(x))
    if isinstance(x, (complex, np.complexfloating)):
        return f"{x:.3g}"
    text = f"{float(x):.{digits}g}"  # type: ignore[arg-type]
    text = "0" if text == "-0" else text
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text


def has_odd(snapshot: Snapshot | None) -> bool:
    """Whether there is NaN or inf among the elements."""
    stats = snapshot.stats if snapshot is not None else None
    return stats is not None and bool(stats.nan or stats.inf)
