"""The table of events: every kind of event that a trace can hold, with its typed fields, declared once.

Packing (`event_layout.py`), decoding, the columns that `query` reads and the table in docs/trace-format.md derive from
it. An event exists as an object only when somebody reads it; while a program runs, a source calls a `Listener`.

Numbers of tensors, nodes, passes and scopes count up from 1; 0 stands for "none". Gradients and tangents are
tensors. The state of a tensor at an event (shape, dtype, flags, version, value) is no field of the event: it is a
`State` beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar, dataclass_transform

from gradviz.events.field_types import (
    Counts,
    EarlierEvent,
    Edges,
    Flag,
    Flows,
    Gradient,
    Gradients,
    Groups,
    LivingNodes,
    NodeNumber,
    Number,
    PassNumber,
    Real,
    Roots,
    RuleOf,
    SavedTensors,
    Scope,
    Tangent,
    Tensor,
    Tensors,
    Text,
    Time,
    told,
)

# The flags of a tensor's state.
LEAF = 1
REQUIRES_GRAD = 2
VIEW = 4  # it shares the memory of its base
WHOLE = 8  # a view of all elements of its base, in their order
COMPILED = "compiled"  # the name of code whose ops are not seen: as an op, and as the writer of a tensor
# The writer of a tensor that was written to in passes during which nothing was watched.
UNWATCHED = "unwatched"


class Kind(IntEnum):
    """The kinds of events. The values are part of the file format: append, never renumber."""

    TENSOR = 1
    OP = 2
    NODE = 3
    MUTATED = 4
    REQUIRES_GRAD_CHANGED = 5
    GRAD_ASSIGNED = 6
    GRADS_CLEARED = 7
    NAMED = 8
    SCOPE_ENTERED = 9
    SCOPE_LEFT = 10
    PASS_BEGAN = 11
    RECEIVED = 12
    PRODUCED = 13
    ACCUMULATED = 14
    RETAINED = 15
    HOOKED = 16
    PASS_ENDED = 17
    TANGENT = 18
    STEPPED = 19
    SCHEDULED = 20
    ALIVE = 21
    ERROR = 22
    HOLDS = 23
    GRAD_READ = 24
    CLIPPED = 25
    KERNEL = 26
    COMPARED = 27
    COLLECTIVE = 28
    MEASURED = 29
    KEPT = 30
    CALLED = 31
    BINNED = 32
    SUMMED = 33
    STEP_SUMMED = 34
    NUMBER_READ = 35
    STORAGE_SAVED = 36


TIED = "tied"  # the role of a further name of a parameter

_Made = TypeVar("_Made")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _unchanging(cls: type[_Made]) -> type[_Made]:
    """A dataclass whose fields cannot be assigned, according to mypy. The code that `frozen=True` generates would take
    a tenth of the time in which the command line starts."""
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)


@_unchanging
class Event:
    """The fields of all events: the place in time from 0, the thread, and the number of the site (0: none)."""

    index: int
    thread: int
    site: int

    def _fields(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(tuple(self._fields().values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields().items())
        return f"{type(self).__name__}({fields})"


EVENTS: dict[Kind, type[Event]] = {}
DETAILS: set[Kind] = set()  # the kinds that are left out of a pass that is not recorded in detail
_Event = TypeVar("_Event", bound=Event)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def declared(kind: Kind, detail: bool = False) -> Callable[[type[_Event]], type[_Event]]:
    """Put an event class into the table. `detail` says that it is left out of passes not recorded in detail."""

    def declare(cls: type[_Event]) -> type[_Event]:
        made = _unchanging(cls)
        EVENTS[kind] = made
        if detail:
            DETAILS.add(kind)
        return made

    return declare


# --- forward


@declared(Kind.TENSOR)
class TensorMade(Event):
    """A tensor was made other than by an op."""

    tensor: Tensor = told("the tensor")
    how: Text = told(
        "its maker: `ones`, `Parameter`, `gradient`; `earlier` for one from before the recording, `torch.func` for "
        "one that stands for the source inside a transform, or that is the source as the transform returns it"
    )
    source: Tensor = told("the tensor that it was copied or made from, 0 for none")


@declared(Kind.OP, detail=True)
class OpRan(Event):
    """An op ran. An op in place has its tensor among the outputs, at a new version."""

    op: Text = told("its name: `add`, `linear`, `add_`")
    args: Text = told("the arguments that are no tensors, as a person would write them")
    rule: RuleOf = told("the formulas of its derivatives, one for each input")
    in_pass: PassNumber = told("the backward pass that it ran in, 0 for none")
    grad_enabled: Flag = told("whether grad mode was on")
    inputs: Tensors = told("its inputs, 0 for a number")
    outputs: Tensors = told("what it made or wrote over")


@declared(Kind.NODE, detail=True)
class NodeMade(Event):
    """A node was made. An op makes none, one or several."""

    node: NodeNumber = told("the node")
    grad_fn: Text = told("its name: `MulBackward0`")
    op: EarlierEvent = told("the event of the op that made it, −1 for none")
    rule: RuleOf = told("the formulas of its derivatives, one for each edge")
    outputs: Tensors = told("the tensors that it is the `grad_fn` of, by output number; 0 for one unseen")
    edges: Edges = told("its `next_functions`, each with the tensor whose gradient goes there")
    saved: SavedTensors = told("the saved tensors, each with the version it had")


@declared(Kind.MUTATED)
class Mutated(Event):
    """A tensor's value was changed in place, but not by an op on it: by an optimizer, through `.data`, or by an op on a
    tensor that shares its memory."""

    tensor: Tensor = told("the tensor")
    how: Text = told("the writer: `SGD`, `data`, `copy_`")
    source: Tensor = told("the tensor whose value it took or through which it was written, 0 for none")
    in_pass: PassNumber = told("the backward pass that it was written in, 0 for none")
    op: EarlierEvent = told("the event of the op that wrote it through `source`, −1 for none")


@declared(Kind.REQUIRES_GRAD_CHANGED)
class RequiresGradChanged(Event):
    """`requires_grad_()`, `detach_()` of a leaf, or an assignment changed a tensor's flags. A result of an op that is
    detached in place goes on as another tensor, on the same memory."""

    tensor: Tensor = told("the tensor")


@declared(Kind.GRAD_ASSIGNED)
class GradAssigned(Event):
    """`.grad` was assigned. Without a site it was assigned before the recording, and is emitted with the leaf."""

    tensor: Tensor = told("the tensor")
    grad: Gradient = told("the tensor that its `.grad` is now, 0 for None")


@declared(Kind.GRAD_READ)
class GradRead(Event):
    """`.grad` of a non-leaf that does not retain its gradient was read: it is None."""

    tensor: Tensor = told("the tensor")


@declared(Kind.NUMBER_READ, detail=True)
class NumberRead(Event):
    """The program read numbers out of a tensor that depends on a leaf that requires grad. What it computes from them
    has no graph. A tensor depends on a leaf also where grad mode is off, and behind `detach()` or a comparison."""

    tensor: Tensor = told("the tensor")
    how: Text = told(
        "the function: `item`, `tolist`, `numpy`; `float`, `int`, `bool` for a conversion, `bool` also for an `if`"
    )


@declared(Kind.GRADS_CLEARED)
class GradsCleared(Event):
    """`zero_grad()` of an optimizer or a module was called; the changes themselves follow."""

    how: Text = told("whose: the class of the optimizer or module")
    to_none: Flag = told("whether gradients become None, not zero")
    tensors: Tensors = told("the tensors whose gradients are cleared")


@declared(Kind.NAMED)
class Named(Event):
    """A tensor got a name: a parameter's path, which begins with the variable that holds the module."""

    tensor: Tensor = told("the tensor")
    name: Text = told("its name: `net.0.weight`")
    role: Text = told("`parameter`, `buffer`, `tied` (a further name of one), or empty for a plain variable")


@declared(Kind.SCOPE_ENTERED, detail=True)
class ScopeEntered(Event):
    """A module's forward, or a custom Function's, was entered."""

    scope: Scope = told("the number of this visit")
    kind: Text = told("`module` or `function`")
    name: Text = told("the module's path, or the Function's name")
    type: Text = told("its class")
    training: Flag = told("whether the module is in training mode")


@declared(Kind.SCOPE_LEFT, detail=True)
class ScopeLeft(Event):
    """A scope was left, by return or by exception."""

    scope: Scope = told("the number of the visit")


@declared(Kind.TANGENT, detail=True)
class TangentPushed(Event):
    """Forward mode: a tensor got a tangent."""

    tensor: Tensor = told("the tensor")
    tangent: Tangent = told("its tangent")
    how: Text = told("`make_dual`, or the op that it was pushed through")


# --- backward


@declared(Kind.PASS_BEGAN)
class PassBegan(Event):
    """A backward pass began."""

    number: PassNumber = told("the pass")
    how: Text = told("`backward` (leaves accumulate) or `grad`")
    time: Time = told("seconds since 1970")
    retain_graph: Flag = told("whether the buffers are kept")
    create_graph: Flag = told("whether the pass itself can be differentiated")
    roots: Roots = told("where it begins, and with which gradients")
    inputs: Tensors = told("the tensors whose gradients are asked for, none for all leaves")


@declared(Kind.RECEIVED, detail=True)
class Received(Event):
    """A node was given the sums of the gradients of its outputs, and is about to run."""

    node: NodeNumber = told("the node")
    grad_fn: Text = told("its name")
    in_pass: PassNumber = told("the pass")
    gradients: Gradients = told("one for each output, 0 where none came")


@declared(Kind.PRODUCED, detail=True)
class Produced(Event):
    """A node has run."""

    node: NodeNumber = told("the node")
    in_pass: PassNumber = told("the pass")
    flows: Flows = told("for each edge the node that it leads to, and the gradient that goes there")


@declared(Kind.ACCUMULATED)
class Accumulated(Event):
    """A leaf's `.grad` accumulated a gradient."""

    tensor: Tensor = told("the leaf")
    node: NodeNumber = told("its AccumulateGrad")
    in_pass: PassNumber = told("the pass, 0 for a gradient from before the recording")
    gradient: Gradient = told("what came")
    grad: Gradient = told("the tensor that `.grad` is now")


@declared(Kind.RETAINED, detail=True)
class Retained(Event):
    """A non-leaf that called `retain_grad()` kept its gradient."""

    tensor: Tensor = told("the tensor")
    node: NodeNumber = told("its node")
    in_pass: PassNumber = told("the pass")
    grad: Gradient = told("the tensor that `.grad` is now")


@declared(Kind.KERNEL, detail=True)
class KernelRan(Event):
    """One of PyTorch's own (aten) ops ran: below an op of the program, in a node, or in an optimizer."""

    op: Text = told("its name: `addmm`, `sum.dim_IntList`")
    args: Text = told("its arguments, tensors by dtype and shape")
    result: Text = told("what it returned, likewise")
    in_pass: PassNumber = told("the backward pass that it ran in, 0 for none")
    node: NodeNumber = told("the node that was running, 0 for none")
    inputs: Tensors = told("the tensors among its arguments, 0 for one that the program does not see")


@declared(Kind.MEASURED, detail=True)
class OpMeasured(Event):
    """One of PyTorch's own (aten) ops ran, and was measured: below an op of the program, in a node, or in an optimizer.
    Under `--profile`."""

    op: Text = told("its name: `addmm`, `sum.dim_IntList`")
    seconds: Real = told("how long it ran; on a device from before its launch until it was done")
    made: Real = told("bytes of the memory that its results hold and its arguments did not")
    flops: Real = told("floating-point operations by `torch.utils.flop_counter`, 0 where that counts none")
    in_pass: PassNumber = told("the backward pass that it ran in, 0 for none")
    node: NodeNumber = told("the node that was running, 0 for none")
    in_step: Flag = told("whether an optimizer ran it")


@declared(Kind.STORAGE_SAVED, detail=True)
class StorageSaved(Event):
    """A node behind the roots of a pass that begins has saved a tensor with this storage. Under `--profile`."""

    node: NodeNumber = told("the node")
    storage: Number = told("the storage, counted from 1 in each pass")
    bytes: Real = told("its size")
    leaf: Tensor = told("the leaf on this storage, such as a parameter or data, 0 for none")
    in_pass: PassNumber = told("the pass")


@declared(Kind.BINNED, detail=True)
class ElementsBinned(Event):
    """The elements of a tensor were counted in equal bins, under `--histograms`; of a large tensor some thousands,
    spread evenly."""

    tensor: Tensor = told("the tensor; of a gradient the leaf whose `.grad` it is")
    what: Text = told("`activation`, which is the output of a module, `parameter` or `gradient`")
    module: Text = told("the path of the module, empty for a leaf")
    low: Real = told("where the first bin begins: the least element, of those counted, that is finite")
    high: Real = told("where the last bin ends: the largest")
    in_pass: PassNumber = told("the pass that is about to end, 0 for an activation")
    counts: Counts = told("how many elements each bin has; those that are not finite are in none")


@declared(Kind.COMPARED, detail=True)
class FunctionCompared(Event):
    """The backward of a custom Function was compared with finite differences of its forward."""

    node: NodeNumber = told("the node of the Function")
    in_pass: PassNumber = told("the pass")
    function: Text = told("the Function's name")
    why_not: Text = told("why it could not be compared, empty if it was; the fields below hold nothing then")
    argument: Text = told("the name of the input in forward")
    given: Real = told("how fast the outputs, weighted with their gradients, grow along a direction by the backward")
    found: Real = told("...and by finite differences")
    is_wrong: Flag = told("whether the two differ by more than rounding")


@declared(Kind.HOOKED, detail=True)
class Hooked(Event):
    """A hook changed a gradient."""

    tensor: Tensor = told("the tensor that the hook is on, 0 for a hook on the node")
    node: NodeNumber = told("the node")
    in_pass: PassNumber = told("the pass")
    hook: Text = told("the hook's name")
    before: Gradient = told("the gradient that it was given")
    after: Gradient = told("the gradient that it returned")


@declared(Kind.PASS_ENDED)
class PassEnded(Event):
    """A backward pass ended, by return or by exception."""

    number: PassNumber = told("the pass")


@declared(Kind.ALIVE)
class GraphsAlive(Event):
    """Graphs that earlier passes went through are still alive: three or more of the last 64."""

    in_pass: PassNumber = told("the pass that is about to end")
    graphs: LivingNodes = told("for each of these passes how many of its nodes are alive, of 8 that are watched")
    are_whole: Flag = told(
        "whether the first node of each of these passes is alive, which keeps all of its graph alive"
    )


@declared(Kind.SUMMED)
class PassSummed(Event):
    """A few numbers of a pass, which are kept of every pass where some are left out (`--passes`): once the gradients
    are about to be used by a step of an optimizer, or without norms where none steps. A pass may have several."""

    in_pass: PassNumber = told("the pass")
    why: Text = told("why these numbers have the next passes recorded: `nan` or `jump`, mostly empty")
    has_loss: Flag = told("whether the pass began at one number, which could be read")
    loss: Real = told("that number")
    norm: Real = told("the Euclidean norm of all gradients of the optimizer, −1 where it is not known")
    largest: Real = told("the largest norm of the gradient of one parameter, −1 where it is not known")
    tensor: Tensor = told("that parameter, or the first whose gradient is not finite; 0 where it is not known")


# --- training


@declared(Kind.HOLDS)
class OptimizerHolds(Event):
    """An optimizer holds parameters: emitted when it is made, when it gets a group, and before a step after changes."""

    optimizer: Number = told("the optimizer's number, counted from 1")
    type: Text = told("its class: `SGD`")
    groups: Groups = told("its parameter groups")
    parameters: Tensors = told("all its parameters, group by group, with or without a gradient")


@declared(Kind.STEP_SUMMED)
class StepSummed(Event):
    """A few numbers of a step of an optimizer: how much it has changed all parameters with a gradient. They are kept of
    one of sixteen steps at most, where some passes are left out (`--passes`)."""

    in_pass: PassNumber = told("the pass whose gradients the step used")
    optimizer: Number = told("the optimizer's number")
    tensor: Tensor = told(
        "the parameter that changed most relative to its norm, or the first whose change is not finite; 0 for none"
    )
    change: Real = told("the Euclidean norm of the change of all these parameters together")
    size: Real = told("the Euclidean norm of all these parameters together before the step")
    largest: Real = told(
        "the largest norm of the change of one parameter relative to its norm before, −1 where it is not known"
    )


@declared(Kind.CLIPPED)
class GradsClipped(Event):
    """A function that clips gradients was called; the changes follow."""

    how: Text = told("the function: `clip_grad_norm_`")
    tensors: Tensors = told("the tensors that it was given and that have a gradient")


@declared(Kind.COLLECTIVE)
class CollectiveCalled(Event):
    """A function in which several processes take part was called; the op follows when it has returned."""

    how: Text = told("the function: `all_reduce`")
    args: Text = told("what it is given: `SUM`, `src=0`, `group` if it is one of some ranks")
    tensors: Tensors = told("the tensors that it was given")


@declared(Kind.STEPPED)
class Stepped(Event):
    """An optimizer is about to step; the mutations of its parameters follow."""

    optimizer: Number = told("the optimizer's number, counted from 1")
    type: Text = told("its class: `SGD`")
    time: Time = told("seconds since 1970")
    groups: Groups = told("its parameter groups")
    parameters: Tensors = told(
        "its parameters that have a gradient, group by group; none in passes that are not watched"
    )


# --- to be run again (`--values inputs`)


@declared(Kind.KEPT, detail=True)
class ValueKept(Event):
    """A value was kept that cannot be computed again from what was recorded, as it was at this event."""

    how: Text = told(
        "`leaf` (requires grad), `data`, `cut` (of an op that cannot run again), `carried` (made before the last "
        "pass), `generator` (the state of the random numbers), `gradient` (that a leaf received)"
    )
    original: Tensor = told("the tensor or gradient, 0 for a generator")
    copy: Tensor = told("the number under which this event has the value")


@declared(Kind.CALLED, detail=True)
class CallMade(Event):
    """A function of PyTorch's or of gradviz's engine was called, in a form in which it can be called again. Its op was
    emitted before."""

    function: Text = told("its name in the closed table: `torch.add`, `F.linear`, `Tensor.add_`")
    arguments: Text = told("its arguments as JSON; a tensor is its place in `inputs`")
    context: Text = told("autocast, default dtype and grad mode (`no_grad`) where they are not as usual")
    generator: Tensor = told("the copy that has the state of the random numbers, 0 for none")
    inputs: Tensors = told("the tensors among its arguments")
    outputs: Tensors = told("the tensors that it returned")
    written: Tensors = told("the tensors whose values it changed")


@declared(Kind.SCHEDULED)
class Scheduled(Event):
    """A learning-rate scheduler set the rates of an optimizer."""

    optimizer: Number = told("the optimizer whose rates it sets, 0 where that is not known")
    type: Text = told("the scheduler's class")
    steps: Number = told("how many steps it has counted: 0 where it has just been made")
    rates: Text = told("the learning rates afterwards, as JSON")


@declared(Kind.ERROR)
class ErrorRaised(Event):
    """An exception left a backward pass, refused one before it began, or ended the program."""

    type: Text = told("the exception's class")
    message: Text = told("its message")
    node: NodeNumber = told("the node at fault, or of the root that was refused, 0 for none")
    in_pass: PassNumber = told("the pass that it left, 0 where none had begun or it ended the program")
