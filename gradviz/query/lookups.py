"""The tables about one trace, by subject. Each is built once, on first use."""

from functools import cached_property, lru_cache

from gradviz.query.names import Labels, Names
from gradviz.query.nodes import Nodes
from gradviz.query.passes import Deliveries, Passes
from gradviz.query.places import Places
from gradviz.query.scopes import Modules, Scopes
from gradviz.query.tensors import Memory, Tensors
from gradviz.tracefile import Trace


class Lookups:
    """The tables about one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.deliveries = lru_cache(maxsize=16)(self._deliveries)

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors: their states, and the events that made and changed them."""
        return Tensors(self.trace)

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes: the ops that made them, and their edges."""
        return Nodes(self.trace)

    @cached_property
    def memory(self) -> Memory:
        """The tensors that share memory."""
        return Memory(self.trace)

    @cached_property
    def places(self) -> Places:
        """The sites of events in the source."""
        return Places(self.trace)

    @cached_property
    def scopes(self) -> Scopes:
        """The modules and custom Functions around events."""
        return Scopes(self.trace)

    @cached_property
    def modules(self) -> Modules:
        """The modules as wholes, by the names of their parameters."""
        return Modules(self.trace, self.tensors, self.places)

    @cached_property
    def passes(self) -> Passes:
        """The backward passes."""
        return Passes(self.trace, self.nodes)

    @cached_property
    def names(self) -> Names:
        """The names of tensors in the source."""
        return Names(self.trace, self.tensors, self.scopes)

    @cached_property
    def labels(self) -> Labels:
        """The names of all tensors, with and without a name in the source."""
        return Labels(self.names, self.nodes, self.passes, self.places, self.scopes)

    @cached_property
    def exact_labels(self) -> Labels:
        """The names of tensors in code that is typed: `t12` where the expression is too long for a name."""
        return Labels(self.names, self.nodes, self.passes, self.places, self.scopes, is_exact=True)

    def _deliveries(self, number: int) -> Deliveries:
        """The gradients that moved from node to node in a pass."""
        run = self.trace.find_pass(number)
        assert run is not None
        return Deliveries(self.trace, self.nodes, run)
