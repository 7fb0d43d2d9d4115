"""A backward pass with a listener, hooks, chosen inputs or `create_graph`.

The pass first counts how many gradients each node will receive. So a leaf accumulates as soon as its last gradient
has arrived. The pass knows the number of every gradient that is waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from heapq import heappop, heappush, heappushpop
from math import nan
from time import time  # bound now: a program may replace it
from typing import Any

import numpy as np

from gradviz.engine.basics.errors import nan_gradient
from gradviz.engine.core.histograms import tell_histograms
from gradviz.engine.core.hooks import run_node_posthooks, run_node_prehooks, run_tensor_hooks, shown
from gradviz.engine.core.leaves import accumulate
from gradviz.engine.core.node import AccumulateGrad, Edge, Node, Output, edge_node, edge_nr, edge_numbers
from gradviz.engine.core.state import (
    enable_grad,
    hears,
    is_grad_enabled,
    next_pass_number,
    next_tensor_number,
    no_grad,
    note_special,
    set_grad_mode,
    state,
)
from gradviz.engine.core.tensor import Tensor, announce, gradient_edge, number_of, state_of, tensor_rare
from gradviz.engine.core.unheard import UnheardGraphs
from gradviz.events.field_types import Root


class WatchedPass:
    """One backward pass.

    Gradients are arrays, or Tensors that record their own graph under `create_graph`. Each gradient has the
    number that the listener knows, or 0. `how` is `backward` (leaves accumulate) or `grad` (the gradients of
    `wanted` are returned)."""

    def __init__(
        self,
        how: str,
        roots: Sequence[Tensor],
        gradients: Sequence[Tensor],
        wanted: Sequence[Tensor],
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        self.how, self.roots, self.gradients, self.wanted = how, roots, gradients, wanted
        self.retain_graph, self.create_graph = retain_graph, create_graph
        self.edges = [gradient_edge(root) for root in roots]
        self.wanted_edges = [gradient_edge(tensor) for tensor in wanted]
        self.captured: dict[tuple[int, int], Tensor] = {}
        self.listener = state.listener
        self.number = next_pass_number()
        self.current = 0  # the number of the running node
        self.waiting: dict[Node, int] = {}  # how many gradients each node still waits for
        self.needed: set[Node] | None = None  # the nodes that have to run; None: all nodes
        self.receivers: set[Node | None] = set()  # with `needed`: these, and the nodes of `wanted`
        self.reached: list[Tensor] = []  # leaves that have accumulated a gradient, if there is a listener
        self.kept: set[int] = set()  # the gradients that are the `.grad` of a leaf now
        # the gradients that have arrived, by node; a list if the node has several outputs
        self.buffers: dict[Any, Any] = {}
        self.numbers: dict[Any, Any] = {}  # the numbers of these gradients

    def run(self) -> list[Tensor | None]:
        """Run the pass. Returns the gradients of the wanted tensors; None for a tensor without a gradient."""
        listener = self.listener
        if listener is not None:
            self._wake(listener)
            self._tell_beginning()
        mode = is_grad_enabled()
        note_special(f"pass {self.number}", True)  # so that ops tell which pass they run in
        outer, state.modes.running = state.modes.running, self
        try:
            with enable_grad() if self.create_graph else no_grad():
                self._flow()
        except Exception as error:
            if listener is not None:
                if state.unheard is not None and not hears(listener) and state.unheard.failed(listener):
                    self._tell_unheard(listener)
                listener.error(error.__traceback__, type(error).__name__, str(error), self.current, self.number)
            raise
        finally:
            state.modes.running = outer
            set_grad_mode(mode)  # Ctrl-C can prevent `with` from restoring it
            note_special(f"pass {self.number}", False)
            if listener is not None:
                self._remember(listener)
                if sys.exc_info()[0] is None:
                    if hears(listener):
                        self._tell_alive(listener)
                    if listener.wants_histograms and listener.detailed:
                        tell_histograms(listener, self.number, self.reached)
                listener.pass_ended(self.number)
        return [self.captured.get((id(edge_node(edge)), edge_nr(edge))) for edge in self.wanted_edges]

    def _loss(self) -> float | None:
        """The number that the pass begins at; None for several roots or elements."""
        arrays = [root.array for root in self.roots]
        is_number = len(arrays) == 1 and arrays[0].size == 1 and arrays[0].dtype.kind != "c"
        return float(arrays[0].item()) if is_number else None

    def _wake(self, listener: Any) -> None:
        """Tell the graph of the pass, if it is of interest and nobody has heard its forward."""
        if state.unheard is None or hears(listener) or not listener.sums or (loss := self._loss()) is None:
            return
        self.waiting = count_dependencies([edge_node(edge) for edge in self.edges])
        if listener.wakes(nan if state.unheard.is_of_interest(self.waiting) else loss):
            self._tell_unheard(listener)

    def _tell_unheard(self, listener: Any) -> None:
        with suppress(Exception):  # the program goes on, whatever it has put into its graph
            state.unheard.tell(listener, self.roots, self.waiting, sys._getframe(3))

    def _remember(self, listener: Any) -> None:
        """Note how the nodes came to be, for a pass that is told because of its graph. What was written to before it
        is of no interest any more."""
        if hears(listener) and isinstance(listener.made, dict):
            state.unheard = state.unheard or UnheardGraphs()
            state.unheard.remember(listener, self.waiting)
        if state.unheard is not None:
            state.unheard.writes.clear()

    def _tell_alive(self, listener: Any) -> None:
        """Tell which graphs of earlier passes are alive, if there are some. Leaves live longer than graphs."""
        nodes = (node for node in self.waiting if not node.runs_first)
        graphs, are_whole = state.living.ended(self.number, nodes, len(self.waiting))
        if graphs:
            listener.graphs_alive(self.number, graphs, are_whole)

    def reaches(self, node: Node) -> bool:
        """Whether a gradient reaches a node in this pass."""
        return node in self.waiting and (self.needed is None or node in self.receivers)

    # --- the flow of gradients

    def _flow(self) -> None:
        nodes: list[Any] = [edge_node(edge) for edge in self.edges]
        self.waiting = waiting = self.waiting or count_dependencies(nodes)
        self.needed = needed = nodes_towards(self.wanted_edges, waiting) if self.wanted else None
        if needed is not None:
            self.receivers = {*needed, *map(edge_node, self.wanted_edges)}
        for edge, start in zip(self.edges, self.gradients, strict=True):
            flowing = start if self.create_graph else start.array
            self._arrive(edge, flowing, getattr(start, "_number", 0))
        ready: list[tuple[int, Any]] = []
        # AccumulateGrads, that run before any other node, in the order in which they became ready.
        leaves: list[Any] = []
        node: Any
        gradient: Any
        for node in dict.fromkeys(nodes):
            if waiting[node] or (needed is not None and node not in self.receivers):
                continue
            if node.runs_first:
                leaves.append(node)
            else:
                heappush(ready, (-node.number, node))
        self._reach_leaves(leaves)
        simple = needed is None and self.listener is not None and not (self.create_graph or state.anomaly)
        buffers, numbers = self.buffers, self.numbers
        following: Any = None  # the only node that is ready
        while ready or following is not None:
            if not ready:
                node = following
            elif following is None:
                node = heappop(ready)[1]
            else:
                node = heappushpop(ready, (-following.number, following))[1]
            following = None
            self.current = node.number
            if simple and node.is_of_row and node.rare is None and node in buffers:
                if node.arity:
                    node, gradients, given = self._run_simple(node, waiting, alone=not ready)
                else:
                    gradients, given = self._run_of_many(node)
            else:
                gradients, given = self._run(node, needed)
            if node.saves and not self.retain_graph and (needed is None or node in needed):
                node.release()
            arity = node.arity
            edges = (node.a,) if arity == 1 else (node.a, node.b) if arity == 2 else node.edges
            for i, edge in enumerate(edges):
                if edge is None:
                    continue
                gradient, number = gradients[i], given[i]
                target = edge.node if type(edge) is Output else edge
                if needed is not None and target not in self.receivers:
                    continue
                if gradient is not None:
                    if target.outputs == 1 and target not in buffers:
                        buffers[target], numbers[target] = gradient, number
                    else:
                        self._arrive(edge, gradient, number)
                left = waiting[target] - 1
                if left:
                    waiting[target] = left
                elif target.runs_first:
                    leaves.append(target)
                elif ready or following is not None:
                    heappush(ready, (-target.number, target))
                else:
                    following = target
            gradient, gradients = None, ()
            if leaves:
                self._reach_leaves(leaves)

    def _arrive(self, edge: Edge, gradient: Any, number: int) -> None:
        """Add a gradient to those that wait at a node, separately for each of its outputs."""
        node, nr = edge_node(edge), edge_nr(edge)
        assert node is not None
        if node.outputs == 1:
            held = self.buffers.get(node)
            self.buffers[node] = gradient if held is None else held + gradient
            self.numbers[node] = number if held is None else 0
            return
        slots = self.buffers.setdefault(node, [None] * node.outputs)
        numbers = self.numbers.setdefault(node, [0] * node.outputs)
        numbers[nr] = number if slots[nr] is None else 0
        slots[nr] = gradient if slots[nr] is None else slots[nr] + gradient

    def _run_simple(
        self, node: Any, waiting: dict[Node, int], alone: bool
    ) -> tuple[Node, Sequence[Any], Sequence[int]]:
        """Run a node with one or two inputs that has no hooks, and tell of both its events at once. If it is
        `alone`, its successor must be the next node; if that is as simple, run it too, and so on. Returns the
        node that ran last, its gradients and their numbers."""
        listener: Any = self.listener
        buffers = self.buffers
        gradient, number = buffers.pop(node), self.numbers.pop(node)
        first: Any
        while True:
            fresh = None if number else gradient
            number = number or next_tensor_number()
            try:
                result = node.vjp(gradient)
            except BaseException:
                listener.received(node.number, node.label, self.number, (number,), (fresh,))
                raise
            a = node.a
            if node.arity == 1:
                first, result = result, (result,)
            else:
                first = result[0]
                if node.b is not None or first is None:
                    return node, result, self._tell_two(node, gradient, number, fresh, result)
            if first is gradient:
                n, told = number, None
            else:
                n, told = next_tensor_number(), first
            following = a if type(a) is not Output else a.node
            if node.arity == 1:
                given: tuple[int, ...] = (n,)
                flows: tuple[int, ...] = (following.number, n)
                values: tuple[Any, ...] = (told,)
            else:
                given, flows, values = (n, 0), (following.number, n, 0, 0), (told, None)
            listener.ran(node.number, node.label, self.number, number, fresh, flows, values)
            if not (
                alone
                and following is a
                and following.arity
                and following.rare is None
                and waiting[following] == 1
                and following not in buffers
                and first is not None
            ):
                return node, result, given
            if node.saves and not self.retain_graph:
                node.release()
            node, gradient, number = following, first, n
            self.current = node.number

    def _tell_two(self, node: Any, gradient: Any, number: int, fresh: Any, result: Sequence[Any]) -> tuple[int, int]:
        """Tell that a node with gradients for two inputs ran. Returns the numbers of these gradients."""
        first, second = result
        n = 0 if first is None else number if first is gradient else next_tensor_number()
        if second is None:
            m = 0
        elif second is gradient:
            m = number
        else:
            m = n if second is first else next_tensor_number()
        a, b = node.a, node.b
        to_a = 0 if a is None else a.node.number if type(a) is Output else a.number
        to_b = 0 if b is None else b.node.number if type(b) is Output else b.number
        told = (first if n != number else None, second if m not in (number, n) else None)
        listener: Any = self.listener
        listener.ran(node.number, node.label, self.number, number, fresh, (to_a, n, to_b, m), told)
        return n, m

    def _run_of_many(self, node: Any) -> tuple[Sequence[Any], Sequence[int]]:
        """Run a node with any number of inputs that has no hooks, and tell of both its events at once."""
        listener: Any = self.listener
        gradient, number = self.buffers.pop(node), self.numbers.pop(node)
        fresh = None if number else gradient
        number = number or next_tensor_number()
        try:
            result = node.vjp(gradient)
        except BaseException:
            listener.received(node.number, node.label, self.number, (number,), (fresh,))
            raise
        numbers = {id(gradient): number, id(None): 0}  # by identity: two inputs may get the same gradient
        given: list[int] = []
        told: list[Any] = []
        flows: list[int] = []
        for edge, produced in zip(node._edges, result, strict=True):
            n, value = numbers.get(id(produced)), None
            if n is None:
                n = numbers[id(produced)] = next_tensor_number()
                value = produced
            given.append(n)
            told.append(value)
            target = edge.node if type(edge) is Output else edge
            flows += (0 if target is None else target.number, n)
        listener.ran(node.number, node.label, self.number, number, fresh, flows, told)
        return result, given

    def _run(self, node: Any, needed: set[Node] | None) -> tuple[Sequence[Any], Sequence[int]]:
        """Run any node, with its hooks."""
        gradients = self.buffers.pop(node, None)
        numbers = self.numbers.pop(node, 0)
        if node.outputs == 1:
            gradients, numbers = [gradients], [numbers]
        elif gradients is None:
            gradients, numbers = [None] * node.outputs, [0] * node.outputs
        runs = needed is None or node in needed
        if node.rare is not None and not runs:
            run_tensor_hooks(self, node, gradients, numbers)
        for tensor, edge in zip(self.wanted, self.wanted_edges, strict=True):
            if edge_node(edge) is node:  # as in PyTorch before the hooks, if the node runs, and else after them
                self._capture(tensor, edge, gradients[edge_nr(edge)], numbers[edge_nr(edge)])
        n_edges = len(node.edges)
        if not runs:
            return (None,) * n_edges, (0,) * n_edges
        if node.rare is not None:
            run_tensor_hooks(self, node, gradients, numbers)
            run_node_prehooks(self, node, gradients, numbers)
        self._tell_received(node, gradients, numbers)
        produced = self._differentiate(node, gradients, numbers)
        if needed is not None and not node.takes_tensors:
            pairs = zip(produced, node.edges, strict=True)
            produced = [g if edge_node(edge) in self.receivers else None for g, edge in pairs]
        if state.anomaly and state.check_nan:
            check_for_nan(node, produced)
        given = [self._number_of_result(g, gradients, numbers) for g in produced]
        if node.takes_tensors and not self.create_graph:
            produced = [None if g is None else g.array for g in produced]
        if node.rare is not None and node.rare.posthooks:
            produced, given = run_node_posthooks(self, node, produced, given, gradients, numbers)
        self._tell_produced(node, produced, given, numbers)
        return produced, given

    def _differentiate(self, node: Any, gradients: Sequence[Any], numbers: Sequence[int]) -> Sequence[Any]:
        """Compute the gradients of a node's inputs from those of its outputs."""
        if all(g is None for g in gradients):
            return [None] * len(node.edges)
        if node.takes_tensors:
            tensors = [shown(self, g, n) for g, n in zip(gradients, numbers, strict=True)]
            return node.vjp_recorded(tuple(tensors))
        upstream = gradients[0] if node.outputs == 1 else tuple(gradients)
        result = node.vjp_recorded(upstream) if self.create_graph else node.vjp(upstream)
        return (result,) if node.arity == 1 else tuple(result)

    def _number_of_result(self, gradient: Any, upstream: Sequence[Any], numbers: Sequence[int]) -> int:
        """The number of a gradient that a rule returned: its own, or that of the upstream gradient if it is
        the same object; else 0."""
        if self.listener is None or gradient is None:
            return 0
        if isinstance(gradient, Tensor):
            return number_of(gradient)
        return next((n for g, n in zip(upstream, numbers, strict=True) if g is gradient), 0)

    def _reach_leaves(self, leaves: list[Any]) -> None:
        """Give leaves their gradients, and empty the list."""
        for node in leaves:
            if node in self.buffers:
                self.current = node.number
                # in a list, so that no frame refers to the gradient, and the leaf may keep it without a copy
                self._reach_leaf(node, [self.buffers.pop(node)], [self.numbers.pop(node)])
        leaves.clear()

    def _reach_leaf(self, node: AccumulateGrad, box: list[Any], numbers: list[int]) -> None:
        """Give a leaf its gradient: accumulate it into `.grad`, or keep it for the caller of `grad`."""
        leaf = node.variable
        rare = tensor_rare(leaf)
        if rare.hooks:
            run_tensor_hooks(self, node, box, numbers)
        asked = any(edge is node for edge in self.wanted_edges)
        runs = self.how == "backward" and (asked or not self.wanted)
        if runs and node.rare is not None:
            run_node_prehooks(self, node, box, numbers)
        accumulates = self.how == "backward" and not (self.wanted or self.create_graph)
        is_plain = accumulates and bool(numbers[0]) and leaf._edge is not None
        if not is_plain:
            self._tell_received(node, box, numbers)
        if asked and self.how == "grad":
            self._capture(leaf, node, box[0], numbers[0])
        if not runs or leaf._edge is None:  # None: it required grad when the graph was made, but not any longer
            return
        upstream = list(box) if node.rare is not None and node.rare.posthooks else None
        try:
            accumulate(leaf, box, self.create_graph)
        except BaseException:
            if is_plain and self.listener is not None:
                self.listener.received(node.number, node.label, self.number, numbers, (None,))
            raise
        if self.listener is not None:
            kept = rare.grad
            assert kept is not None
            if getattr(kept, "_number", -1) < state.first_number:
                # a gradient that two leaves get is the `.grad` of one of them
                kept._number = next_tensor_number() if numbers[0] in self.kept else numbers[0]
            self.kept.add(kept._number)
            self.reached.append(leaf)
            tell = self.listener.leaf_ran if is_plain else self.listener.accumulated
            tell(number_of(leaf), node.number, self.number, numbers[0], state_of(kept))
        for hook in list((rare.accumulate_hooks or {}).values()):
            hook(leaf)
        if upstream is not None:
            run_node_posthooks(self, node, (), [], upstream, numbers)

    def _capture(self, tensor: Tensor, edge: Edge, gradient: Any, number: int) -> None:
        """Keep the gradient of a wanted tensor, in its dtype: a rule may compute in a wider one."""
        if gradient is not None:
            if not isinstance(gradient, Tensor):
                gradient = np.asarray(gradient, tensor.array.dtype)
            self.captured[id(edge_node(edge)), edge_nr(edge)] = shown(self, gradient, number)

    # --- events for the listener

    def _tell_beginning(self) -> None:
        listener: Any = self.listener
        for start in self.gradients:
            if getattr(start, "_number", -1) < state.first_number:
                announce(start, "gradient")
        roots = [
            Root(*edge_numbers(edge), number_of(root), start._number)
            for edge, root, start in zip(self.edges, self.roots, self.gradients, strict=True)
            if hears(listener)  # else the roots have no numbers
        ]
        if state.nameless and state.name_the_rest is not None:
            state.name_the_rest(sys._getframe(2))
        listener.pass_began(
            sys._getframe(2), self.number, self.how, time(), bool(self.retain_graph), self.create_graph,
            roots, [number_of(tensor) for tensor in self.wanted],
        )  # fmt: skip
        if listener.sums:
            listener.summed(self.number, self._loss(), -1.0, -1.0, 0)

    def _tell_received(self, node: Node, gradients: Sequence[Any], numbers: list[int]) -> None:
        if self.listener is not None:
            fresh = self._number_fresh(gradients, numbers, ())
            self.listener.received(node.number, node.label, self.number, numbers, fresh)

    def _tell_produced(self, node: Node, gradients: Sequence[Any], numbers: list[int], known: Sequence[int]) -> None:
        if self.listener is not None:
            fresh = self._number_fresh(gradients, numbers, known)
            flows: list[int] = []
            for edge, number in zip(node.edges, numbers, strict=True):
                flows += (0 if edge is None else edge_node(edge).number, number)  # type: ignore[union-attr]
            self.listener.produced(node.number, self.number, flows, fresh)

    def _number_fresh(self, gradients: Sequence[Any], numbers: list[int], known: Sequence[int]) -> list[Any]:
        """Give a number to each gradient that has none. Returns the values of these, and None for the others."""
        fresh: list[Any] = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None or numbers[i]:
                continue
            if isinstance(gradient, Tensor):
                numbers[i] = number_of(gradient)
                continue
            twin = next((j for j in range(i) if gradients[j] is gradient), None)
            numbers[i] = next_tensor_number() if twin is None else numbers[twin]
            fresh[i] = np.asarray(gradient) if twin is None else None
        return fresh


def check_for_nan(node: Node, gradients: Sequence[Any]) -> None:
    """Raise RuntimeError if a gradient contains NaN, for anomaly mode."""
    for nr, gradient in enumerate(gradients):
        if gradient is not None and np.isnan(getattr(gradient, "array", gradient)).any():
            raise nan_gradient(node, nr)


def count_dependencies(roots: Sequence[Any]) -> dict[Node, int]:
    """The number of gradients that each node will receive, for all nodes that can be reached from the roots."""
    waiting: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(waiting)
    while stack:
        node: Any = stack.pop()
        arity = node.arity
        edges = (node.a,) if arity == 1 else (node.a, node.b) if arity == 2 else node.edges
        for edge in edges:
            if edge is not None:
                target = edge.node if type(edge) is Output else edge
                if target in waiting:
                    waiting[target] += 1
                else:
                    waiting[target] = 1
                    stack.append(target)
    return waiting


def nodes_towards(edges: Sequence[Edge], reached: dict[Node, int]) -> set[Node]:
    """The nodes that have to run to compute the gradients of `edges`."""
    targets = {edge_node(edge) for edge in edges}
    needed: set[Node] = set()
    for node in sorted(reached, key=lambda node: (not node.runs_first, node.number)):
        onward = [edge_node(edge) for edge in node.edges]
        if any(target in targets or target in needed for target in onward if target is not None):
            needed.add(node)
    return needed
