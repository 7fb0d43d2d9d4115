"""The events as objects: what a reader of a trace gets.

They exist only when somebody reads them; while a program runs, a source calls `Listener` with raw values. Fields
are numbers and names as `Listener` describes them; `index` is the event's place in time, from 0; `site` is a
number of the trace's table of sites, 0 where the event has no place of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gradviz.events.listener import LEAF, REQUIRES_GRAD


class Kind(IntEnum):
    """What can happen. The values are part of the file format: append, never renumber."""

    TENSOR = 1
    OP = 2
    MUTATED = 3
    REQUIRES_GRAD_CHANGED = 4
    GRAD_ASSIGNED = 5
    NAMED = 6
    SCOPE_ENTERED = 7
    SCOPE_LEFT = 8
    PASS_BEGAN = 9
    RECEIVED = 10
    PRODUCED = 11
    ACCUMULATED = 12
    RETAINED = 13
    HOOKED = 14
    PASS_ENDED = 15
    TANGENT = 16
    STEPPED = 17
    ERROR = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have."""

    index: int
    thread: int
    site: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMade(Event):
    """A tensor came to be other than by an op."""

    tensor: int
    how: str
    flags: int
    base: int

    @property
    def is_leaf(self) -> bool:
        """Whether it is a leaf."""
        return bool(self.flags & LEAF)

    @property
    def requires_grad(self) -> bool:
        """Whether it requires grad."""
        return bool(self.flags & REQUIRES_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRan(Event):
    """An op ran; `node` is 0 where it recorded none."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    args: str
    flags: int
    node: int
    grad_fn: str
    edges: tuple[tuple[int, int], ...]
    saved: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated(Event):
    """A tensor's value was written over; `source` is the tensor whose value it took, or 0."""

    tensor: int
    how: str
    version: int
    source: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiresGradChanged(Event):
    """`requires_grad_()`, `detach_()` or an assignment changed a tensor's flags."""

    tensor: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradAssigned(Event):
    """`.grad` was assigned; `grad` is 0 for None."""

    tensor: int
    grad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Event):
    """A tensor got a name."""

    tensor: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEntered(Event):
    """A module or custom Function was entered; `kind` says which."""

    scope: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeLeft(Event):
    """A scope was left."""

    scope: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBegan(Event):
    """A backward pass began."""

    number: int
    how: str
    roots: tuple[int, ...]
    root_tensors: tuple[int, ...]
    gradients: tuple[int, ...]
    inputs: tuple[int, ...]
    retain_graph: bool
    create_graph: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Event):
    """A node was given the gradients of its outputs and is about to run."""

    node: int
    grad_fn: str
    gradients: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced(Event):
    """A node has run; `gradients[i]` goes to node `targets[i]`, 0 where none does."""

    node: int
    targets: tuple[int, ...]
    gradients: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated(Event):
    """A leaf's `.grad` took in `gradient`; it is tensor `grad`."""

    tensor: int
    node: int
    gradient: int
    grad: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained(Event):
    """A non-leaf kept its gradient: its `.grad` is tensor `grad`."""

    tensor: int
    node: int
    grad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooked(Event):
    """A hook replaced gradient `before` by `after`."""

    tensor: int
    node: int
    hook: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded(Event):
    """A backward pass is over."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TangentPushed(Event):
    """Forward mode: a tensor got a tangent."""

    tensor: int
    tangent: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Event):
    """An optimizer is about to step."""

    optimizer: str
    args: str
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised(Event):
    """An exception left a backward pass at `node`, or ended the program (node 0)."""

    type: str
    message: str
    node: int
