"""What the settings of an optimizer and the rates of a scheduler say: they are text in a trace, which may hold
anything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gradviz.events.field_types import Group
from gradviz.tracefile.sound import nested


def settings_of(group: Group | str) -> Mapping[str, Any]:
    """The settings of a parameter group by name; none where they cannot be read."""
    return _settings(group if isinstance(group, str) else group.settings)


@lru_cache(maxsize=1024)  # a training loop says the same at every step
def _settings(text: str) -> Mapping[str, Any]:
    try:
        found = nested(text, is_strict=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def number_of(value: object) -> float:
    """A setting as a number; NaN where it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def rates_of(text: str) -> list[float]:
    """The learning rates that a scheduler set; none where they cannot be read."""
    try:
        found = nested(text, is_strict=False)
    except ValueError:
        return []
    return list(map(number_of, found)) if isinstance(found, list) else []
