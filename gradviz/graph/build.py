"""Builds the graph of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np

from gradviz.errors import GradvizError
from gradviz.events.field_types import Root
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, ErrorRaised, Kind, OpRan, TensorMade
from gradviz.events.values import VMAP
from gradviz.graph import model as m
from gradviz.graph.model import Edge, Graph, Ids, Node, Scope, no_collection
from gradviz.graph.node_values import fill_values, name_gradients
from gradviz.query import FIRST, Query, State
from gradviz.query.bad_numbers import bad_numbers
from gradviz.query.flow import Downstream, Reason, computed_from, reach, why_no_node
from gradviz.query.function_calls import FunctionCalls
from gradviz.query.nodes import ACCUMULATE
from gradviz.query.ops import function_name
from gradviz.query.passes import left_out, ranges
from gradviz.query.tied_names import tied_names
from gradviz.sets import contained
from gradviz.tracefile import PassInfo, Trace

# The edges of a graph, from the events of its part of a run.

# Labels of edges along which no gradient flows back.
CUTS = {
    Reason.DETACHED: "detach",
    Reason.GRAD_MODE_OFF: "no_grad",
    Reason.NOT_DIFFERENTIABLE: "not differentiable",
    Reason.NOTHING_REQUIRES_GRAD: "",
}


class Edges:
    """Makes the edges between the nodes of one graph."""

    def __init__(self, query: Query, ids: Ids, nodes: dict[str, Node]) -> None:
        self.query, self.tensors, self.ids, self.nodes = query, query.tensors, ids, nodes

    def of(self, part: Part, grad_fns: Iterable[int]) -> list[Edge]:
        """The edges of a part of a run, and the edges of the nodes `grad_fns`."""
        edges: list[Edge] = []
        for event in sorted(part.ops):
            edges += self._of_op(self.tensors.op(event))
        for event in sorted(part.writes):
            mutated, name = self.tensors.mutation(event), self.ids.op[event]
            source = self.tensors.before(mutated.source, event)
            edges.append(Edge(self.ids.tensor(source), name, m.DATA))
            edges.append(Edge(name, self.ids.tensor(State(mutated.tensor, event)), m.DATA))
        for state in sorted(part.states):
            edges += self._write_or_view(state)
        node_ids = self.ids.node
        for number in grad_fns:
            edges += [
                Edge(node_ids[number], node_ids[edge.node], m.GRAD)
                for edge in self.query.nodes.edges(number)
                if edge.node
            ]
        return [edge for edge in edges if edge.source in self.nodes and edge.target in self.nodes]

    def _of_op(self, op: OpRan) -> list[Edge]:
        """Edges for the inputs and outputs of an op, and for the tensors that its nodes saved."""
        name, tensors = self.ids.op[op.index], self.tensors
        made = self.query.nodes.of_op(op.index)
        led_to = {edge.tensor for node in made for edge in self.query.nodes.edges(node) if edge.node}
        edges = [
            Edge(self.ids.tensor(state), name, m.DATA, "", self._cut(op, state.tensor, bool(made), led_to))
            for state in tensors.reads(op.index)
            if state
        ]
        edges += [Edge(name, self.ids.tensor(tensors.after(tensor, op.index)), m.DATA) for tensor in op.outputs]
        for node in made:
            states = [
                tensors.after(saved.tensor, op.index)
                if saved.tensor in op.outputs and saved.tensor not in op.inputs
                else tensors.before(saved.tensor, op.index)
                for saved in self.query.nodes.saved(node)
                if saved.tensor
            ]
            ids = dict.fromkeys(map(self.ids.tensor, states))
            edges += [Edge(tensor, self.ids.node[node], m.SAVED) for tensor in ids]
        return edges

    def _cut(self, op: OpRan, tensor: int, has_node: bool, led_to: set[int]) -> str:
        """The reason why no gradient flows back to an input that requires grad. Empty if a gradient does flow back, if
        the input does not require grad, or if it gives only a shape."""
        if tensor in led_to or (has_node and 0 in led_to) or tensor not in computed_from(op):
            return ""
        base = self.tensors.base(State(tensor, FIRST))
        if base is not None and base.tensor in led_to:
            return ""
        if not self.tensors.requires_grad(tensor, op.index - 1):
            return ""
        return CUTS[Reason.NOT_DIFFERENTIABLE if has_node else why_no_node(self.query, op)]

    def _write_or_view(self, state: State) -> list[Edge]:
        """The edge from the earlier state of a tensor that was changed in place, or from the base of a view."""
        tensors, ids = self.tensors, self.ids
        if state.since != FIRST:
            before = tensors.before(state.tensor, state.since)
            how = tensors.writer(state.since)
            added = tensors.grads.events[tensors.grads.values == state.tensor]
            between = int(((added > before.since) & (added < state.since)).sum())
            if between > (before.since == FIRST):  # passes added to a `.grad`, after the one that made it
                how = f"accumulated, {how}"
            return [Edge(ids.tensor(before), ids.tensor(state), m.MUTATION, label=how)]
        base = tensors.base(state)
        if base is None:
            return []
        made = tensors.made(state.tensor)
        cut = ""
        if isinstance(made, TensorMade) and made.how == VMAP:
            return [Edge(ids.tensor(base), ids.tensor(state), m.DATA)]
        if isinstance(made, TensorMade) and tensors.requires_grad(base.tensor, made.index):
            cut = made.how
        return [Edge(ids.tensor(base), ids.tensor(state), m.VIEW, cut=cut)]


# The pass that a picture shows if nobody has chosen one.

_MOST_SHAPES = 4  # the most different passes in which a cut is looked for
_MOST_NODES = 5_000  # the most nodes of a pass in which a cut is looked for


def pass_of_interest(query: Query, build: Callable[[PassInfo], Graph]) -> tuple[PassInfo, str]:
    """The pass of the first NaN, else of the first error, else the first pass with a cut (other than by no_grad), else
    the first with nodes that sets `.grad`, else the first. Also gives the reason for it; empty if there is only one
    pass. `build` makes the graph of a pass.

    Raises ValueError if the trace has no passes."""
    trace = query.trace
    numbers = trace.pass_numbers
    if len(numbers) < 2:
        return _first(query), ""
    faulty = pass_with_fault(trace)
    if faulty is not None:
        return faulty
    cut = _with_cut(query, build)
    if cut is not None:
        return cut, "with the first cut"
    first = _first(query)
    if first.number == numbers[0]:
        return first, "the first"
    earlier = query.trace.find_pass(numbers[0])
    is_told = earlier is not None and earlier.is_in_detail
    return first, "the first that sets .grad" if is_told else "the first recorded in detail"


def pass_with_fault(trace: Trace) -> tuple[PassInfo, str] | None:
    """The pass of the first NaN, else of the first error, and which of the two; None if the run has fewer than two
    passes, or neither of them."""
    if len(trace.pass_numbers) < 2:
        return None
    errors = (trace.event(error.event) for error in trace.errors)
    error = next((event.index for event in errors if isinstance(event, ErrorRaised) and event.in_pass), None)
    for what, event in (("with the first NaN", trace.first_nan), ("with the error", error)):
        faulty = None if event is None else trace.pass_ending_from(event)
        if faulty is not None:
            return faulty, what
    return None


def pass_with_infinity(query: Query) -> tuple[PassInfo, str] | None:
    """The pass of the first computed infinity, with this reason; None if the run has fewer than two passes or a NaN, or
    no computed infinity."""
    if len(query.trace.pass_numbers) < 2:
        return None
    bad = query.of(bad_numbers)
    faulty = query.trace.pass_ending_from(int(bad.events[0])) if bad.inf and not (bad.nan or bad.written) else None
    return None if faulty is None else (faulty, "with the first infinity")


def _first(query: Query) -> PassInfo:
    """The first pass with nodes that sets `.grad`, else the first with nodes, else the first."""
    trace = query.trace
    with_nodes = trace.passes_by_shape(_MOST_SHAPES)
    setting = (one for one in with_nodes if not query.passes.began(one.number).inputs)
    first = next(setting, with_nodes[0] if with_nodes else trace.find_pass(trace.pass_numbers[0]))
    assert first is not None
    return first


def _with_cut(query: Query, build: Callable[[PassInfo], Graph]) -> PassInfo | None:
    """The first pass in which a gradient stops where one might be expected; if some passes set `.grad`, the first of
    them. A penalty that `autograd.grad` differentiates is no training step. A cut by no_grad is mostly intended: a
    target network, a probe."""
    passes = query.trace.passes_by_shape(_MOST_SHAPES)
    setting = [one for one in passes if not query.passes.began(one.number).inputs]
    for backward_pass in setting or passes:
        if (backward_pass.nodes or 0) <= _MOST_NODES and any(
            edge.cut not in ("", "no_grad") for edge in build(backward_pass).edges
        ):
            return backward_pass
    return None


MOST_VALUES = 20_000  # with more nodes than this, values are left out
_PlaceText = tuple[str | None, int | None, int | None, int | None, str]
_TOLD_LATE = ("earlier", "Parameter", "Buffer")
SHOWS = ("both", "forward", "backward")


class GraphError(GradvizError):
    """The requested pass or view does not exist. The message is one line for the user."""


@no_collection()
def build(
    trace: Trace | Query,
    passes: int | None = None,
    show: str = "both",
    whole: bool = False,
    values: bool = True,
    of: Sequence[int] = (),
    found_in: int = 0,
) -> Graph:
    """Build the graph of pass number `passes`, or of the whole run.

    With None, it is the pass of interest: the pass of the first finding, number `found_in`, if there is one; else the
    first with a NaN or an error. Without these, a small run shows the first pass with an infinity, else the last; other
    runs show the first with a cut, else the first. A run without passes is shown whole. With the numbers `of` tensors
    it is the graph that leads to them: of the last pass that began there, or without one as the graph was made.

    For many graphs of one trace, give its Query, which keeps the results of look-ups.

    A small run that is no loop is shown from beginning to end unless a pass is requested by number. `show="backward"`
    gives exactly the nodes reachable through `next_functions` from the roots of the pass. Without `values`, nodes and
    edges have no values. Raises GraphError if the pass does not exist, TraceError if the trace is damaged."""
    if show not in SHOWS:
        raise GraphError(f"show is {', '.join(SHOWS)}; not {show!r}")
    query = trace if isinstance(trace, Query) else Query(trace)
    if of and passes is None:
        return _Builder(query, _last_pass_from(query, of), True, show, False, of).graph(values)
    run, why = _chosen(query, passes, whole, found_in)
    return _Builder(query, run, passes is not None, show, whole).graph(values, why)


def _last_pass_from(query: Query, tensors: Sequence[int]) -> PassInfo | None:
    """The last pass that has these tensors among its roots."""
    query.trace.reach_all()
    for backward_pass in reversed(query.trace.passes):
        if {root.tensor for root in query.passes.starts(backward_pass.number)}.issuperset(tensors):
            return backward_pass
    return None


def _chosen(query: Query, number: int | None, whole: bool, found_in: int) -> tuple[PassInfo | None, str]:
    """The pass to show, and the reason for it, if the user did not choose it."""
    if number is None:
        is_lesson = _is_lesson(query)
        if is_lesson and not whole:
            query.trace.reach_all()
            faulty = pass_with_fault(query.trace) or pass_with_infinity(query)
            if faulty is not None:
                return faulty
        if whole or is_lesson or not query.trace.pass_numbers:
            query.trace.reach_all()
            passes = query.trace.passes
            return (passes[-1], "") if passes else (None, "")
        if (run := query.trace.find_pass(found_in)) is not None and len(query.trace.pass_numbers) > 1:
            return run, "with the first finding"
        return pass_of_interest(query, lambda run: _Builder(query, run, True, "forward", False).graph(values=False))
    run = query.trace.find_pass(number)
    if run is None:
        numbers = query.trace.pass_numbers
        have = ranges(numbers) if len(numbers) > 1 else f"only pass {numbers[0]}" if numbers else "none"
        raise GraphError(f"there is no pass {number} in {query.trace.path.name}: it has {have}")
    return run, ""


def _is_lesson(query: Query) -> bool:
    """Whether the run is small and no loop, so that all of it can be shown."""
    if max(query.trace.ops_told, len(query.trace.pass_numbers)) > SMALL:
        return False
    query.trace.reach_all()
    return not query.passes.are_a_loop(query.trace.passes)


class _Builder:
    """Builds one graph: it selects the part of the run, then makes nodes, then edges."""

    def __init__(
        self,
        query: Query,
        backward_pass: PassInfo | None,
        asked_for: bool,
        show: str,
        whole: bool,
        of: Sequence[int] = (),
    ) -> None:
        self.query, self.trace, self.tensors = query, query.trace, query.tensors
        self.backward_pass, self.asked_for, self.show, self.whole = backward_pass, asked_for, show, whole
        if backward_pass is not None:
            self.trace.reach_pass(backward_pass)
        self.ids = Ids()
        self.at = self.trace.count - 1
        if backward_pass is not None and backward_pass.last is not None and not (whole and not asked_for):
            self.at = backward_pass.last
        self.since = horizon(query, self.at)
        self.roots = query.passes.starts(backward_pass.number) if backward_pass is not None else self._roots(of)
        # the roots are as they were before this event
        self.before = backward_pass.first if backward_pass is not None else self.trace.count
        self.asked = query.passes.began(backward_pass.number).inputs if backward_pass is not None else ()
        self.result = Graph(
            Path(self.trace.meta.get("script", "")).name,
            None if backward_pass is None or (whole and not asked_for) else backward_pass.number,
            self.trace.passes_begun,
            show=show,
            at=self.at,
            of=", ".join(map(query.labels.of, of)) if backward_pass is None else "",
        )
        self.states: dict[str, State] = {}  # the states of tensors, by id
        self.unmade: list[str] = []  # the ids of tensors without an op
        self.accumulators: dict[State, int] = {}  # the AccumulateGrad of a leaf, by the state in which ops read it
        self.places: dict[int, _PlaceText] = {}  # by site

    def graph(self, values: bool, why: str = "") -> Graph:
        """Build the graph. `why` is the reason why it shows this pass."""
        self.result.why = why
        if self.show == "backward":
            roots = self._root_nodes() or self.query.nodes.ends(self.at)
            part, nodes = Part(), self.query.nodes.walk(roots, self.since)
        else:
            part = self._part()
            nodes = self._nodes_of(part) if self.show == "both" else []
        self._note_accumulators(part, nodes)
        if self.show == "both":  # a leaf that no recorded op reads, as of a graph from before the recording
            read = {state.tensor for state in part.states}
            part.states.update(state for state in self.accumulators if state.tensor not in read)
        self.ids = Ids(part.states)
        self._add_tensors_and_ops(part)
        self._add_grad_fns(nodes)
        self.result.edges = Edges(self.query, self.ids, self.result.nodes).of(part, nodes)
        self._pair_leaves(part)
        if not self.whole:
            self._drop_strays()
        name_gradients(self.result, self.query)
        self._mark_roots()
        self._mark_error()
        self.result.scopes = self._scopes(part)
        if part.beyond or self._lead_beyond(nodes):
            note = f"of {self.trace.ops_told:,} operations only the last {MOST_OPS:,} are looked at"
            self.result.notes.append(note)
        elif self.show != "backward":
            self.result.left_out = self.trace.ops_told - len(part.ops)
        if values and len(self.result.nodes) <= MOST_VALUES:
            fill_values(self.result, self.query, self.states, self.backward_pass)
        if self.result.pass_number is not None and self.backward_pass and not self.backward_pass.is_in_detail:
            told = left_out(self.trace, self.result.pass_number)
            self.result.notes.append(told or "this pass was not recorded in detail (--passes, --scope)")
        return self.result

    # --- the part of the run

    def _roots(self, tensors: Sequence[int]) -> tuple[Root, ...]:
        """Tensors as the roots of a pass that has not begun."""
        end = self.trace.count - 1
        return tuple(Root(self.query.nodes.grad_fn(tensor, end), 0, tensor, 0) for tensor in tensors)

    def _part(self) -> Part:
        if self.whole or not (self.backward_pass or self.roots):
            return everything(self.query, self.at, self.whole, self.since)
        if (
            self.backward_pass
            and not self.asked_for
            and self.backward_pass.recorded
            and self.trace.ops_told <= 10 * SMALL
        ):
            part = everything(self.query, self.at, inner=False, since=self.since)
            until = [one for one in self.trace.passes if one.number <= self.backward_pass.number]
            if len(part) <= SMALL and not self.query.passes.are_a_loop(until):
                return part
        part = upstream(self.query, [root.tensor for root in self.roots if root.tensor], self.before, self.since)
        if self.backward_pass is not None:
            _add_astray(self.query, part, self.backward_pass.first, self.since)
        return part

    def _root_nodes(self) -> list[int]:
        return [root.node for root in self.roots if root.node] if not self.whole else []

    def _nodes_of(self, part: Part) -> list[int]:
        nodes = self.query.nodes
        reached: dict[int, None] = dict.fromkeys(nodes.walk(self._root_nodes(), self.since))
        for event in sorted(part.ops):
            for node in nodes.of_op(event):
                reached[node] = None
                reached.update(dict.fromkeys(edge.node for edge in nodes.edges(node) if edge.node))
        return [node for node in reached if not nodes.is_before(node, self.since)]

    def _lead_beyond(self, nodes: list[int]) -> bool:
        """Whether these nodes lead to nodes that are too far back to be shown."""
        known = self.query.nodes
        return bool(self.since) and any(
            known.is_before(edge.node, self.since) for node in nodes for edge in known.edges(node)
        )

    def _note_accumulators(self, part: Part, nodes: Iterable[int]) -> None:
        """Record the AccumulateGrad of each leaf, as found in the edges of the nodes of this graph."""
        known = self.query.nodes
        all_nodes = {*nodes, *(node for event in part.ops for node in known.of_op(event))}
        for node in sorted(all_nodes):
            event = known.op(node)
            for edge in known.edges(node):
                if edge.node and edge.tensor and known.leaf(edge.node):
                    state = self.tensors.before(edge.tensor, event if event is not None else self.at)
                    self.accumulators[state] = edge.node

    def _scopes(self, part: Part) -> dict[str, Scope]:
        """The scopes that the ops of this graph ran in."""
        scopes: dict[str, Scope] = {}
        for visit in self.query.scopes.visits(part.ops):
            calls = scopes[visit.path].calls if visit.path in scopes else 0
            scopes[visit.path] = Scope(visit.type, calls + 1)
        return scopes

    # --- nodes

    def _add_tensors_and_ops(self, part: Part) -> None:
        """Add tensors and ops in the order in which they were made."""
        newest: dict[int, Node] = {}  # by tensor: its last version so far
        born: dict[int, State | int] = {event << 33: event for event in (*part.ops, *part.writes)}
        for state in part.states:
            since = state.since if state.since != FIRST else self.tensors.maker(state.tensor)
            born[(-1 if since is None else since) << 33 | 1 << 32 | state.tensor] = state  # after its op
        for _, thing in sorted(born.items(), key=itemgetter(0)):
            node = self._tensor(thing) if isinstance(thing, State) else self._op(thing)
            self.result.nodes[node.id] = node
            if isinstance(thing, State):
                self._follow(newest.get(thing.tensor), node)
                newest[thing.tensor] = node

    @staticmethod
    def _follow(before: Node | None, after: Node) -> None:
        """Mark two versions of a tensor. A leaf is one leaf, however often it was written in place: its later versions
        are tensors."""
        if before is not None:
            before.overwritten = True
            after.kind = m.TENSOR

    def _tensor(self, state: State) -> Node:
        tensors, (tensor, since) = self.tensors, state
        made = tensors.made(tensor)
        op = tensors.op_behind(state)
        flags = tensors.flags(tensor, tensors.last_event(state, self.at))
        is_leaf, wanted = bool(flags & LEAF), bool(flags & REQUIRES_GRAD)
        node = Node(
            self.ids.tensor(state),
            m.LEAF if is_leaf and (wanted or isinstance(made, TensorMade)) else m.TENSOR,
            tensor,
            name=self.query.names.of(tensor),
            called=self.query.labels.of(tensor),
            op=op.op if op is not None else made.how if isinstance(made, TensorMade) else None,
            grad_fn=self._grad_fn_of(state) if wanted and not is_leaf else None,
            is_leaf=is_leaf,
            requires_grad=wanted,
            tied=self.query.of(tied_names).get(tensor, ()),
            parameter=tensor in self.trace.parameters,
            buffer=tensor in self.trace.buffers,
            scope=self._scope_of(op, made),
        )
        self.states[node.id], node.since = state, since
        node.spared = is_leaf and bool(self.asked) and tensor not in self.asked
        if since != FIRST:
            node.version, node.written_by = tensors.version(tensor, since), tensors.writer(since)
            node.op = node.op if op is not None else node.written_by
        if op is None:
            self.unmade.append(node.id)
        node.shape, node.dtype = self._form(state)
        maker = op if op is not None else made
        self._place(node, maker.site if maker is not None else 0)
        if isinstance(made, TensorMade) or flags & VIEW:
            base = tensors.base(State(tensor, FIRST))
            node.base = self.query.labels.of(base.tensor) if base is not None else None
        return node

    def _scope_of(self, op: OpRan | None, made: OpRan | TensorMade | None) -> str:
        """The scope in which a tensor was made. Empty for a tensor that was recorded only when it was first used: it
        may be older."""
        if op is None and isinstance(made, TensorMade) and made.how in _TOLD_LATE:
            return ""
        maker = op if op is not None else made
        return "" if maker is None else self.query.scopes.path(maker.index)

    def _grad_fn_of(self, state: State) -> str | None:
        event = self.tensors.op_that_made(state)
        number = self.query.nodes.grad_fn(state.tensor, self.at if event is None else event)
        return self.query.nodes.name(number) or None

    def _form(self, state: State) -> tuple[tuple[int, ...] | None, str | None]:
        """Shape and dtype of a state: `unsqueeze_` and the like change the shape."""
        if state.since == FIRST:
            return self.trace.shape(state.tensor) or (None, None)
        snapshot = self.trace.snapshot(state.tensor, state.since)
        return (None, None) if snapshot is None else (snapshot.shape, snapshot.dtype)

    def _op(self, event: int) -> Node:
        node = Node(self.ids.op[event], m.OP, event, scope=self.query.scopes.path(event))
        if not self.tensors.is_op(event):
            node.name = node.op = self.tensors.writer(event)
            self._place(node, self.tensors.mutation(event).site)
            return node
        op = self.tensors.op(event)
        node.name = function_name(op.op)
        node.op, node.args, node.in_pass = op.op, op.args, op.in_pass
        node.astray = event in self.query.of(Downstream).astray
        if number := self.query.nodes.main_of_op(event):
            node.grad_fn, node.pair = self.query.nodes.name(number), self.ids.node[number]
        self._place(node, op.site)
        self._note_calls(node, op)
        if node.scope:
            visit, site = self.query.scopes.entered(event)
            node.visit = visit if self._place_of(op.site)[:4] == self._place_of(site)[:4] else 0
        return node

    def _note_calls(self, node: Node, op: OpRan) -> None:
        calls = self.query.of(FunctionCalls)
        node.calls = calls.around(op.index, op.site)
        node.runs_once = node.kind == m.OP and calls.runs_op_once(op.site, op.op)

    def _add_grad_fns(self, numbers: list[int]) -> None:
        nodes = self.query.nodes
        for number in numbers:
            node = Node(self.ids.node[number], m.GRAD_FN, number)
            node.name = node.grad_fn = nodes.name(number) or None
            event = nodes.op(number)
            if event is not None:
                op = self.tensors.op(event)
                node.op, node.scope = op.op, self.query.scopes.path(event)
                node.maker = self.ids.op[event]
                self._place(node, op.site)
                self._note_calls(node, op)
            elif leaf := nodes.leaf(number):
                node.base = self.query.labels.of(leaf)
                node.name = node.grad_fn = ACCUMULATE
            self.result.nodes[node.id] = node

    def _pair_leaves(self, part: Part) -> None:
        """Connect each leaf with its AccumulateGrad, and put a parameter into the scope that first uses it."""
        nodes, parameters = self.result.nodes, self.trace.parameters
        used_in: dict[State, int] = {}
        for event in sorted(part.ops, reverse=True) if parameters else ():
            used_in.update((state, event) for state in self.tensors.reads(event) if state)
        leaves = [state for state in part.states if state.tensor in parameters or state in self.accumulators]
        for state in sorted(leaves):
            node = nodes[self.ids.tensor(state)]
            if state.tensor in parameters and state in used_in:
                node.scope = self.query.scopes.path(used_in[state])
            if state in self.accumulators and node.is_leaf:
                node.pair = self.ids.node[self.accumulators[state]]
                if node.pair in nodes:
                    nodes[node.pair].scope = node.scope

    def _place(self, node: Node, number: int) -> None:
        node.file, node.line, node.col, node.end_col, node.text = self._place_of(number)

    def _place_of(self, number: int) -> _PlaceText:
        """File, line, first and end column, and source line of a site."""
        place = self.places.get(number)
        if place is None:
            place = self.places[number] = self._found_place(number)
        return place

    def _found_place(self, number: int) -> _PlaceText:
        site = self.trace.sites.get(number)
        if site is None:
            return None, None, None, None, ""
        place = site.place
        return place.file, place.line, place.col, place.end_col, self.query.places.line_text(number)

    def _drop_strays(self) -> None:
        """Remove unnamed tensors that no op made and no op used, such as a tensor that was only printed; not a leaf
        with its AccumulateGrad."""
        nodes, edges = self.result.nodes, self.result.edges
        strays = {name for name in self.unmade if not nodes[name].name and nodes[name].pair not in nodes}
        if strays:
            strays.difference_update([edge.source for edge in edges])
            strays.difference_update([edge.target for edge in edges if edge.kind != m.VIEW])
        if strays:
            self.result.nodes = {name: node for name, node in nodes.items() if name not in strays}
            self.result.edges = [edge for edge in edges if edge.target not in strays]

    # --- marks

    def _mark_roots(self) -> None:
        site = self.trace.sites.get(self.backward_pass.site) if self.backward_pass is not None else None
        if self.backward_pass is not None and site is not None and self.result.pass_number is not None:
            text = self.query.places.line_text(self.backward_pass.site)
            self.result.title = f"line {site.place.line}" + (f": {text}" if text else "")
        for root in self.roots:
            ids = [self.ids.node[root.node]] if root.node else []
            if root.tensor:
                ids.append(self.ids.tensor(self.tensors.before(root.tensor, self.before)))
            for name in ids:
                if name in self.result.nodes:
                    self.result.nodes[name].root = True

    def _mark_error(self) -> None:
        for error in self.trace.errors:
            within = self.backward_pass is None or self.backward_pass.first <= error.event or self.whole
            if error.event <= self.at and within:
                self.result.error = f"{error.type}: {error.message}"
                node = self.result.nodes.get(f"n{error.node}")
                if node is not None:
                    node.error = self.result.error
        if not self.result.error and self.trace.meta.get("ended") == "error" and self.backward_pass is None:
            self.result.error = self.trace.meta.get("error", "")


# The part of a run that a graph shows: all of it, or the part that one pass differentiated.

SMALL = 60  # a run with at most this many tensors and ops is shown whole
MOST_OPS = 25_000  # of a larger run the last ops are shown


@dataclass(slots=True)
class Part:
    """OP events, states of tensors, and MUTATED events that are drawn as ops. `beyond`: more of it is too far back."""

    ops: set[int] = field(default_factory=set)
    states: set[State] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    beyond: bool = False

    def __len__(self) -> int:
        return len(self.ops) + len(self.states) + len(self.writes)


def horizon(query: Query, at: int) -> int:
    """The event before which nothing is shown, so that at most `MOST_OPS` ops up to event `at` are shown."""
    events = query.trace.table(Kind.OP).events
    end = int(np.searchsorted(events, at, "right"))
    return int(events[end - MOST_OPS]) if end > MOST_OPS else 0


def everything(query: Query, at: int, inner: bool, since: int = 0) -> Part:
    """All ops and tensors from event `since` to event `at`. With `inner`, also ops inside a custom Function, and ops
    of a pass that records no graph."""
    trace, tensors, part = query.trace, query.tensors, Part(beyond=since > 0)
    trace.reach_all()
    ops = trace.table(Kind.OP)
    shown = (ops.events >= since) & (ops.events <= at)
    if not inner:
        shown &= (ops["in_pass"] == 0) | contained(ops.events, trace.table(Kind.NODE)["op"])
    made = trace.table(Kind.TENSOR)
    plain = (made.events >= since) & (made.events <= at) & ~trace.named(made["how"], ("gradient",))
    part.states.update(State(tensor, FIRST) for tensor in made["tensor"][plain].tolist())
    for event in ops.events[shown].tolist():
        if inner or not (query.scopes.in_function(event) or _writes_over_a_gradient(query, part, event)):
            _add_op(query, part, event)
    written = trace.table(Kind.MUTATED)
    for event, tensor in zip(written.events.tolist(), written["tensor"].tolist(), strict=True):
        if since <= event <= at and tensors.before(tensor, event) in part.states:
            _add_write(query, part, State(tensor, event))
    return part


def _writes_over_a_gradient(query: Query, part: Part, event: int) -> bool:
    """Whether an op in place without a node, as in `x.grad.zero_()`, writes only over tensors that a pass made."""
    op = query.tensors.op(event)
    written = [tensor for tensor in op.outputs if tensor in op.inputs]
    earlier = [query.tensors.before(tensor, event) for tensor in written]
    return bool(earlier) and not query.nodes.of_op(event) and not part.states.intersection(earlier)


def _add_op(query: Query, part: Part, event: int) -> None:
    part.ops.add(event)
    part.states.update(state for state in query.tensors.reads(event) if state)
    part.states.update(query.tensors.after(tensor, event) for tensor in query.tensors.op(event).outputs)


def _add_write(query: Query, part: Part, state: State) -> None:
    """Add a state that began with a MUTATED event. If no op in the trace did it, the event is drawn as an op."""
    part.states.add(state)
    mutated = query.tensors.mutation(state.since)
    if mutated.source and mutated.op < 0:
        part.writes.add(state.since)
        part.states.add(query.tensors.before(mutated.source, state.since))


def upstream(query: Query, roots: Iterable[int], at: int, since: int = 0) -> Part:
    """The ops and tensors that the `roots` were computed from, also across cuts, from event `since` on. The roots are
    tensors as they were before event `at`.

    It stops at leaves that require grad (earlier optimizer steps are not shown). Beyond a cut, it also stops at ops
    that a pass before `at` differentiated."""
    earlier = query.trace.passes_ended_before(at)
    part = Part()
    cut = _flood(query, part, [query.tensors.before(root, at) for root in roots], -1, since, at)
    while cut:
        cut = _flood(query, part, cut, earlier, since, at)
    return part


def _flood(query: Query, part: Part, states: Iterable[State], barrier: int, since: int, before: int) -> list[State]:
    """Add states and all their ancestors, up to ops that made no node, and up to leaves that a pass `before` an event
    begins with. Returns the inputs of these ops. Ops that made a node and ran no later than event `barrier` are not
    added, nor any before event `since`."""
    tensors, nodes_of = query.tensors, query.nodes.of_op
    ops, reached = part.ops, part.states
    op_that_made, after, reads = tensors.op_that_made, tensors.after, tensors.reads
    stack = [state for state in states if state not in reached]
    behind: list[State] = []
    while stack:
        state = stack.pop()
        if state in reached:
            continue
        reached.add(state)
        if state.since != FIRST and tensors.is_leaf_that_requires_grad(state.tensor, state.since):
            continue
        event = op_that_made(state)
        if FIRST < (state.since if event is None else event) < since:
            part.beyond = True
            continue
        if event is None:
            stack += _before_without_op(query, part, state)
            continue
        has_node = bool(nodes_of(event))
        if has_node and event <= barrier:
            continue
        if not has_node and _begins_with(query, state, before):
            continue
        ops.add(event)
        reached.update([after(tensor, event) for tensor in tensors.op(event).outputs])
        read = [known for known in reads(event) if known]
        if state.since != FIRST and state.since != event:  # written through a tensor on the same memory
            read.append(tensors.before(state.tensor, state.since))
        (stack if has_node else behind).extend(read)
    return behind


def _add_astray(query: Query, part: Part, before: int, since: int) -> None:
    """Add what was computed from the last pass until event `before`, reached no root, and has a parameter that the part
    lacks: a head that was left out of the loss."""
    tensors, earlier = query.tensors, query.trace.passes_ended_before(before)
    known = {state.tensor for state in part.states}
    found: set[int] = set()
    for event in sorted(one for one in query.of(Downstream).astray if earlier < one < before):
        op = tensors.op(event)
        new = (one for one in op.inputs if one in query.trace.parameters and tensors.requires_grad(one, event))
        if found.intersection(op.inputs) or not known.issuperset(new):
            found.update(op.outputs)
    _flood(query, part, [tensors.before(tensor, before) for tensor in sorted(found)], earlier, since, before)


def _begins_with(query: Query, leaf: State, before: int) -> bool:
    """Whether a state is a leaf that requires grad before an event, and came from nothing that requires grad: how it
    got its first value is no part of a pass."""
    tensors = query.tensors
    if not tensors.is_leaf_that_requires_grad(leaf.tensor, before):
        return False

    def earlier(state: State) -> Iterable[State]:
        event = tensors.op_that_made(state)
        return _before_without_op(query, Part(), state) if event is None else filter(None, tensors.reads(event))

    sources = islice(reach([leaf], earlier), 1, None)
    return not any(tensors.requires_grad(one.tensor, tensors.last_event(one, before)) for one in sources)


def _before_without_op(query: Query, part: Part, state: State) -> list[State]:
    """The predecessors of a state that no op made: its earlier state, or the tensor whose memory it shares."""
    tensors = query.tensors
    if state.since != FIRST:
        if source := tensors.mutation(state.since).source:
            part.writes.add(state.since)
        return [tensors.before(tensor, state.since) for tensor in (state.tensor, source) if tensor]
    base = tensors.base(state)
    return [base] if base is not None else []
