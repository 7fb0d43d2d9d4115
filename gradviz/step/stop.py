"""One stop of the stepper: an event and the moment just after it."""

from __future__ import annotations

from functools import cached_property

from gradviz.events.kinds import (
    Accumulated,
    Event,
    Hooked,
    Kind,
    Named,
    OpRan,
    PassEnded,
    Produced,
    Received,
    Retained,
    ScopeEntered,
    ScopeLeft,
    TensorMade,
)
from gradviz.graph.moment import Moment
from gradviz.step.facts import Facts
from gradviz.step.numbers import brief, value
from gradviz.tracefile import Site

_COMPACT = 30  # characters
AtNode = (Received, Produced, Accumulated, Retained, Hooked)


class Stop:
    """Event k of a trace, and what is to be said of it. The same for the same k, however one came to it."""

    def __init__(self, facts: Facts, k: int) -> None:
        self.facts = facts
        self.k = k
        self.moment: Moment = facts.moments.at(k)
        self.before: Moment | None = facts.moments.at(k - 1) if k else None
        self.event: Event = facts.trace.event(k)

    # --- words for what happens here

    def called(self, tensor: int) -> str:
        """What a tensor is called."""
        return self.facts.called(tensor) if tensor else "a number"

    def end(self, tensor: int) -> str:
        """What a tensor is called that a pass begins at, or ends at; the trace may know none at a GradientEdge."""
        return self.called(tensor) if tensor else "a GradientEdge"

    def standing(self, tensor: int) -> str:
        """What a tensor is called now: `w.grad` where it is that."""
        owner = self.moment.owner(tensor)
        return f"{self.called(owner)}.grad" if owner else self.called(tensor)

    def value(self, tensor: int) -> str:
        """A tensor's value now, in one line."""
        return value(self.moment.value(tensor))

    def compact(self, tensor: int) -> str:
        """A tensor's value now, at full length where that is short."""
        full = self.value(tensor)
        return full if len(full) <= _COMPACT else self.brief(tensor)

    def brief(self, tensor: int) -> str:
        """The same in a few words, for a sentence."""
        return brief(self.moment.value(tensor))

    def value_before(self, tensor: int) -> str:
        """A tensor's value before this event, in one line."""
        return value((self.before or self.moment).value(tensor))

    def brief_before(self, tensor: int) -> str:
        """The same in a few words."""
        return brief((self.before or self.moment).value(tensor))

    @cached_property
    def node(self) -> int:
        """The node that this event is about: it receives, produces or accumulates; 0 for none."""
        return self.event.node if isinstance(self.event, AtNode) else 0

    @cached_property
    def node_name(self) -> str:
        """That node's name."""
        return self.facts.node_name(self.node, self.moment)

    @cached_property
    def node_tensors(self) -> list[int]:
        """The tensors whose gradients that node receives."""
        return self.facts.tensors_of(self.node, self.moment)

    @cached_property
    def running(self) -> str:
        """The node inside whose backward this op runs, empty for none."""
        if not isinstance(self.event, OpRan) or self.moment.pass_info is None:
            return ""
        found = self.facts.running(self.moment)
        return "" if found is None else self.facts.node_name(found.node, self.moment)

    @cached_property
    def scope(self) -> ScopeEntered | None:
        """The scope that this event enters or leaves, or else lies in."""
        scopes = self.moment.scopes
        return scopes[-1] if scopes else None

    # --- where it happened

    @cached_property
    def place(self) -> tuple[Site | None, str]:
        """The place in the source to show, and what it is to the event."""
        number, why = self._place()
        return self.facts.site(number), why

    def _place(self) -> tuple[int, str]:
        event = self.event
        if event.site:
            return event.site, ""
        if isinstance(event, AtNode):
            return self._node_place()
        if isinstance(event, PassEnded) and self.moment.pass_info is not None:
            return self.moment.pass_info.site, "where the pass began"
        if isinstance(event, ScopeLeft) and self.scope is not None:
            return self.scope.site, "where it was entered"
        if isinstance(event, Named):
            return self._made_at(event.tensor), f"where {self.called(event.tensor)} was made"
        return 0, ""

    def _node_place(self) -> tuple[int, str]:
        op = self.facts.op_of(self.node)
        if op is not None:
            return op.site, f"where {self.node_name} was made"
        tensors = self.node_tensors or [getattr(self.event, "tensor", 0)]
        return self._made_at(tensors[0]), f"where {self.called(tensors[0])} was made"

    def _made_at(self, tensor: int) -> int:
        maker = self.facts.names.maker(tensor)
        return maker.site if maker is not None else 0

    # --- the leaves

    @cached_property
    def touched(self) -> set[int]:
        """The tensors whose value, `.grad` or flags this event may have changed."""
        tensor = getattr(self.event, "tensor", 0) if not isinstance(self.event, Named) else 0
        owner = self.moment.owner(tensor) if self.event_kind in (Kind.MUTATED, Kind.ACCUMULATED) else 0
        return {tensor, owner, self._shared_leaf(tensor)} - {0}

    def _shared_leaf(self, tensor: int) -> int:
        """The tensor that `tensor` is a view of the whole of, where a write to one is a write to both."""
        maker = self.facts.names.maker(tensor) if self.event_kind == Kind.MUTATED else None
        base = (
            maker.base
            if isinstance(maker, TensorMade)
            else maker.inputs[0]
            if isinstance(maker, OpRan)
            else 0
        )
        return base if base and self.facts.moments.memory.share(tensor, base, self.k) else 0

    @cached_property
    def tabled(self) -> list[int]:
        """The tensors to be told of beside the event: leaves that require grad, retained non-leafs, then leaves that
        do not require grad and that the program made for use. The newest of those made by one name at one place."""
        moment = self.moment
        frozen = [tensor for tensor in moment.frozen if not self._temporary(tensor)]
        return moment.newest_leaves + moment.newest_retained + frozen

    def _temporary(self, tensor: int) -> bool:
        """Whether a tensor is one of a backward's or a module's own making."""
        maker = self.facts.names.maker(tensor)
        if not isinstance(maker, OpRan):
            return isinstance(maker, TensorMade) and maker.how == "gradient"
        moment = self.facts.moments.at(maker.index)
        return moment.pass_info is not None or bool(moment.scopes) or "." in self.called(tensor)

    @property
    def event_kind(self) -> int:
        """The kind of the event."""
        return int(self.facts.trace.kinds[self.k])
