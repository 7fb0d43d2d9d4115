"""What to call tensors and places: by the names that the source gives them, never by an address."""

from __future__ import annotations

from functools import lru_cache

from gradviz.events.kinds import Event, OpRan, TensorMade
from gradviz.tracefile import Trace


class Names:
    """The names of one trace's tensors.

    A parameter is called by its path in its module; anything else by the variable that it was first assigned to
    (`y = x ** 3`), whose name may lie in the caller (`y = model(x)`)."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._maker = lru_cache(maxsize=65536)(self._find_maker)

    def of(self, tensor: int) -> str | None:
        """The tensor's name in the source, None where it has none."""
        if tensor in self.trace.parameters:
            return self.trace.parameters[tensor]
        maker = self._maker(tensor)
        site = self.trace.sites.get(maker.site) if maker is not None else None
        if site is None or not site.names:
            return None
        if isinstance(maker, TensorMade):
            return site.names[0] if len(site.names) == 1 else None
        assert isinstance(maker, OpRan)
        if tensor not in maker.outputs:
            return None
        position = maker.outputs.index(tensor)
        if len(maker.outputs) == len(site.names):
            return site.names[position]
        return None

    def label(self, tensor: int) -> str:
        """The tensor's name, or `t` and its number."""
        return self.of(tensor) or f"t{tensor}"

    def maker(self, tensor: int) -> Event | None:
        """The event that made a tensor: a TensorMade or an OpRan; None where the trace has none."""
        return self._maker(tensor)

    def _find_maker(self, tensor: int) -> Event | None:
        born = self.trace.born(tensor)
        event = None if born is None else self.trace.event(born)
        return event if isinstance(event, (TensorMade, OpRan)) else None
