"""Decodes terminal input into names of keys."""

from __future__ import annotations

import re

_NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[7~": "home", "\x1b[8~": "end",
    "\xe0H": "up", "\xe0P": "down", "\xe0M": "right", "\xe0K": "left", "\xe0G": "home", "\xe0O": "end",
    "\x00H": "up", "\x00P": "down", "\x00M": "right", "\x00K": "left", "\x00G": "home", "\x00O": "end",
    "\x1bOP": "?", "\x1b[11~": "?", "\xe0;": "?", "\x00;": "?",  # F1
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape", " ": "space", "\t": "tab",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|[\xe0\x00][A-Z;]|.", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;]*|O)\Z")


class Keys:
    """Splits terminal input into keys. A read may contain several keys, or only a part of a key."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The keys in a piece of input: by name, or the character itself."""
        text = self._rest + text
        unfinished = _UNFINISHED.search(text)
        self._rest = unfinished[0] if unfinished else ""
        whole = text[: len(text) - len(self._rest)]
        return [_NAMES.get(key, key) for key in _KEY.findall(whole)]
