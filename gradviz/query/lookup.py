"""Look-ups about one trace. Their tables are forgotten when more of the trace has been read."""

from __future__ import annotations

from functools import cached_property

from gradviz.tracefile import Trace


class Lookup:
    """Look-ups by subject. A table (`cached_property`) is computed on first use from what has been read by then."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        trace.watch(self)

    def forget(self) -> None:
        """Compute all tables anew: more of the trace has been read."""
        for name in [
            name for name in self.__dict__ if isinstance(getattr(type(self), name, None), cached_property)
        ]:
            del self.__dict__[name]
