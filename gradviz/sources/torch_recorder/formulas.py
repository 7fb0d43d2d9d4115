"""The formulas of the derivatives of PyTorch's ops, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradviz.events.fields import Rule
from gradviz.events.listener import NO_RULE


def rule_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rule:
    """The rule of an op that was called so."""
    return NO_RULE
