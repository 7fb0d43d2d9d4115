"""The lines that a program printed, from the pieces that it wrote."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

WIDEST = 200  # the most characters that are kept of a line
MOST_LINES = 2000  # the most lines that are kept of a run
_WIDEST_PIECE = 8000  # the most characters that are kept of one write
_MOST_CHARACTERS = 1_000_000  # the most characters that are kept of a run


class PrintedLine(NamedTuple):
    """A line that the program printed: the number of events before it began, the site of the write that began it, its
    first characters, and the number of all its characters."""

    event: int
    site: int
    text: str
    length: int


class _Piece(NamedTuple):
    """The text of one write, or a part of it. Its last line has `more` characters that are not kept, and `ends` there
    or goes on. `event` was counted after so many `moves` of events."""

    moves: int
    event: int
    site: int
    text: str
    more: int
    ends: bool


class PrintedLines:
    """Collects pieces while the program runs, and makes lines of them for the writer. Without a lock: a program may
    print in `__del__` and in a signal handler, and so while another event is being packed."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._left = _MOST_CHARACTERS
        self._begun: PrintedLine | None = None  # the line that has no end yet
        self._made = 0
        self.moves = 0  # how often events have been removed and the others counted anew
        self._at_move = 0  # the number of events behind the last time
        self._is_over = False

    def add(self, moves: int, event: int, site: int, text: str) -> None:
        """Add a text that was written after `event` events; `moves` was read before these were counted. Of a long text
        the first lines and the last line are kept."""
        end = text.find("\n", _WIDEST_PIECE)
        if end < 0:
            self._add(moves, event, site, text, is_ended=False)
        else:
            self._add(moves, event, site, text[:end], is_ended=True)
            self._add(moves, event, site, text[text.rindex("\n") + 1 :], is_ended=False)

    def _add(self, moves: int, event: int, site: int, text: str, is_ended: bool) -> None:
        kept = text[:_WIDEST_PIECE]
        self._left -= len(kept) + 1
        self._pieces.append(_Piece(moves, event, site, kept, len(text) - len(kept), is_ended))

    def end(self) -> None:
        """Mark the end of the program: a line without an end is complete."""
        self._is_over = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more is kept."""
        return self._left <= 0 or self._made >= MOST_LINES

    @property
    def has_news(self) -> bool:
        """Whether there are lines to be taken, or pieces of them."""
        return bool(self._pieces) or (self._is_over and self._begun is not None)

    def take(self) -> list[PrintedLine]:
        """The lines that have ended since the last call."""
        lines: list[PrintedLine] = []
        for _ in range(len(self._pieces)):
            piece = self._pieces.popleft()
            if piece.moves != self.moves:  # printed while events were removed: behind all others
                piece = piece._replace(event=self._at_move)
            lines += self._ended_by(piece)
        if self._is_over and self._begun is not None:
            lines.append(self._begun)
            self._begun = None
        lines = lines[: MOST_LINES - self._made]
        self._made += len(lines)
        return lines

    def _ended_by(self, piece: _Piece) -> Iterator[PrintedLine]:
        """The lines that a piece ends."""
        *whole, rest = piece.text.split("\n")
        for text in whole:
            yield self._with(piece, text)
            self._begun = None
        if rest or piece.more:
            line = self._with(piece, rest)
            self._begun = line._replace(length=line.length + piece.more)
        if piece.ends and self._begun is not None:
            yield self._begun
            self._begun = None

    def _with(self, piece: _Piece, text: str) -> PrintedLine:
        """The present line with more text at its end."""
        line = self._begun or PrintedLine(piece.event, piece.site, "", 0)
        return line._replace(text=(line.text + text)[:WIDEST], length=line.length + len(text))

    def move(self, moved: np.ndarray, count: int) -> None:
        """Adapt after events were removed: `moved` is the place where each event is now, −1 for none, and `count` the
        number that is left, which the recorder has begun to count from."""
        self._at_move = count
        self.moves += 1
        if self._begun is not None:
            event = moved_count(self._begun.event, moved)
            self._begun = None if event is None else self._begun._replace(event=event)


def moved_count(count: int, moved: np.ndarray) -> int | None:
    """The number of the first `count` events that are still there; None if the last of them is not."""
    if count == 0:
        return 0
    where = int(moved[count - 1])
    return where + 1 if where >= 0 else None
