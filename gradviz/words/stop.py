"""A stop: one event and the state just after it, with words for both."""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.errors import GradvizError, nearest
from gradviz.events import kinds
from gradviz.events.kinds import Kind
from gradviz.query.chain_step import ChainStep
from gradviz.query.moment import Moment
from gradviz.query.writes import grad_changes, value_changes
from gradviz.sets import distinct
from gradviz.tracefile import Site
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import brief, compact, value
from gradviz.words.words import Words

_BACK = 2000  # the events before a moment among which a newer tensor of a name is looked for
AtNode = (kinds.Received, kinds.Produced, kinds.Accumulated, kinds.Retained, kinds.Hooked, kinds.FunctionCompared)


class Stop:
    """Event k of a trace, and the words for it. It depends only on the trace and k."""

    def __init__(self, words: Words, k: int) -> None:
        self.words = words
        self.query = words.query
        self.trace = words.trace
        self.k = k
        self.moment: Moment = self.query.at(k)
        event = self.trace.event(k)
        # steps of the chain rule, by the edge of the node of this event
        self.steps: dict[int, ChainStep] = {}
        self.event: kinds.Event = self.query.passes.with_tensors(event) if isinstance(event, kinds.PassBegan) else event

    @cached_property
    def before(self) -> Moment | None:
        """The moment before the event; None at the first."""
        return self.query.at(self.k - 1) if self.k else None

    def other(self, k: int) -> "Stop":
        """Another stop of the same trace."""
        return Stop(self.words, k)

    # --- words for what happens here

    def say(self, text: str, /, **parts: object) -> str:
        """An English text in the language of the session, with its `{parts}` filled in."""
        return self.words.say(text, **parts)

    def listed(self, parts: Iterable[str]) -> str:
        """`a`, `a and b`, `a, b and c`, in the language of the session."""
        return self.words.listed(parts)

    def event_of(self, k: int) -> str:
        """`event 12`, counted from 1."""
        return self.say("event {event}", event=k + 1)

    def called(self, tensor: int) -> str:
        """The name of a tensor."""
        return self.words.called(tensor) if tensor else self.say("a number")

    def end(self, tensor: int) -> str:
        """The name of a root or an input of a pass. For a GradientEdge the tensor may be unknown."""
        return self.called(tensor) if tensor else self.say("a GradientEdge")

    def standing(self, tensor: int) -> str:
        """The present name of a tensor: `w.grad` if it is the gradient of w."""
        owner = self.moment.owner(tensor)
        return f"{self.called(owner)}.grad" if owner else self.called(tensor)

    def value(self, tensor: int) -> str:
        """A tensor's value now, in one line."""
        return value(self.moment.value(tensor))

    def compact(self, tensor: int) -> str:
        """A tensor's value now: in full if that is short, otherwise in a few words."""
        return compact(self.moment.value(tensor))

    def brief(self, tensor: int) -> str:
        """A tensor's value now, in a few words for a sentence."""
        return brief(self.moment.value(tensor))

    def value_before(self, tensor: int) -> str:
        """A tensor's value before this event, in one line."""
        return value(self._unwritten.value(tensor))

    def brief_before(self, tensor: int) -> str:
        """A tensor's value before this event, in a few words."""
        return brief(self._unwritten.value(tensor))

    @property
    def _unwritten(self) -> Moment:
        """The moment before the write. If an op wrote through another tensor on the same memory, the moment
        before that op."""
        if isinstance(self.event, kinds.Mutated) and self.event.op > 0:
            return self.query.at(self.event.op - 1)
        return self.before or self.moment

    @cached_property
    def node(self) -> int:
        """The node of this event, which is made, receives, produces or accumulates; 0 if there is none."""
        return (
            self.event.node
            if isinstance(self.event, (*AtNode, kinds.NodeMade, kinds.KernelRan, kinds.OpMeasured))
            else 0
        )

    @cached_property
    def node_name(self) -> str:
        """The name of the node of this event."""
        return self.words.node_name(self.node)

    @cached_property
    def node_made(self) -> kinds.NodeMade | None:
        """The event that made the node of this event; None for an AccumulateGrad."""
        return self.query.nodes.event(self.node)

    @cached_property
    def node_tensors(self) -> list[int]:
        """The tensors whose gradients the node of this event receives."""
        return self.query.nodes.tensors(self.node)

    @cached_property
    def running(self) -> str:
        """The node whose backward runs this op; empty if there is none."""
        if not isinstance(self.event, kinds.OpRan) or self.moment.pass_info is None:
            return ""
        node = self.words.running(self.moment)
        return self.words.node_name(node) if node else ""

    @cached_property
    def scope(self) -> kinds.ScopeEntered | None:
        """The scope that this event enters or leaves, otherwise the scope around it."""
        scopes = self.moment.scopes
        return scopes[-1] if scopes else None

    # --- where it happened

    @cached_property
    def place(self) -> tuple[Site | None, str]:
        """The site to show for this event, and how it relates to the event."""
        number, why = self._place()
        return self.query.places.site(number), why

    def _place(self) -> tuple[int, str]:
        event = self.event
        if event.site:
            return event.site, ""
        if isinstance(event, AtNode) or (isinstance(event, (kinds.KernelRan, kinds.OpMeasured)) and event.node):
            return self._node_place()
        if (
            isinstance(event, (kinds.PassEnded, kinds.GraphsAlive, kinds.PassSummed))
            and self.moment.pass_info is not None
        ):
            return self.moment.pass_info.site, self.say("where the pass began")
        if isinstance(event, kinds.ScopeLeft) and self.scope is not None:
            return self.scope.site, self.say("where it was entered")
        if isinstance(event, kinds.Named):
            return self.query.tensors.site(event.tensor), self._made_there(self.called(event.tensor))
        return 0, ""

    def _node_place(self) -> tuple[int, str]:
        if self.node_made is not None:
            return self.node_made.site, self._made_there(self.node_name)
        tensors = self.node_tensors or [getattr(self.event, "tensor", 0)]
        return self.query.tensors.site(tensors[0]), self._made_there(self.called(tensors[0]))

    def _made_there(self, name: str) -> str:
        return self.say("where {name} was made", name=name)

    # --- the leaves

    @cached_property
    def written(self) -> list[int]:
        """The tensors that this event changed in place."""
        if isinstance(self.event, kinds.OpRan):
            return [t for t in self.event.outputs if self.query.tensors.is_written(t, self.k)]
        return [self.event.tensor] if self.event_kind == Kind.MUTATED else []  # type: ignore[attr-defined]

    @cached_property
    def touched(self) -> set[int]:
        """The tensors whose value, `.grad` or flags this event may have changed."""
        if isinstance(self.event, kinds.Named):
            return set()
        tensors = set(self.written) or {getattr(self.event, "tensor", 0)}
        if self.written or self.event_kind == Kind.ACCUMULATED:
            tensors |= {self.moment.owner(tensor) for tensor in tensors}
        tensors |= {self._shared_leaf(tensor) for tensor in self.written}
        return tensors - {0}

    def _shared_leaf(self, tensor: int) -> int:
        """The base of a view that covers all of its base; a write to either changes the other. 0 if there is none."""
        self.trace.reach_tensors([tensor])
        states = self.trace.states
        base = states.base(tensor)
        return base if base and self.query.memory.share(tensor, base, self.k) else 0

    @cached_property
    def tabled(self) -> list[int]:
        """The tensors in the table of leaves: leaves that require grad, non-leaves that retain their gradient, and
        leaves made by the program that do not require grad. If several tensors have the same name and site, only the
        newest; a `.grad` stands beside its leaf."""
        moment = self.moment
        if moment.frozen:  # newer tensors may have their names
            self.trace.reach(max(self.k - _BACK, 0), self.k + 1)
        frozen = [one for one in moment.frozen if not (self._temporary(one) or self._lost_its_name(one))]
        return moment.newest_leaves + moment.newest_retained + frozen

    def _lost_its_name(self, tensor: int) -> bool:
        """Whether the name of a tensor belongs to a newer one, or is a `.grad`, which another tensor may be by now."""
        name = self.query.names.of(tensor) or ""
        newest = self.query.names.tensor_called(name, self.k)
        born = self.trace.born(newest)
        return name.endswith(".grad") or (born is not None and tensor < newest and born <= self.k)

    def _temporary(self, tensor: int) -> bool:
        """Whether a tensor was made internally, by a backward pass or a module."""
        maker = self.query.tensors.made(tensor)
        if not isinstance(maker, kinds.OpRan):
            return isinstance(maker, kinds.TensorMade) and maker.how == "gradient"
        in_scope = bool(self.query.scopes.nesting.around(maker.index, maker.thread))
        return bool(maker.in_pass) or in_scope or "." in self.called(tensor)

    @property
    def event_kind(self) -> int:
        """The kind of the event."""
        return int(self.trace.kinds[self.k])


# Resolves `w`, `w.grad` or `t12` as typed by the user: a tensor, and whether its value or its gradient is meant.

_ELEMENT = re.compile(r"^(?P<name>.+?)\[(?P<index>[-\d\s,:]*)\]$")
_PARTS = {".grad": "grad", ".value": "value", ".data": "value", ".version": "value"}


class UnknownName(GradvizError):
    """No tensor has this name. The message is one line for the user."""


class Subject(NamedTuple):
    """A tensor, and the part of it that is meant: `value`, `grad`, or both (empty)."""

    tensor: int
    called: str
    part: str = ""

    def __str__(self) -> str:
        return self.called + (".grad" if self.part == "grad" else "")


def subject(words: Words, text: str, k: int) -> Subject:
    """The tensor that `text` names at event k: the newest tensor so far with that name, otherwise the first later
    one. Raises UnknownName if there is none."""
    text = text.strip()
    tensor = _numbered(words, text) or words.query.labels.tensor_called(text, k)
    if tensor:
        return Subject(tensor, words.called(tensor) if not text[1:].isdigit() else text)
    for ending, part in _PARTS.items():
        if text.endswith(ending):
            named = subject(words, text.removesuffix(ending), k)
            return Subject(named.tensor, named.called, part)
    name = shortened(clean(text), 40)
    raise UnknownName("no tensor is called {name}: {hint}", name=name, hint=_suggested(words, text))


def element_of(text: str) -> tuple[str, str] | None:
    """The name and the index of an element as typed: `w` and `0, 2` of `w[0, 2]`; None for a name alone."""
    element = _ELEMENT.match(text)
    return None if element is None else (element["name"], element["index"])


def _numbered(words: Words, text: str) -> int:
    if not re.fullmatch(r"[t#][0-9]{1,10}", text):
        return 0
    number = int(text[1:])
    return number if words.trace.born(number) is not None else 0


def _suggested(words: Words, name: str) -> str:
    # the names of tensors: a number may be assigned to a variable, too
    labels = words.query.names.all.labels[1:]
    # leaves out a variable whose tensor was never recorded under its name
    labels = [label for label in labels if label != name]
    if near := nearest(name.removesuffix(".grad"), labels):
        return words.say("did you mean {name}?", name=clean(near))
    some = ", ".join(clean(label) for label in labels[:8]) + (", …" if len(labels) > 8 else "")
    if not labels:
        return words.say("no tensor of this run has a name; t12 is tensor number 12")
    return words.say("known names: {names}", names=some)


def changes(words: Words, about: Subject) -> np.ndarray:
    """The events that changed the subject, in order."""
    parts = []
    if about.part != "grad":
        parts.append(value_changes(words.query, about.tensor))
    if about.part != "value":
        parts.append(grad_changes(words.query, about.tensor))
    return distinct(np.concatenate(parts))


# The phase of a run that an event belongs to: forward in a module, or a backward pass.


def phase(stop: Stop) -> str:
    """`forward` with the scope, or the backward pass."""
    backward_pass = stop.moment.pass_info
    if backward_pass is not None:
        return stop.say("backward pass {number} of {count}", number=backward_pass.number, count=stop.trace.passes_begun)
    name = stop.moment.place
    return stop.say("forward in {scope}", scope=shortened(clean(name), 30)) if name else stop.say("forward")
