"""Where an event happened: the user's frames that led to it, as one number.

A site is a place together with the site that called it, so that a function called from two lines has two. Hot
code only collects `(code, offset)` pairs; lines, columns and names are worked out when a trace is written.
"""

from __future__ import annotations

import sysconfig
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from gradviz.events.site import Place, place_of

USER, INTERNAL, BOUNDARY = 1, 2, 3
_DEEPEST = 100  # frames of one site; deeper callers are left out

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_STDLIB = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_SITE_PACKAGES = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))


@dataclass(frozen=True, slots=True)
class Site:
    """A place and the number of the site that called it (0: none)."""

    number: int
    parent: int
    place: Place
    names: tuple[str, ...]


class Sites:
    """Numbers the places that events come from.

    `boundary` holds the code objects whose callers are no part of the script: the runner's."""

    def __init__(self, boundary: Iterable[CodeType] = ()) -> None:
        self._adding = threading.RLock()
        self.kinds: dict[int, int] = {}
        self.codes: list[CodeType] = []  # kept alive: `kinds` knows them by address
        self.numbers: dict[tuple[int, ...], int] = {}
        self.begin_at(None)
        self._made: dict[int, tuple[int, CodeType, int]] = {}  # parent, code and offset of each site
        self._new: deque[int] = deque()  # added to while it is being written
        self._decoded: dict[int, Site] = {}
        for code in boundary:
            self._classify(code, BOUNDARY)

    def begin_at(self, root: FrameType | None) -> None:
        """Leave out the callers of `root`, the frame that began the recording."""
        self.root = root
        self.called: dict[tuple[int, int, int], int] = {}  # sites in functions that `root` calls

    def number(self, frame: FrameType) -> int:
        """The site of the innermost user frame at or above `frame`, 0 if there is none."""
        root = self.root
        if frame is root:
            return self.numbers.get((id(frame.f_code), frame.f_lasti)) or self._walk(frame)
        caller = frame.f_back
        if caller is None or caller is not root:
            return self._walk(frame)
        key = (id(frame.f_code), frame.f_lasti, caller.f_lasti)
        known = self.called.get(key)
        if known is None:
            known = self.called[key] = self._walk(frame)
        return known

    def _walk(self, frame: FrameType | None) -> int:
        """As `number`, from however deep."""
        kind_of, root = self.kinds.get, self.root
        key: tuple[int, ...] = ()
        outermost = None
        while frame is not None:
            code = frame.f_code
            kind = kind_of(id(code)) or self._classify(code)
            if kind == USER:
                key += (id(code), frame.f_lasti)
                if frame is root or len(key) > 2 * _DEEPEST:
                    break
                outermost = frame
            elif kind == BOUNDARY:
                self.begin_at(outermost)  # the script's own frame, which lives as long as the script
                break
            frame = frame.f_back
        return self.numbers.get(key) or self._add(key)

    def _classify(self, code: CodeType, kind: int = 0) -> int:
        if not kind:
            kind = INTERNAL if is_internal(code.co_filename) else USER
        self.kinds[id(code)] = kind
        self.codes.append(code)
        return kind

    def _add(self, key: tuple[int, ...]) -> int:
        if not key:
            return 0
        with self._adding:  # several threads may come by new places at once
            return self.numbers.get(key) or self._new_number(key)

    def _new_number(self, key: tuple[int, ...]) -> int:
        parent = self.numbers.get(key[2:]) or self._add(key[2:])
        number = self.numbers[key] = len(self.numbers) + 1
        code = next(code for code in reversed(self.codes) if id(code) == key[0])
        self._made[number] = (parent, code, key[1])
        self._new.append(number)
        return number

    def number_of(self, trace: TracebackType | None) -> int:
        """The site that an exception was raised at, or passed through last; 0 if there is none."""
        key: tuple[int, ...] = ()
        while trace is not None:
            code = trace.tb_frame.f_code
            if (self.kinds.get(id(code)) or self._classify(code)) == USER:
                key = (id(code), trace.tb_lasti, *key[: 2 * _DEEPEST])
            trace = trace.tb_next
        return self.numbers.get(key) or self._add(key)

    def site(self, number: int) -> Site:
        """One site, decoded."""
        known = self._decoded.get(number)
        if known is None:
            parent, code, offset = self._made[number]
            place = place_of(code, offset)
            names = place.names or (self.site(parent).names if place.returns and parent else ())
            known = self._decoded[number] = Site(number, parent, place, names)
        return known

    def take_new(self) -> list[Site]:
        """The sites added since the last call, decoded."""
        return [self.site(self._new.popleft()) for _ in range(len(self._new))]


def is_internal(filename: str) -> bool:
    """Whether code of this file is no part of the user's program: gradviz's own, the standard library's."""
    if filename.startswith((_PACKAGE, "<frozen ", "<gradviz>")):
        return True
    return filename.startswith(_STDLIB) and not filename.startswith(_SITE_PACKAGES)
