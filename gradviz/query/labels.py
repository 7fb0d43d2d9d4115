"""What a tensor is called, in every view: its name in the source, else the expression that made it, else whose
gradient, `.grad` or tangent it is, else `t` and its number."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.kinds import Kind, OpRan, PassBegan, Produced, Received, TensorMade
from gradviz.query.lookup import Lookup
from gradviz.query.names import Names
from gradviz.query.nodes import Nodes
from gradviz.query.passes import Passes
from gradviz.query.places import Places
from gradviz.sets import contained

LONGEST = 32  # an expression up to this long may serve as the name of its result


class Labels(Lookup):
    """What the tensors of one trace are called."""

    def __init__(self, names: Names, nodes: Nodes, passes: Passes, places: Places) -> None:
        self.names, self.nodes, self.passes, self.places = names, nodes, passes, places
        super().__init__(names.trace)
        self.tensors = names.tensors
        self.of = lru_cache(maxsize=4096)(self._of)
        self._text = lru_cache(maxsize=None)(self._expression)

    def _of(self, tensor: int) -> str:
        name = self.names.of(tensor)
        if name is not None:
            return name
        maker = self.tensors.made(tensor)
        text = self._text(maker.site) if isinstance(maker, OpRan) and len(maker.outputs) == 1 else ""
        if text:
            return text
        differentiated = self._differentiated(tensor)
        if differentiated:
            return f"gradient of {self._older(differentiated, tensor)}"
        owner, part = self._held.get(tensor, (0, ""))
        if not owner:
            return f"t{tensor}"
        return f"{self._older(owner, tensor)}.{part}"

    def _older(self, tensor: int, than: int) -> str:
        """What a tensor is called; one that is not older than another is not asked whose gradient it is, which may be
        that of the other (in a damaged trace, its own)."""
        return self.of(tensor) if tensor < than else self.names.of(tensor) or f"t{tensor}"

    @cached_property
    def _held(self) -> dict[int, tuple[int, str]]:
        """The tensors that are the `.grad` of an older one at any time, or the tangent of one: of which, and what."""
        found: dict[int, tuple[int, str]] = {}
        for log, part in ((self.tensors.tangents, "tangent"), (self.tensors.grads, "grad")):
            pairs = zip(log.values[::-1].tolist(), log.tensors[::-1].tolist(), strict=True)
            found.update({held: (owner, part) for held, owner in pairs if held > owner or part == "tangent"})
        return found

    def _expression(self, site: int) -> str:
        """The expression at a site where one op runs, if it is short; else empty."""
        text = self.places.expression(site) if site in self.places.of_one_op else ""
        return text if len(text) <= LONGEST else ""

    def _differentiated(self, gradient: int) -> int:
        """The tensor whose gradient `gradient` is; 0 if it is not a gradient."""
        born = self.trace.born(gradient)
        event = None if born is None else self.trace.event(born)
        if isinstance(event, TensorMade) and event.how == "gradient":
            self.trace.reach(*range(event.index, min(event.index + 64, self.trace.count)))
            following = np.flatnonzero(self.trace.kinds[event.index : event.index + 64] == Kind.PASS_BEGAN)
            event = self.trace.event(event.index + int(following[0])) if len(following) else None
        if isinstance(event, PassBegan):
            roots = self.passes.with_tensors(event).roots
            return next((root.tensor for root in roots if root.gradient == gradient), 0)
        if isinstance(event, Received):
            given = zip(self.nodes.tensors(event.node), event.gradients, strict=False)
            return next((tensor for tensor, came in given if came == gradient), 0)
        if isinstance(event, Produced):
            along = zip(self.nodes.edges(event.node), event.flows, strict=False)
            return next((edge.tensor for edge, flow in along if flow.gradient == gradient), 0)
        return 0

    def tensor_called(self, text: str, k: int) -> int:
        """The newest tensor called so at event k, else the first later one; 0 if there is none."""
        named = self.names.tensor_called(text, k)
        if named or not text or len(text) > LONGEST:
            return named
        sites = [number for number in self.trace.sites if self._text(number) == text]
        table = self.trace.table(Kind.OP)
        made = table.events[contained(table.sites, sites)]
        until = int(np.searchsorted(made, k, side="right"))
        candidates = (*made[:until][::-1].tolist(), *made[until:].tolist())
        outputs = (tensor for event in candidates for tensor in self.tensors.op(event).outputs)
        return next((tensor for tensor in outputs if self.of(tensor) == text), 0)
