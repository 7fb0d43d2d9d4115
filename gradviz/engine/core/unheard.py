"""A pass whose forward the listener did not hear, because it rested: its graph is told as if it had been heard.

Its nodes are compared with those of the passes that were heard. Where one had the same nodes with the same edges, each
op has the place and the scopes that it had there. Its value is what a node saved, or is computed again from that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from gradviz.engine.core.node import Node, edge_node, edge_nr, edge_numbers
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, base_of, flags_of, give_number, gradient_edge, number_of, state_of
from gradviz.events.counters import next_tensor_number
from gradviz.events.kinds import REQUIRES_GRAD, UNWATCHED
from gradviz.events.likeness import SINGULAR, Form, Like, Likes, OpenScopes, is_often_singular
from gradviz.events.listener import NO_RULE, edges_of, saved_of
from gradviz.events.site import giver_of

_MOST_ALARMS = 8  # passes that are told for a new graph, for a point where no derivative is finite, or for an error
_MOST_ELEMENTS = 1 << 22  # of the values that are computed again
_MOST_FRAMES = _MOST_WRITES = 64

Key = tuple[int, int]  # the number of a node, and which of its outputs


class UnheardGraphs:
    """Tells a listener such graphs. `writes` are the tensors that were written to in place in the pass that nobody
    hears, each with how and where."""

    def __init__(self) -> None:
        self.likes = Likes()
        self.known: set[tuple[type, ...]] = set()  # the nodes of the passes that were heard
        self.is_singular = False  # whether one of them had nodes whose derivative may not be finite
        self.new = self.alarms = 0  # the passes that were told for each of the two reasons
        self.failures = 0  # the passes that had failed
        self.writes: deque[tuple[ref[Tensor], str, Any]] = deque(maxlen=_MOST_WRITES)

    def wrote(self, listener: Any, tensor: Tensor, how: str, frame: FrameType) -> None:
        """Note an operation in place that nobody hears."""
        self.writes.append((ref(tensor), how, listener.place(frame)))

    def remember(self, listener: Any, waiting: Iterable[Node]) -> None:
        """Note how the nodes of a pass came to be that was heard, and is about to end."""
        waiting = list(waiting)
        self.known.add(tuple(map(type, waiting)))
        if listener.made:
            nodes = _inner(waiting)
            made = [listener.made.get(node.number) for node in nodes]
            newest = next_tensor_number()
            self.likes.newest = self.likes.newest or newest
            likes = self.likes.note(self._form(waiting, nodes), made, {}, newest)
            pairs = zip(nodes, likes, strict=True)
            self.is_singular = self.is_singular or any(is_often_singular(node.label, like) for node, like in pairs)

    def _form(self, waiting: Iterable[Node], nodes: Sequence[Node]) -> Form:
        leaves = {node.number: number_of(node.variable) for node in waiting if node.runs_first}
        told = [(node.number, node.label, [edge_numbers(edge)[0] for edge in node.edges]) for node in nodes]
        return self.likes.form(told, leaves)

    def is_of_interest(self, waiting: Iterable[Node]) -> bool:
        """Whether the graph of a pass is that of no pass that was heard, or has a node where its derivative is not
        finite. A few times only: a program may make other graphs each time, and the gradient may be finite all the
        same, behind a mask."""
        is_new = self.new < _MOST_ALARMS and tuple(map(type, waiting)) not in self.known
        self.new += is_new
        if is_new or not self.is_singular or self.alarms >= _MOST_ALARMS:
            return is_new
        is_there = any(_is_at_its_point(node) for node in waiting if node.label in SINGULAR)
        self.alarms += is_there
        return is_there

    def failed(self, listener: Any) -> bool:
        """Whether the listener wants the graph of a pass that an exception has left."""
        self.failures += 1
        return self.failures <= _MOST_ALARMS and bool(listener.wakes(None))

    def tell(self, listener: Any, roots: Sequence[Tensor], waiting: Iterable[Node], frame: FrameType | None) -> None:
        """Tell the graph of a pass that begins from roots in a frame, or has failed."""
        nodes = _inner(waiting)
        known = _known(roots, nodes)
        values = _values(nodes, known)
        likes = self.likes.of(self._form(waiting, nodes))
        scopes, numbers = OpenScopes(listener), dict[Key, int]()
        data = partial(_number_of_data, listener, frame)
        for node, like in zip(nodes, likes, strict=True):
            scopes.enter(() if like is None else like.made.scopes)
            tell_op(listener, node, like, known.tensors, values, numbers, data)
        scopes.enter(())
        for written, how, where in self.writes:
            tensor = written()
            if tensor is not None and number_of(tensor):
                listener.mutated(where, how, state_of(tensor))


def _inner(waiting: Iterable[Node]) -> list[Any]:
    """The nodes of a pass but those of its leaves, the oldest first."""
    return sorted((node for node in waiting if not node.runs_first), key=lambda node: node.number)


def _is_at_its_point(node: Any) -> bool:
    name, is_regular = SINGULAR[node.label]
    try:
        value = getattr(node, f"_saved_{name}")
        if not isinstance(value, Tensor) or getattr(node, "_saved_exponent", 0) >= 1:
            return False
        return not is_regular(value.array).all()
    except (RuntimeError, AttributeError, TypeError):  # it was freed
        return False


def _slots(node: Any) -> list[tuple[Tensor | None, int]]:
    """For each edge of a node the input that it saved, with its version; None where it saved none, or hooks have
    packed it."""
    if hasattr(node, "tensors"):
        pairs = [*zip(node.tensors or (), node.versions, strict=False)]
    else:
        pairs = [(getattr(node, slot, None), getattr(node, f"{slot}_version", 0)) for slot in ("x", "y")]
    kept = [(tensor if isinstance(tensor, Tensor) else None, version) for tensor, version in pairs]
    count = len(node.edges)
    return (kept + [(None, 0)] * count)[:count]


class _Known(NamedTuple):
    """The tensors at hand that are outputs of nodes, and whether they still have the values that they had then."""

    tensors: dict[Key, Tensor]
    is_same: dict[Key, bool]


def _known(roots: Sequence[Tensor], nodes: Sequence[Node]) -> _Known:
    tensors, is_same = dict[Key, Tensor](), dict[Key, bool]()
    for node in nodes:
        for edge, (tensor, version) in zip(node.edges, _slots(node), strict=True):
            target = edge_node(edge)
            if tensor is not None and target is not None and not target.runs_first:
                tensors[edge_numbers(edge)], is_same[edge_numbers(edge)] = tensor, tensor._writes == version
    for root in roots:
        if not root.is_leaf:
            key = edge_numbers(gradient_edge(root))
            tensors[key], is_same[key] = root, True
    return _Known(tensors, is_same)


def values_at_hand(nodes: Sequence[Any], tensors: dict[Key, Tensor]) -> dict[Key, np.ndarray]:
    """The values of outputs of nodes: of these tensors, and those that nodes saved."""
    values = {key: tensor.array for key, tensor in tensors.items()}
    for node in nodes:
        out = getattr(node, "out", None)
        is_whole = getattr(node, "out_counter", None) is None or node.out_counter.n == node.out_version
        if isinstance(out, np.ndarray) and is_whole:
            values.setdefault((node.number, 0), out)
    return values


def _values(nodes: Sequence[Any], known: _Known) -> dict[Key, np.ndarray]:
    """The values of outputs of nodes: those at hand, those that nodes saved, and what follows from them by the ops. If
    one of these differs from what is at hand, something was written to meanwhile, and none is taken."""
    at_hand = values_at_hand(nodes, {key: one for key, one in known.tensors.items() if known.is_same[key]})
    values, left = dict(at_hand), _MOST_ELEMENTS
    for node in nodes:
        result = _again(node, values) if left > 0 else None
        if result is None:
            continue
        left -= result.size
        before = values.setdefault((node.number, 0), result)
        if not np.array_equal(before, result, equal_nan=before.dtype.kind in "fc"):
            return at_hand
    return values


@np.errstate(all="ignore")
def _again(node: Any, values: dict[Key, np.ndarray]) -> np.ndarray | None:
    """What the op of a node computes from its inputs; None if they are not known, or if it gives another dtype."""
    if not node.is_of_row or node.op.variadic:
        return None
    arrays = []
    for edge, tensor in zip(node.edges, _data(node), strict=True):
        target = edge_node(edge)
        if target is not None and target.runs_first:
            tensor = target.variable
        array = values.get(edge_numbers(edge)) if tensor is None else tensor.array
        if array is None:
            return None
        arrays.append(array)
    try:
        result = np.asarray(node.op.forward(*arrays, *getattr(node, "args", ())))
    except Exception:  # an op that needs more than that
        return None
    return result if result.dtype == arrays[0].dtype else None


def _data(node: Any) -> list[Tensor | None]:
    """For each edge of a node the input without a gradient that it saved."""
    return [None if one is None or one._edge is not None else one for one, _ in _slots(node)]


def tell_op(
    listener: Any, node: Any, like: Like | None, tensors: dict[Key, Tensor], values: dict[Key, np.ndarray],
    numbers: dict[Key, int], number_of_data: Callable[[Tensor], int],
) -> None:  # fmt: skip
    """Tell the op that made a node, and the node. `tensors` and `values` are its outputs, as far as they are known;
    they get `numbers`."""
    inputs = []
    for edge, data in zip(node.edges, _data(node), strict=True):
        target: Any = edge_node(edge)
        if target is None:
            inputs.append(0 if data is None else number_of_data(data))
        else:
            inputs.append(number_of(target.variable) if target.runs_first else numbers[target.number, edge_nr(edge)])
    inputs += [number_of_data(tensor) for tensor, _ in getattr(node, "read", None) or ()]
    outputs = [tensors.get((node.number, nr)) for nr in range(node.outputs)]
    for nr, output in enumerate(outputs):
        number = number_of_known(output)
        if not number:
            number = next_tensor_number()
            if output is not None:
                give_number(output, number)
        numbers[node.number, nr] = number
    own = [numbers[node.number, nr] for nr in range(node.outputs)]
    op, args, rule, where = _op_of(node, like)
    listener.op(
        where, op, args, rule, 0, True, inputs, own,
        [values.get((node.number, nr)) for nr in range(node.outputs)],
        [REQUIRES_GRAD if one is None else flags_of(one) for one in outputs],
        [0 if one is None else one._writes for one in outputs],
        [0 if one is None else base_of(one) for one in outputs],
    )  # fmt: skip
    edges: list[int] = []
    for edge, number in zip(node.edges, inputs, strict=False):
        edges += (*edge_numbers(edge), number)
    saved: list[int] = []
    for tensor, version in node.saved():
        if isinstance(tensor, Tensor) and (number := number_of_known(tensor)):
            saved += (number, version)
    if getattr(node, "out", None) is not None:
        saved += (own[0], 0)
    listener.node(where, node.number, node.label, -1, rule, own, edges_of(edges), saved_of(saved))


def _op_of(node: Any, like: Like | None) -> tuple[str, str, Any, Any]:
    """The name, the arguments, the rule and the place of the op that made a node."""
    of_row, args = hasattr(node, "op"), getattr(node, "args", ())
    name = node.op.name if of_row else node.label.removesuffix("Backward0")
    text = node.op.arguments_text(args) if of_row and args else ""
    rule = node.op.rule(args) if of_row else NO_RULE
    if like is None:
        return name, text, rule, None
    made = like.made
    if like.steady:
        return made.op, made.args, made.rule, made.where
    return made.op, text, rule if of_row else NO_RULE, made.where


def number_of_known(tensor: Tensor | None) -> int:
    """The number of a tensor that the listener has heard of, else 0."""
    number = 0 if tensor is None else getattr(tensor, "_number", 0)
    return number if number >= state.first_number else 0


def _number_of_data(listener: Any, frame: FrameType | None, tensor: Tensor) -> int:
    """The number of a tensor without a gradient. One that the listener has not heard of came to be unheard: at the
    line that a variable of the program proves, if nothing has written to the tensor."""
    if getattr(tensor, "_number", -1) == 0:  # a constant
        return 0
    if not number_of_known(tensor):
        where = None if tensor._writes else giver_of(tensor, _frames(frame))
        give_number(tensor, next_tensor_number())
        listener.tensor(where, UNWATCHED, state_of(tensor))
    return number_of_known(tensor)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, without those of the engine."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if not frame.f_globals.get("__name__", "").startswith("gradviz."):
            yield frame
        frame = frame.f_back
