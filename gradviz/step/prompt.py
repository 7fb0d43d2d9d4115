"""The command line of the stepper: a cursor, a history, and completion of names with Tab."""

from __future__ import annotations

from collections.abc import Callable

_CURSOR = "▏"
_CLEAR, _CUT_WORD = "\x15", "\x17"  # Ctrl-U, Ctrl-W


class Prompt:
    """The text that is being typed after `:`. `names` returns the possible completions of the last word,
    given the text before it."""

    def __init__(self, text: str, history: list[str], names: Callable[[str], list[str]]) -> None:
        self.text = text
        self.cursor = len(text)
        self._history = [*dict.fromkeys(reversed(history))]  # newest first, without repetitions
        self._names = names
        self._at = -1  # index into the history; -1: the new text
        self._typed = text
        self._choices: list[str] = []  # the completions that Tab cycles through

    @property
    def shown(self) -> str:
        """The line with its cursor."""
        return self.text[: self.cursor] + _CURSOR + self.text[self.cursor :]

    def type(self, key: str) -> bool:
        """Handle a key. Returns False if the key cancels the prompt."""
        if key == "escape" or (key == "backspace" and not self.text):
            return False
        if key != "tab":
            self._choices = []
        edit = _EDITS.get(key)
        if edit is not None:
            edit(self)
        elif key == "space" or (len(key) == 1 and key.isprintable()):
            self._replace(self.cursor, self.cursor, " " if key == "space" else key)
        return True

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = start + len(text)

    def _word(self) -> int:
        """The index where the word before the cursor begins."""
        return self.text[: self.cursor].rstrip().rfind(" ") + 1

    def _older(self) -> None:
        self._recall(self._at + 1)

    def _newer(self) -> None:
        self._recall(self._at - 1)

    def _recall(self, at: int) -> None:
        if not -1 <= at < len(self._history):
            return
        if self._at == -1:
            self._typed = self.text
        self._at = at
        self._replace(0, len(self.text), self._typed if at == -1 else self._history[at])

    def _complete(self) -> None:
        """Replace the last word by the next name that begins with it; after the last name, by the text that
        was typed."""
        start = self.text[: self.cursor].rfind(" ") + 1
        if not self._choices:
            stem = self.text[start : self.cursor]
            names = [
                name for name in self._names(self.text[:start]) if name.startswith(stem) and name != stem
            ]
            self._choices = [*names, stem]
        choice = self._choices.pop(0)
        self._choices.append(choice)
        self._replace(start, self.cursor, choice)


_EDITS: dict[str, Callable[[Prompt], None]] = {
    "backspace": lambda p: p._replace(max(p.cursor - 1, 0), p.cursor, ""),
    "left": lambda p: setattr(p, "cursor", max(p.cursor - 1, 0)),
    "right": lambda p: setattr(p, "cursor", min(p.cursor + 1, len(p.text))),
    "home": lambda p: setattr(p, "cursor", 0),
    "end": lambda p: setattr(p, "cursor", len(p.text)),
    _CLEAR: lambda p: p._replace(0, p.cursor, ""),
    _CUT_WORD: lambda p: p._replace(p._word(), p.cursor, ""),
    "up": Prompt._older,
    "down": Prompt._newer,
    "tab": Prompt._complete,
}
