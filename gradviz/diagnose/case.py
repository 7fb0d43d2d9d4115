"""Case: one trace, with the answers that rules share."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from gradviz.diagnose.finding import ERROR, NOTE
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.kinds import Kind
from gradviz.query.failures import Failure, failures
from gradviz.query.flow import Downstream
from gradviz.query.query import Query
from gradviz.query.training import Training
from gradviz.tracefile import Site, Trace
from gradviz.tracefile.columns import Table
from gradviz.words.escape import clean
from gradviz.words.numbers import NAMED, few_of, plural
from gradviz.words.words import Words

_T = TypeVar("_T")


class Case:
    """One trace: its look-ups, its words, and the results that several rules need, each computed once."""

    def __init__(self, trace: Trace, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.trace = trace
        self.words = Words(trace, is_exact=True)  # cures are typed
        self.query: Query = self.words.query
        self._known: dict[object, Any] = {}

    def of(self, compute: Callable[["Case"], _T]) -> _T:
        """The result of `compute` for this case, computed once for all rules."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        return self._known[compute]

    @cached_property
    def training(self) -> Training:
        """The steps, and the lives of gradients."""
        return self.query.of(Training)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """A tensor's shape; that of a number if it is not known."""
        return self.query.tensors.shape(tensor) or ()

    @cached_property
    def recorded(self) -> tuple[int, int] | None:
        """How many passes were recorded in detail, and how many ran; None if no pass was left out by a choice."""
        of_run = self.trace.passes_in_detail, self.trace.passes_begun
        is_chosen = not {"passes", "last"}.isdisjoint(self.trace.meta)
        return of_run if is_chosen and of_run[0] < of_run[1] else None

    def passes_called(self, count: int) -> str:
        """So many passes of those that were recorded in detail: `5 passes`; or, where others were left out, `the 14
        passes recorded of 1,500`, `5 of the 14 passes recorded of 1,500`."""
        if self.recorded is None:
            return plural(count, "pass", "passes")
        recorded, of_run = self.recorded
        those = f"the {plural(recorded, 'pass', 'passes')} recorded of {of_run:,}"
        return f"{count:,} of {those}" if count < recorded else those

    def calls_called(self, count: int) -> str:
        """So many calls in passes that were recorded: `8 calls`, or `8 recorded calls` where others were left out."""
        return f"{count:,} recorded calls" if self.recorded is not None else f"{count:,} calls"

    def at_least(self, count: int) -> str:
        """So many times of what may have happened in each pass: `19`, or `at least 19` where passes were left out."""
        return f"{'at least ' * (self.recorded is not None)}{count:,}"

    @cached_property
    def failures(self) -> list[Failure]:
        """The exceptions that left a backward pass or ended the program."""
        return failures(self.query)

    def severity_of(self, failure: Failure) -> str:
        """The severity of an exception: a note if the program caught it, since it may be meant; else an error."""
        return NOTE if failure.handled else ERROR

    @cached_property
    def is_lesson(self) -> bool:
        """Whether a program has a single pass and trains nothing. Such a program may show a gradient of 0 on
        purpose."""
        trains = self.training.trained or self.training.holders
        return len(self.trace.passes) == 1 and not trains

    @cached_property
    def downstream(self) -> Downstream:
        """The ops that read each tensor."""
        return self.query.of(Downstream)

    @property
    def scheduled(self) -> Table:
        """The events of learning-rate schedulers, without those at their making."""
        return self.trace.table(Kind.SCHEDULED)

    def site(self, event: int) -> int:
        """The site of an event; for the event of a node, the site where the node was made."""
        return int(self.query.places.of_events[event])

    def place(self, event: int | None) -> Site | None:
        """The place in the source of an event, as `site` has it; None if it is unknown, or for no event."""
        return None if event is None else self.query.places.site(self.site(event))

    def called(self, tensors: Iterable[int]) -> str:
        """The names of tensors: `w and b`, `net.head (6 parameters)`, or `w, b, c, d and 3 more`."""
        given = list(tensors)
        names = list(dict.fromkeys(self.words.called(tensor) for tensor in given))
        if len(names) > NAMED:
            names = [name for path, leaves in self.query.modules.whole(given) for name in self._whole(path, leaves)]
        return few_of(names)

    def _whole(self, path: str, leaves: list[int]) -> list[str]:
        if path and len(leaves) > 1:
            return [f"{clean(path)} ({len(leaves):,} parameters)"]
        return [self.words.called(leaf) for leaf in leaves]

    def model_of(self, leaf: int) -> str:
        """The variable that holds the module of a parameter; empty for any other tensor."""
        return self.trace.parameters.get(leaf, "").partition(".")[0]

    def at(self, event: int) -> str:
        """The line of an event: `line 12`; empty if it is unknown."""
        site = self.place(event)
        return "" if site is None else f"line {site.place.line}"

    def first_of_sites(self, events: np.ndarray) -> list[int]:
        """The first of these events at each site, in order."""
        _, first = np.unique(self.trace.events["site"][events], return_index=True)
        return np.sort(events[first]).tolist()

    def by_site(self, events: np.ndarray) -> dict[int, np.ndarray]:
        """Events by their sites, in the order of their first events."""
        sites = self.trace.events["site"][events]
        found, first = np.unique(sites, return_index=True)
        return {int(found[i]): events[sites == found[i]] for i in np.argsort(first)}
