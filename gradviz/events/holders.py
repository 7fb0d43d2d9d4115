"""What an object is called in the program that holds it: the name that a module's parameters begin with."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

_DEEPEST = 100  # frames looked through


def holder_of(thing: Any, frame: FrameType | None) -> str:
    """The variable that holds an object, in a frame or in those that called it: `net`, also of `self.net`. Empty where
    none does. Names that begin with `_`, and `self`, do not count."""
    for _ in range(_DEEPEST):
        if frame is None:
            return ""
        if f"{frame.f_globals.get('__name__')}.".startswith("gradviz."):
            frame = frame.f_back  # as of `gradviz.draw(net, x)`: its variables are not the program's
            continue
        spaces = [frame.f_locals, getattr(frame.f_locals.get("self"), "__dict__", {}), frame.f_globals]
        found = next((name for space in spaces if (name := _name_in(space, thing))), "")
        if found:
            return found
        frame = frame.f_back
    return ""


def _name_in(space: Mapping[str, Any], thing: Any) -> str:
    for name, value in list(space.items()):
        if value is thing and isinstance(name, str) and not name.startswith("_") and name != "self":
            return name
    return ""
