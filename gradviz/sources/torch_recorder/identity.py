"""The numbers of tensors and nodes. Nothing keeps a tensor or node alive, and no attribute is added to a tensor.

A tensor is known by its identity for as long as it lives. A node has its number in its `metadata`, which PyTorch
keeps as long as the node. Callers make sure that no mode of the program sees the reads of attributes.
"""

import itertools
import re
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gradviz.events.counters import next_node_number, next_tensor_number
from gradviz.events.field_types import Edge, Rule, Saved
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, WHOLE
from gradviz.events.listener import LEAF_NODE, NO_RULE, Listener, State, Where, edges_of
from gradviz.events.values import TRANSFORM, UNFILLED, VMAP
from gradviz.sources.torch_recorder.known_things import (
    Known,
    NodeRecord,
    Numbered,
    grad_fn_of,
    is_leaf,
    shows_all,
    unbatched,
    version_of,
)
from gradviz.sources.torch_recorder.node_formulas import rule_of_node
from gradviz.sources.torch_recorder.saved import SavedTensors
from gradviz.sources.torch_recorder.tensor_values import PLAIN, Unseen, is_plain_parameter, local_part
from gradviz.system.turns import new_own_turn

_functorch = torch._C._functorch
_keys = itertools.count(1)
_NAMESPACES = re.compile(r"(?:(?:\w+|\(anonymous namespace\))::)+")  # of C++, as `torch::autograd::`
FILLED = "filled"  # the origin of a tensor that was empty until PyTorch filled it, as `torch.load` does


# makes a State without a Python call
_state_of: Callable[[tuple[Any, ...]], State] = partial(tuple.__new__, State)


def name_of_hook(hook: Any) -> str:
    """The name of a hook: the name of its function, or of its class."""
    return str(getattr(hook, "__qualname__", type(hook).__name__))


class Identity:
    """Numbers tensors and nodes, and emits new ones to the listener."""

    def __init__(self, listener: Listener, gave_up: Callable[[Exception], None]) -> None:
        self.listener = listener
        self.gave_up = gave_up
        self.key = f"gradviz{next(_keys)}"
        self.known: dict[int, Known] = {}
        self.unfilled: set[int] = set()  # living tensors whose elements are whatever was in the memory
        self.pending: list[tuple[Known, Where, str, int]] = []  # made inside PyTorch, not yet emitted
        self.nameless: dict[int, Known] = {}  # parameters without a name from a module, by their numbers
        self.saved = SavedTensors(self.known, self.key)
        self.hooked: dict[int, Known] = {}  # tensors with hooks of the program, by their identity
        # results of transforms that are not emitted yet
        self.left: MutableMapping[torch.Tensor, tuple[str, Where, int]] = WeakIdKeyDictionary()
        self._telling = new_own_turn()
        self._forget = self.known.pop
        self.when_dead = self._dead  # one object for all tensors

    # --- tensors

    def number_of(self, tensor: torch.Tensor, where: Where = None, how: str = "") -> int:
        """The tensor's number. A new tensor is emitted, with the origin `how`; without `how` it is from before the
        recording, and may have a gradient, or stands for another tensor inside a transform of torch.func."""
        known = self.known.get(id(tensor))
        if known is not None:
            return known.number
        if how:
            return self.announce(tensor, how, where)
        if _functorch.peek_interpreter_stack() is not None and _functorch.is_functorch_wrapped_tensor(tensor):
            how = VMAP if _functorch.is_batchedtensor(tensor) else TRANSFORM
            return self.announce(tensor, how, where, self._stood_for(tensor))
        if self.left and (left := self.left.pop(tensor, None)) is not None:
            return self.announce(tensor, *left)
        number = self.announce(tensor, "Parameter" if isinstance(tensor, torch.nn.Parameter) else "earlier", where)
        grad = tensor.grad if is_leaf(tensor) else None
        if grad is not None:
            self.listener.grad_assigned(None, number, self.number_of(grad))
        return number

    def _stood_for(self, tensor: torch.Tensor) -> int:
        """The number of the tensor that a wrapper of torch.func stands for; 0 if the transform made that too."""
        is_batched = _functorch.is_batchedtensor(tensor)
        while _functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _functorch.get_unwrapped(tensor)
            if is_batched:
                break
        known = self.known.get(id(tensor))
        if known is None and not (is_leaf(tensor) and tensor.requires_grad):
            return 0
        return self.number_of(tensor) if known is None else known.number

    def leave_transform(self, inside: torch.Tensor, result: torch.Tensor, how: str, where: Where) -> None:
        """Note a result of a transform of torch.func, and the tensor that stood for it inside. It is emitted when the
        program first uses it, since a transform also has results that it drops."""
        known = self.known.get(id(inside))
        if known is not None and id(result) not in self.known:
            self.left[result] = how, self.listener.place(where), known.number

    def fresh(self, tensor: torch.Tensor) -> Known:
        """Give a tensor a new number."""
        key = id(tensor)
        known = Known(tensor, self.when_dead)
        known.key = key
        known.number = next_tensor_number()
        try:  # as `version_of`, without a call
            known.version = tensor._version
        except RuntimeError:
            known.version = 0
        known.base = known.alias = 0
        known.views = None
        known.depends = False
        self.known[key] = known
        if (kind := type(tensor)) is torch.nn.Parameter or (kind is not torch.Tensor and is_plain_parameter(kind)):
            self.nameless[known.number] = known
        return known

    def note_dependence(self, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> None:
        """Note that the results of an op without a node depend on a leaf that requires grad, if an input does."""
        known = self.known
        for tensor in inputs:
            if unbatched(tensor).requires_grad or known[id(tensor)].depends:
                for output in outputs:
                    known[id(output)].depends = True
                return

    def _dead(self, known: Known) -> None:
        try:
            key = known.key
            if self.known.get(key) is known:
                self._forget(key, None)
                if self.nameless:
                    self.nameless.pop(known.number, None)
                if self.unfilled:
                    self.unfilled.discard(known.number)
        except Exception as error:
            self.gave_up(error)

    def living_hooked(self) -> list[torch.Tensor]:
        """The living tensors with hooks of the program. Dead tensors are forgotten."""
        living = []
        for key, known in list(self.hooked.items()):
            tensor = known()
            if tensor is None:
                self.hooked.pop(key, None)
            else:
                living.append(tensor)
        return living

    def announce(self, tensor: torch.Tensor, how: str, where: Where, source: int = 0) -> int:
        """Emit a tensor that no op made. Its own history, if there is any, is emitted first."""
        known = self.fresh(tensor)
        self.note_unfilled(known, how, source)
        self._note_base(tensor, known)
        if grad_fn_of(tensor) is not None:
            self.tell_nodes(None, [tensor], None)
        state = self.state_made(tensor, known)
        self.listener.tensor(where, how, state, source)
        return known.number

    def announce_alias(self, tensor: torch.Tensor, how: str, where: Where, base: int) -> None:
        """Give a tensor that left the graph another number, of a leaf on the memory of what it was."""
        known = self.fresh(tensor)
        known.base, known.alias = base, VIEW | WHOLE
        self.listener.tensor(where, how, self.state_made(tensor, known), 0)

    def note_unfilled(self, known: Known, how: str, source: int) -> None:
        """Note a tensor whose elements are whatever was in the memory, as those of its source were."""
        if how in UNFILLED or source in self.unfilled:
            self.unfilled.add(known.number)

    def state_made(self, tensor: torch.Tensor, known: Known) -> State:
        """The state of a new tensor. A tensor that nothing has been written to has no value."""
        state = self.state(tensor, known)
        is_unfilled = known.number in self.unfilled and not known.version
        if is_unfilled and type(tensor) in PLAIN and tensor.layout is torch.strided:
            return state._replace(value=Unseen(tensor.shape, tensor.dtype, tensor.device))
        return state

    def _note_base(self, tensor: torch.Tensor, known: Known) -> None:
        """Note the base of a view whose base is known."""
        if type(tensor) not in PLAIN:
            self.note_part(tensor, known)
        if not tensor._is_view():
            return
        base = self.known.get(id(tensor._base))
        if base is not None:
            self.note_view(tensor, known, tensor._base, base)

    def note_view(self, tensor: torch.Tensor, known: Known, source: Any, of: Known) -> None:
        """Note that a tensor shares the memory of `source`."""
        known.base = of.number
        known.alias = VIEW | (WHOLE if shows_all(source, tensor) else 0)
        self.note_unfilled(known, "view", of.number)
        if tensor._is_view() and tensor._base is not None:
            self._add_view(tensor._base, known)

    def note_part(self, tensor: torch.Tensor, known: Known) -> None:
        """Note that a tensor which lies on several ranks shares the memory of its part on this rank: a write to the
        part is a write to the tensor."""
        local = local_part(tensor)
        if local is not None:
            base = local._base if local._is_view() else local
            self._add_view(local if base is None else base, known)

    def _add_view(self, base: torch.Tensor, known: Known) -> None:
        """Note a tensor that shares the memory of `base`, if `base` is known."""
        root = self.known.get(id(base))
        if root is not None:
            views = root.views = root.views or []
            views.append(known)
            if len(views) >= 16 and not len(views) & (len(views) - 1):  # at 16, 32, 64 ...: forget the dead
                root.views = [view for view in views if view() is not None]

    def state(self, tensor: torch.Tensor, known: Known) -> State:
        """The present state of a tensor; its flags are LEAF, REQUIRES_GRAD, VIEW and WHOLE."""
        flags, of = LEAF | known.alias, unbatched(tensor)
        if of.requires_grad:
            flags = (REQUIRES_GRAD | LEAF if of is tensor and is_leaf(tensor) else REQUIRES_GRAD) | known.alias
        return _state_of((known.number, tensor, flags, known.version, known.base))

    def state_of(self, tensor: torch.Tensor) -> State:
        """The present state of a tensor; a new tensor is emitted."""
        known = self.known.get(id(tensor))
        if known is None:
            self.number_of(tensor)
            known = self.known[id(tensor)]
        known.version = version_of(tensor)
        return self.state(tensor, known)

    def written_over(self) -> list[torch.Tensor]:
        """The tensors that were written to since their last recorded version."""
        with torch._C.DisableTorchFunction():
            alive = [(known, known()) for known in list(self.known.values())]
            return [t for known, t in alive if t is not None and version_of(t) != known.version]

    # --- tensors that are emitted later

    def put_off(self, tensor: torch.Tensor, where: Where, how: str, source: int = 0) -> None:
        """Number a tensor that was made inside PyTorch, and may not be filled yet; it is emitted before the next
        event."""
        known = self.fresh(tensor)
        self.note_unfilled(known, how, source)
        self.pending.append((known, where, how, source))

    def is_pending(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is yet to be emitted."""
        return any(known() is tensor for known, *_ in self.pending)

    def tell_pending(self) -> None:
        """Emit the tensors that were put off and are still alive."""
        with self._telling:
            pending, self.pending = self.pending, []
        dropped = set()
        for known, where, how, source in pending:
            tensor = known()
            if tensor is None or self.known.get(known.key) is not known:
                dropped.add(known.number)
            else:
                before, known.version = known.version, version_of(tensor)
                if known.version != before and "empty" in how:
                    how = FILLED
                source = 0 if source in dropped else source
                self.listener.tensor(where, how, self.state_made(tensor, known), source)

    # --- nodes

    def record_of(self, fn: Any) -> NodeRecord:
        """The record of a node. A new node is emitted, with all that it leads to."""
        if self.key not in fn.metadata:
            self.tell_numbered(None, self.new_nodes([fn]), None)
        return fn.metadata[self.key]

    def quiet_record(self, fn: Any) -> NodeRecord:
        """The record of a node, which is numbered and not emitted: no listener wants it."""
        record = fn.metadata.get(self.key)
        if record is None:
            record = self.number_leaf(fn) if hasattr(fn, "variable") else self._number(fn)
        return record

    def new_nodes(self, roots: Iterable[Any]) -> list[Numbered]:
        """Number the new nodes that `roots` lead to, the oldest first. Each comes with its record and its
        `next_functions`."""
        found, leaves = self.nodes_behind(roots)
        return self.number_found(found, leaves)

    def nodes_behind(self, roots: Iterable[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """The unnumbered nodes that `roots` lead to, the oldest first, each with its `next_functions`; and the
        unnumbered leaf nodes behind them."""
        key = self.key
        nodes: list[tuple[Any, Any]] = []
        leaves: list[Any] = []
        seen = set()
        stack = [root for root in roots if root is not None]
        while stack:
            fn = stack.pop()
            if fn in seen or key in fn.metadata:
                continue
            seen.add(fn)
            edges = fn.next_functions
            if not edges and hasattr(fn, "variable"):
                leaves.append(fn)
                continue
            nodes.append((fn, edges))
            stack += [target for target, _ in edges if target is not None and key not in target.metadata]
        if len(nodes) > 1:
            nodes.sort(key=lambda found: found[0]._sequence_nr())  # the oldest first
        return nodes, leaves

    def number_found(self, found: Sequence[tuple[Any, Any]], leaves: Iterable[Any]) -> list[Numbered]:
        """Number the nodes that `nodes_behind` has returned."""
        for leaf in leaves:
            if self.key not in leaf.metadata:
                self.number_leaf(leaf)
        return self.number_made(found)

    def number_made(self, found: Sequence[tuple[Any, Any]]) -> list[Numbered]:
        """Number new nodes that are not leaf nodes; each is given with its `next_functions`."""
        return [(fn, self._number(fn), edges) for fn, edges in found]

    def number_leaf(self, fn: Any) -> NodeRecord:
        """Number the AccumulateGrad of a leaf."""
        record = fn.metadata[self.key] = NodeRecord(next_node_number(), LEAF_NODE, True, False, fn._sequence_nr())
        leaf = fn.variable
        known = self.known.get(id(leaf))
        record.first = self.number_of(leaf) if known is None else known.number
        return record

    def _number(self, fn: Any) -> NodeRecord:
        name = fn.name()
        if ":" in name:
            name = _NAMESPACES.sub("", name)
        of_function = isinstance(fn, torch._C._FunctionBase)
        record = NodeRecord(next_node_number(), name, False, of_function, fn._sequence_nr())
        fn.metadata[self.key] = record
        return record

    def edges_of(self, edges: Sequence[tuple[Any, int]], numbers: Sequence[int] = ()) -> list[int]:
        """The edges of a node whose targets are all numbered, flat: (node, nr, tensor, ...). `numbers` are the inputs
        of an op that made one node. If there is one for each edge, they give the tensors of edges without a target."""
        aligned = numbers if len(numbers) == len(edges) else (0,) * len(edges)
        key = self.key
        flat: list[int] = []
        for (target, nr), number in zip(edges, aligned):  # noqa: B905
            if target is None:
                flat += (0, 0, number)
            else:
                record = target.metadata[key]
                flat += (record.number, nr, record.tensor(nr) if nr else record.first)
        return flat

    def unseen_leaves(self, roots: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The leaves that tensors were computed from by unrecorded nodes, without the tensors in `seen`."""
        leaves = {id(tensor): tensor for tensor in seen}
        known: set[Any] = set()
        waiting = [grad_fn_of(root) for root in roots]
        while waiting:
            fn = waiting.pop()
            if fn is None or fn in known:
                continue
            known.add(fn)
            if hasattr(fn, "variable"):
                leaves.setdefault(id(fn.variable), fn.variable)
            elif self.key not in fn.metadata:
                waiting += [target for target, _ in fn.next_functions]
        return list(leaves.values())[len(seen) :]

    def inputs_of(self, edges: Sequence[Edge], saved: Sequence[Saved], outputs: Sequence[int]) -> list[int]:
        """The inputs of an op that is known only by its node: the tensors at its edges, and for edges that lead
        nowhere the saved tensors that are not outputs."""
        along = {edge.tensor for edge in edges}
        others = [entry.tensor for entry in saved if entry.tensor not in {*along, *outputs}]
        inputs = [edge.tensor or (others.pop(0) if others else 0) for edge in edges]
        return [tensor for tensor in inputs if tensor]

    def tell_nodes(
        self, where: Where, outputs: Sequence[torch.Tensor], op: int | None, candidates: Sequence[torch.Tensor] = (),
        rule: Rule = NO_RULE,
    ) -> None:  # fmt: skip
        """Emit the new nodes behind `outputs`, as made by event `op`."""
        nodes = self.new_nodes(map(grad_fn_of, outputs))
        self.put_outputs(outputs)
        self.tell_numbered(where, nodes, op, candidates, rule)

    def put_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note the tensors whose `grad_fn` the nodes behind them are."""
        for tensor in outputs:
            fn = grad_fn_of(tensor)
            if fn is not None:
                fn.metadata[self.key].put(unbatched(tensor).output_nr, self.number_of(tensor))

    def tell_numbered(
        self, where: Where, nodes: Sequence[Numbered], op: int | None, candidates: Sequence[torch.Tensor] = (),
        rule: Rule = NO_RULE,
    ) -> None:  # fmt: skip
        """Emit nodes that have their numbers."""
        for fn, record, edges in nodes:
            self.listener.node(
                where, record.number, record.name, op,
                rule if len(nodes) == 1 and rule.inputs else rule_of_node(fn, record.name, len(edges), rule),
                record.outputs(),
                edges_of(self.edges_of(edges)), self.saved.by(fn, candidates),
            )  # fmt: skip


def outside(frame: FrameType | None, *places: str) -> FrameType | None:
    """The innermost frame at or above `frame` whose file lies in none of these places."""
    while frame is not None and frame.f_code.co_filename.startswith(places):
        frame = frame.f_back
    return frame
