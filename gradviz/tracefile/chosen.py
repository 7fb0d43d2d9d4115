"""The backward passes that are recorded in detail."""

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from threading import get_ident
from time import thread_time
from typing import NamedTuple

ALL, AUTO, BUDGET = "all", "auto", "budget"
NAN, JUMP, LEAK = "nan", "jump", "leak"  # why passes behind a pass are chosen, by its numbers
FIRST = 10  # the passes with which such a choice begins
BEHIND_TROUBLE = 3
_MOST_TROUBLES = 8  # of each kind
_JUMP = 10  # so many times the median is a jump
_REMEMBERED = 64  # sizes of which it is the median
_LEAST = 10
_AUTOMATIC = re.compile(rf"(1-(?P<first>[1-9][0-9]{{0,14}}),)?({AUTO}|{BUDGET})")
# A run is short, and all of it is recorded in detail, up to so many passes, or so many seconds of its thread.
_SHORT_PASSES, _SHORT_SECONDS = 100, 10.0
_TIMED = 16  # periods of which the median is the time of a pass that is left out


class Passes(NamedTuple):
    """Passes by their numbers, from 1: those in `ranges` (first and last), and the multiples of `steps`."""

    ranges: tuple[tuple[int, int], ...]
    steps: tuple[int, ...] = ()

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        return any(low <= number <= high for low, high in self.ranges) or any(number % step == 0 for step in self.steps)

    def __str__(self) -> str:
        ranges = [f"{low}-{high}" for low, high in self.ranges]
        return ",".join([*ranges, *(f"every:{step}" for step in self.steps)])


class AutoPasses:
    """Passes that are chosen while a program runs: the `first`, and then ever fewer, those whose number has one digit
    that is not 0 (20, 30, ... 100, 200, ... 1,000); and some behind each trouble. A run asks for its passes one after
    the other."""

    def __init__(self, first: int = FIRST) -> None:
        self.first = first
        self.digits = 1  # that are not 0, of the numbers that are chosen in any case
        self.closely_until = 0  # the last pass that is chosen because of trouble
        self.troubles = {NAN: 0, JUMP: 0, LEAK: 0}  # an exception counts as a jump
        self.written_until = 0  # the last pass that is written
        self.is_bad_written = False  # whether it has a NaN
        self.is_bad_since = False  # whether what is written behind it has one
        # of the passes that are written and were not looked at: each with a NaN behind one without, or the other way
        self.turns: deque[tuple[int, bool]] = deque()
        self.was_bad = False  # whether the pass that was looked at last has a NaN
        self.last_by_values = 0  # the last pass whose values had passes chosen
        self.has_bad_numbers = False  # whether the loss or the norm of the last pass is not finite
        self.losses, self.norms = _Usual(), _Usual()

    def __contains__(self, number: object) -> bool:
        is_early = isinstance(number, int) and number <= max(self.first, self.closely_until)
        return is_early or (isinstance(number, int) and is_regular(number, self.digits))

    def __str__(self) -> str:
        return AUTO if self.first == FIRST else f"1-{self.first},{AUTO}"

    def wrote(self, bad: Sequence[int], ends: Sequence[tuple[int, int]]) -> None:
        """Note the events with a NaN in what was written, in order, and where passes ended in it: the event behind each
        pass, and the number of passes begun. Called on the writer's thread: nothing is chosen here, because a quick
        machine and a slow one write at different times."""
        start = 0
        for end, passes_begun in ends:
            within = bisect_left(bad, end)
            is_bad = self.is_bad_since or within > start
            if is_bad != self.is_bad_written:
                self.turns.append((passes_begun, is_bad))
            self.is_bad_written, self.is_bad_since, start = is_bad, False, within
            self.written_until = passes_begun
        self.is_bad_since = self.is_bad_since or len(bad) > start

    def look(self, behind: int | None = None) -> None:
        """Choose passes because of those that were written with a NaN and were not looked at yet: behind each of them,
        or `behind` a pass if it is too late for that."""
        while self.turns:
            passes_begun, is_bad = self.turns.popleft()
            is_new = is_bad and not (self.was_bad or self.has_bad_numbers)
            if is_new and self.look_closely(NAN, passes_begun if behind is None else behind):
                self.last_by_values = passes_begun
            self.was_bad = is_bad

    def summed(self, loss: float | None, norm: float, passes_begun: int) -> str:
        """Note the loss and the norm of a pass (None and −1 where they are not known). Returns why the passes behind it
        are chosen: `nan`, `jump`, or nothing."""
        known = [] if loss is None else [(self.losses, loss)]
        known += [] if norm == -1 else [(self.norms, norm)]
        is_bad = not all(math.isfinite(number) for _, number in known)
        jumps = [of.takes(abs(number)) for of, number in known if math.isfinite(number)]
        was_bad, self.has_bad_numbers = self.has_bad_numbers, is_bad
        is_trouble = not was_bad if is_bad else any(jumps)
        if not is_trouble:
            return ""
        why = NAN if is_bad else JUMP
        is_chosen = passes_begun == self.last_by_values or self.look_closely(why, passes_begun)
        return why if is_chosen else ""

    def foresees(self, loss: float) -> bool:
        """Whether the pass that begins from this loss is trouble."""
        if math.isfinite(loss):
            return self.losses.is_jump(abs(loss)) and self.troubles[JUMP] < _MOST_TROUBLES
        return not self.has_bad_numbers and self.troubles[NAN] < _MOST_TROUBLES

    def look_closely(self, why: str, passes_begun: int) -> bool:
        """Choose the passes behind the present one, unless this was done so often, or is so already."""
        if self.troubles[why] >= _MOST_TROUBLES or passes_begun <= self.closely_until:
            return False
        self.troubles[why] += 1
        self.closely_until = passes_begun + BEHIND_TROUBLE
        return True


class Budget(AutoPasses):
    """Passes that a recorder chooses so that it takes at most a `share` of the program's time: all of them while the
    run is short; then as `AutoPasses`, and those whose number has two digits that are not 0 where there is time."""

    def __init__(self, share: float = 0.1) -> None:
        super().__init__(0)
        self.share = share
        self.ended: dict[int, float] = {}  # by thread: its seconds when its last pass ended
        self.spent = 0.0  # the seconds of these threads since their first passes ended
        self.usual: deque[float] = deque(maxlen=_TIMED)  # the periods of passes that were left out
        self.detailed = 0.0  # the period of the last pass in detail

    def __str__(self) -> str:
        return f"1-{self.first},{BUDGET}"

    def is_over(self, passes: int) -> bool:
        """Whether the run is no longer short, at the end of a pass. The next pass is the last of the first."""
        self.first, self.spent = passes + 1, self.spent + self._period()
        return passes >= _SHORT_PASSES and self.spent > _SHORT_SECONDS

    def _period(self) -> float:
        """The seconds of this thread since a pass ended in it; 0 for its first."""
        thread, now = get_ident(), thread_time()
        before, self.ended[thread] = self.ended.get(thread, now), now
        return max(now - before, 0.0)  # another thread may have had its number

    def timed(self, passes: int, is_detailed: bool) -> None:
        """Note the end of a pass: how many of the next passes there is time for."""
        period = self._period()
        if is_detailed:
            self.detailed = period
        else:
            self.usual.append(period)
        if (self.detailed and 0 < len(self.usual) < _TIMED) or (is_detailed and self.usual):
            left_out = sorted(self.usual)[len(self.usual) // 2]
            every = 10 ** (len(str(passes)) - 2)
            self.digits = 1 + (self.detailed - left_out <= self.share * left_out * every)


def is_regular(number: int, digits: int = 1) -> bool:
    """Whether a pass is chosen whatever happens, behind the first: its number has so few digits up to the last that is
    not 0."""
    return len(str(number).rstrip("0")) <= digits


class _Usual:
    """The running median of sizes."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=_REMEMBERED)

    def takes(self, size: float) -> bool:
        """Note a size. Returns whether it is a jump."""
        is_jump = self.is_jump(size)
        self.last.append(size)
        return is_jump

    def is_jump(self, size: float) -> bool:
        """Whether a size is more than ten times the median of those before it."""
        if len(self.last) < _LEAST or size <= _JUMP * min(self.last):  # mostly, and quick to see
            return False
        known = sorted(self.last)
        return size > _JUMP * known[len(known) // 2] > 0


def passes_of(text: str) -> Passes | AutoPasses | None:
    """The passes of a text such as `1-3,100,every:50`, or `auto`, or `1-1000,auto` with so many first passes; None for
    `all`. Raises ValueError for any other text."""
    if text == ALL:
        return None
    if text.endswith(AUTO) and (first_passes := first_of(text)) is not None:
        return AutoPasses(first_passes)
    ranges, steps = [], []
    for part in text.split(","):
        words, _, number = part.partition(":")
        first, _, last = part.partition("-")
        try:
            if number:
                steps.append(int(number))
            else:
                ranges.append((int(first), int(last or first)))
        except ValueError:
            raise ValueError(f"{text!r} is neither all, nor auto, nor of the form 1-3,100,every:50") from None
        if number and (words.strip() != "every" or steps[-1] < 1):
            raise ValueError(f"{part!r} is not of the form every:50")
        if not number and not 1 <= ranges[-1][0] <= ranges[-1][1]:
            raise ValueError(f"{part!r} is no range of passes: they count up from 1")
    return Passes(tuple(ranges), tuple(steps))


def first_of(text: str) -> int | None:
    """The number of first passes that are chosen by a text such as `auto`, `1-1000,auto` or
    `1-450,budget`; None for another text."""
    found = _AUTOMATIC.fullmatch(text)
    return None if found is None else int(found["first"] or FIRST)
