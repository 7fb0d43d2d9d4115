"""The context of a recorded call: the state that it depends on besides its arguments, as a text with what is not as
usual, `cpu=bfloat16 default=float64 no_grad`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AUTOCASTING = ("cpu", "cuda")  # the devices whose autocast is recorded
WITHOUT_GRAD = "no_grad"
_USUAL = "float32"


class CallSettings(NamedTuple):
    """The state that a context describes: grad mode, the default dtype, and the dtype of autocast on each device that
    has it."""

    has_grad_mode: bool
    default: str
    autocast: dict[str, str]


def context_of(default: str, autocast: Mapping[str, str]) -> str:
    """The context of a call with grad mode, with this default dtype and these dtypes of autocast by device."""
    parts = [f"{device}={dtype}" for device, dtype in autocast.items()]
    return " ".join(parts if default == _USUAL else [*parts, f"default={default}"])


def without_grad(context: str) -> str:
    """The context of the same call without grad mode."""
    return f"{context} {WITHOUT_GRAD}".lstrip()


def is_without_grad(context: str) -> bool:
    """Whether a call with this context was made without grad mode."""
    return WITHOUT_GRAD in context.split()


def settings_of(context: str) -> CallSettings:
    """The state that a context describes."""
    named = dict(part.partition("=")[::2] for part in context.split())
    autocast = {device: named[device] for device in AUTOCASTING if device in named}
    return CallSettings(not is_without_grad(context), named.get("default", _USUAL), autocast)
