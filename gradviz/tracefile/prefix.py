"""A trace as it would be if the run had stopped after event k."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradviz.tracefile.pass_info import ErrorInfo, PassInfo
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.states import States


class Prefix(Trace):
    """The first events of a trace, up to `last`. Names and places are those of the whole. It shares the file of the
    trace that it was cut from, which has to stay open."""

    def __init__(self, trace: Trace, last: int) -> None:
        super().__init__(trace.path, trace._connection)
        self.whole, self.count = trace, min(last + 1, trace.count)

    @cached_property
    def events(self) -> np.ndarray:
        """The first events of the whole."""
        return self.whole.events[: self.count]

    @cached_property
    def _link_ends(self) -> np.ndarray:
        return self.whole._link_ends

    def _load_links(self, chunk: int) -> np.ndarray:
        return self.whole._links_of(chunk)

    @cached_property
    def states(self) -> States:
        """The states of the whole up to here."""
        return self.whole.states.until(self.count)

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The passes that have begun; a pass that has not ended yet has no last event."""
        begun = [backward_pass for backward_pass in self.whole.passes if backward_pass.first < self.count]
        return [
            backward_pass
            if backward_pass.last is not None and backward_pass.last < self.count
            else backward_pass._replace(last=None, nodes=None, digest=None)
            for backward_pass in begun
        ]

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The errors so far."""
        return [error for error in self.whole.errors if error.event < self.count]
