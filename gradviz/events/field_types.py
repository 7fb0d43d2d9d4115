"""The types of the fields of events, as annotations that packing, decoding and the docs derive from.

A type has two parts: how a value is stored, and what it stands for. `Gradient` and `Tensor` are stored alike, as a
tensor's number. A predicate such as `grad.rms < 1e-7` finds a field because its type says that it is a gradient.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Stored:
    """The storage of a field, and what it stands for.

    `how` is `number` (an unsigned 32-bit integer), `text` (the number of a string), `rule` (the number of a Rule),
    `pass` (the trace's number of a pass), `back` (an earlier event, by how many events it lies back), `flag` (a bit),
    `time` (a double: seconds, or any real number) or `list`. A list has at least `least` elements; each has `parts`,
    one unsigned 32-bit integer each. `means` is what the field stands for."""

    how: str
    means: str = ""
    parts: tuple[str, ...] = ()
    least: int = 0


class Rule(NamedTuple):
    """The derivatives of an operation as far as they are known, for people: for each input its name in the formulas and
    the formula (empty for none), and whether input and output are related element by element."""

    inputs: tuple[tuple[str, str], ...]
    elementwise: bool = False


class Edge(NamedTuple):
    """The target of a node's gradient: output `nr` of `node` (0: nowhere), as in PyTorch's `next_functions`, and the
    tensor whose gradient it is (0: not known)."""

    node: int
    nr: int
    tensor: int


class Saved(NamedTuple):
    """A saved tensor, and the version that it was saved at."""

    tensor: int
    version: int


class Root(NamedTuple):
    """A start of a pass: output `nr` of `node`, the tensor that it is (0: not known), and the gradient given."""

    node: int
    nr: int
    tensor: int
    gradient: int


class Flow(NamedTuple):
    """A gradient (0: none) on its way to a node (0: nowhere)."""

    node: int
    gradient: int


class Group(NamedTuple):
    """A parameter group of an optimizer: its settings as JSON, and the number of its parameters."""

    settings: str
    size: int


class Living(NamedTuple):
    """The number of watched nodes of an earlier pass that are alive."""

    number: int
    nodes: int


Text = Annotated[str, Stored("text")]
Number = Annotated[int, Stored("number")]
Tensor = Annotated[int, Stored("number", "tensor")]
Gradient = Annotated[int, Stored("number", "gradient")]
Tangent = Annotated[int, Stored("number", "tangent")]
NodeNumber = Annotated[int, Stored("number", "node")]
PassNumber = Annotated[int, Stored("pass", "pass")]
Scope = Annotated[int, Stored("number", "scope")]
EarlierEvent = Annotated[int, Stored("back", "event")]
RuleOf = Annotated[Rule, Stored("rule")]
Flag = Annotated[bool, Stored("flag")]
Time = Annotated[float, Stored("time")]
Real = Annotated[float, Stored("time", "number")]
Counts = Annotated[tuple[int, ...], Stored("list", "count", ("count",))]
Tensors = Annotated[tuple[int, ...], Stored("list", "tensor", ("tensor",))]
Gradients = Annotated[tuple[int, ...], Stored("list", "gradient", ("gradient",), 1)]
Edges = Annotated[tuple[Edge, ...], Stored("list", "edge", Edge._fields)]
SavedTensors = Annotated[tuple[Saved, ...], Stored("list", "saved", Saved._fields)]
Roots = Annotated[tuple[Root, ...], Stored("list", "root", Root._fields)]
Flows = Annotated[tuple[Flow, ...], Stored("list", "flow", Flow._fields)]
Groups = Annotated[tuple[Group, ...], Stored("list", "group", Group._fields)]
LivingNodes = Annotated[tuple[Living, ...], Stored("list", "living", Living._fields)]

# The type of a list's elements, if they have several parts.
ELEMENTS: dict[str, type] = {
    "edge": Edge, "saved": Saved, "root": Root, "flow": Flow, "group": Group, "living": Living,
}  # fmt: skip
TEXT_PARTS = {"settings"}  # the parts that are texts


def told(doc: str) -> Any:
    """A field of an event, with its text in the documentation."""
    return field(metadata={"doc": doc})
