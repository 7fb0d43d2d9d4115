"""The backward passes that are recorded in detail."""

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Sequence
from typing import NamedTuple

AUTO = "auto"
NAN, JUMP = "nan", "jump"  # why passes behind a pass are chosen, by its numbers
FIRST = 10  # the passes with which such a choice begins
BEHIND_TROUBLE = 3
_MOST_TROUBLES = 8  # of each kind
_JUMP = 10  # so many times the median is a jump
_REMEMBERED = 64  # sizes of which it is the median
_LEAST = 10
_AUTOMATIC = re.compile(rf"(1-(?P<first>[1-9][0-9]{{0,14}}),)?{AUTO}")


class Passes(NamedTuple):
    """Passes by their numbers, from 1: those in `ranges` (first and last), and the multiples of `steps`."""

    ranges: tuple[tuple[int, int], ...]
    steps: tuple[int, ...] = ()

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        return any(low <= number <= high for low, high in self.ranges) or any(
            number % step == 0 for step in self.steps
        )

    def __str__(self) -> str:
        ranges = [f"{low}-{high}" for low, high in self.ranges]
        return ",".join([*ranges, *(f"every:{step}" for step in self.steps)])


class AutoPasses:
    """Passes that are chosen while a program runs: the `first`, and then ever fewer, those whose number has one digit
    that is not 0 (20, 30, ... 100, 200, ... 1,000); and some behind each trouble. A run asks for its passes one after
    the other."""

    def __init__(self, first: int = FIRST) -> None:
        self.first = first
        self.closely_until = 0  # the last pass that is chosen because of trouble
        self.troubles = {NAN: 0, JUMP: 0}  # an exception counts as a jump
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
        if not isinstance(number, int):
            return False
        return number <= max(self.first, self.closely_until) or is_regular(number)

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
            if is_new and self._look_closely(NAN, passes_begun if behind is None else behind):
                self.last_by_values = passes_begun
            self.was_bad = is_bad

    def summed(self, loss: float | None, norm: float, passes_begun: int) -> str:
        """Note the loss and the norm of a pass (None and −1 where they are not known). Returns why the passes behind it
        are chosen: `nan`, `jump`, or nothing."""
        numbers = [loss] if loss is not None else []
        if norm >= 0 or math.isnan(norm):
            numbers.append(norm)
        is_bad = not all(map(math.isfinite, numbers))
        jumps = [
            of.takes(abs(number))
            for of, number in ((self.losses, loss), (self.norms, norm))
            if number is not None and math.isfinite(number) and number != -1
        ]
        was_bad, self.has_bad_numbers = self.has_bad_numbers, is_bad
        is_trouble = not was_bad if is_bad else any(jumps)
        if not is_trouble:
            return ""
        why = NAN if is_bad else JUMP
        is_chosen = passes_begun == self.last_by_values or self._look_closely(why, passes_begun)
        return why if is_chosen else ""

    def foresees(self, loss: float) -> bool:
        """Whether the pass that begins from this loss is trouble."""
        if math.isfinite(loss):
            return self.losses.is_jump(abs(loss)) and self.troubles[JUMP] < _MOST_TROUBLES
        return not self.has_bad_numbers and self.troubles[NAN] < _MOST_TROUBLES

    def failed(self, passes_begun: int) -> None:
        """Note that an exception was raised."""
        self._look_closely(JUMP, passes_begun)

    def _look_closely(self, why: str, passes_begun: int) -> bool:
        """Choose the passes behind the present one, unless this was done so often, or is so already."""
        if self.troubles[why] >= _MOST_TROUBLES or passes_begun <= self.closely_until:
            return False
        self.troubles[why] += 1
        self.closely_until = passes_begun + BEHIND_TROUBLE
        return True


def is_regular(number: int) -> bool:
    """Whether a pass is chosen whatever happens, behind the first: its number has one digit that is not 0."""
    return len(str(number).rstrip("0")) == 1


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
        known = sorted(self.last)
        return len(known) >= _LEAST and size > _JUMP * known[len(known) // 2] > 0


def passes_of(text: str) -> Passes | AutoPasses:
    """The passes of a text such as `1-3,100,every:50`, or `auto`, or `1-1000,auto` with so many first passes. Raises
    ValueError for any other text."""
    if (first_passes := first_of(text)) is not None:
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
            raise ValueError(f"{text!r} is neither auto nor of the form 1-3,100,every:50") from None
        if number and (words.strip() != "every" or steps[-1] < 1):
            raise ValueError(f"{part!r} is not of the form every:50")
        if not number and not 1 <= ranges[-1][0] <= ranges[-1][1]:
            raise ValueError(f"{part!r} is no range of passes: they count up from 1")
    return Passes(tuple(ranges), tuple(steps))


def first_of(text: str) -> int | None:
    """The number of first passes that are chosen by a text such as `auto` or `1-1000,auto`; None for another text."""
    found = _AUTOMATIC.fullmatch(text)
    return None if found is None else int(found["first"] or FIRST)


def chosen_text(passes: Container[int] | Passes | AutoPasses) -> str:
    """How a choice of passes is noted in a trace: as its option, or as `chosen` where it was no option."""
    return str(passes) if isinstance(passes, (Passes, AutoPasses)) else "chosen"
