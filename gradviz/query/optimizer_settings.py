"""The settings of an optimizer and the rates of a scheduler. A trace has them as text, which may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gradviz.events.field_types import Group
from gradviz.tracefile.sound import nested


def settings_of(group: Group | str) -> Mapping[str, Any]:
    """The settings of a parameter group by name; empty if they cannot be read."""
    return _settings(group if isinstance(group, str) else group.settings)


@lru_cache(maxsize=1024)  # a training loop has the same settings at every step
def _settings(text: str) -> Mapping[str, Any]:
    try:
        settings = nested(text, is_strict=False)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def number_of(value: object) -> float:
    """A setting as a number; NaN if it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def rates_of(text: str) -> list[float]:
    """The learning rates that a scheduler set; empty if they cannot be read."""
    try:
        rates = nested(text, is_strict=False)
    except ValueError:
        return []
    return list(map(number_of, rates)) if isinstance(rates, list) else []
