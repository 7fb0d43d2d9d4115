"""Query: what views ask of a trace. The tables about it, any moment of it, and both modes side by side."""

from __future__ import annotations

from functools import cached_property

from gradviz.query.lookups import Lookups
from gradviz.query.modes import Modes
from gradviz.query.moment import Moment


class Query(Lookups):
    """Answers about one trace."""

    def at(self, k: int) -> Moment:
        """The moment just after event k. Raises IndexError where there is no such event."""
        if not 0 <= k < self.trace.count:
            raise IndexError(f"there is no event {k}: the trace has {self.trace.count}")
        return Moment(self, k)

    @cached_property
    def modes(self) -> Modes:
        """What was differentiated forwards, and beside it what was differentiated backwards."""
        return Modes(self)
