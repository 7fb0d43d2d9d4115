"""The fields of an event in full, as `info` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradviz.events.field_types import Rule
from gradviz.words.escape import clean

_HEAD = ("index", "thread", "site")  # shown elsewhere


def fields_told(event: Any) -> Iterator[tuple[str, str]]:
    """The name and the value of each field that only this kind of event has, in the order of the table of events."""
    for name in event.__slots__:
        if name not in _HEAD:
            yield name, clean(_told(getattr(event, name)))


def _told(value: Any) -> str:
    """A field's value: `3`, `1, 2`, or `(node 3, nr 0, tensor 2)`."""
    if isinstance(value, Rule):
        return "; ".join(f"{name}: {formula or 'no formula'}" for name, formula in value.inputs) or "none"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
        return f"({', '.join(f'{name} {_told(part)}' for name, part in parts)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_told, value)) or "none"
    return str(value)
