"""Query: all questions of views about a trace."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from gradviz.query.lookups import Lookups
from gradviz.query.moment import Modes, Moment

_T = TypeVar("_T")


class Query(Lookups):
    """All look-ups about one trace, the moments of its run, and the comparison of both modes."""

    def of(self, compute: Callable[["Query"], _T]) -> _T:
        """The result of a function of this trace, computed once. While a run is recorded or read by parts, it is
        computed again when more events are known."""
        known, count = self.computed.get(compute, (None, -1))
        if count != self.trace.count:
            known = compute(self)
            self.computed[compute] = known, self.trace.count
        return known

    @cached_property
    def computed(self) -> dict[Any, tuple[Any, int]]:
        """The results of functions of this trace, each with the number of events that were known then."""
        return {}

    def at(self, k: int) -> Moment:
        """The moment just after event k. Raises IndexError if there is no such event."""
        if not 0 <= k < self.trace.count:
            raise IndexError(f"there is no event {k}: the trace has {self.trace.count}")
        return Moment(self, k)

    @cached_property
    def searches(self) -> dict[Any, Any]:
        """The unfinished search for a way between tensors (cuts.py)."""
        return {}

    @cached_property
    def modes(self) -> Modes:
        """The tangents of forward mode, paired with the gradients of reverse mode."""
        return Modes(self)
