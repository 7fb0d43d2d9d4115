"""From a trace to its graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from gradviz.events.kinds import Kind, OpRan, PassBegan, TensorMade
from gradviz.events.listener import LEAF, REQUIRES_GRAD, VIEW
from gradviz.graph import model as m
from gradviz.graph import select
from gradviz.graph.edges import edges_of
from gradviz.graph.history import FIRST, History, State
from gradviz.graph.many import no_collection
from gradviz.graph.model import Graph, Node
from gradviz.graph.names import Names
from gradviz.graph.scopes import Scopes
from gradviz.graph.select import Part
from gradviz.graph.values import fill_values, name_gradients
from gradviz.tracefile import PassInfo, Trace

MOST_VALUES = 20_000  # nodes; nobody reads the values of more
SHOWS = ("both", "forward", "backward")


class GraphError(ValueError):
    """What was asked for is not in the trace. The message is one line for the user."""


@no_collection()
def build(
    trace: Trace, passes: int | None = None, show: str = "both", whole: bool = False, values: bool = True
) -> Graph:
    """The graph of pass number `passes` (None: the last; a run without one is shown whole) or of the whole run.

    A small run is shown from its beginning, unless a pass is asked for by number. `show="backward"` is exactly
    what walking `next_functions` from the pass's roots gives. Without `values`, only structure is filled in.
    Raises GraphError where there is no such pass, TraceError where the trace is damaged."""
    if show not in SHOWS:
        raise GraphError(f"show is {', '.join(SHOWS)}; not {show!r}")
    return _Builder(trace, _chosen(trace, passes), passes is not None, show, whole).graph(values)


def _chosen(trace: Trace, number: int | None) -> PassInfo | None:
    found = {run.number: run for run in trace.passes}
    if number is None:
        return trace.passes[-1] if trace.passes else None
    if number not in found:
        have = f"1 to {len(found)}" if len(found) > 1 else "only pass 1" if found else "none"
        raise GraphError(f"there is no pass {number} in {trace.path.name}: it has {have}")
    return found[number]


class _Builder:
    """Builds one graph: first chooses what belongs to it, then makes nodes, then edges."""

    def __init__(self, trace: Trace, run: PassInfo | None, asked_for: bool, show: str, whole: bool) -> None:
        self.trace, self.run, self.asked_for, self.show, self.whole = trace, run, asked_for, show, whole
        self.history, self.scopes, self.names = History(trace), Scopes(trace), Names(trace)
        self.at = trace.count - 1
        if run is not None and run.last is not None and not (whole and not asked_for):
            self.at = run.last
        began = None if run is None else trace.event(run.first)
        self.roots = began.roots if isinstance(began, PassBegan) else ()
        self.root_tensors = began.root_tensors if isinstance(began, PassBegan) else ()
        self.result = Graph(
            Path(trace.meta.get("script", "")).name,
            None if run is None or (whole and not asked_for) else run.number,
            len(trace.passes),
            show,
            self.at,
        )
        self.leaf_of: dict[int, int] = {}  # AccumulateGrad -> its leaf
        self.unmade: list[str] = []  # the ids of tensors that no op made
        self.grad_fn_of: dict[State, int] = {}  # as the ops that read a tensor saw it
        self.places: dict[int, tuple[str | None, int | None, int | None, int | None, str]] = {}  # by site

    def graph(self, values: bool) -> Graph:
        """The finished graph."""
        if self.show == "backward":
            part, nodes = Part(), self._walked()
        else:
            part = self._part()
            nodes = self._nodes_of(part) if self.show == "both" else []
        self._note_edges(part, nodes)
        self._add_tensors_and_ops(part)
        self._add_grad_fns(nodes)
        self.result.edges = edges_of(self.history, part, nodes, self.result.nodes)
        self._pair_leaves(part)
        if not self.whole:
            self._drop_strays()
        name_gradients(self.result, self.history)
        self._mark_roots()
        self._mark_error()
        if self.show != "backward":
            self.result.left_out = len(self.history.ops) - len(part.ops)
        if values and len(self.result.nodes) <= MOST_VALUES:
            fill_values(self.result, self.history, self.run)
        return self.result

    # --- what belongs to it

    def _part(self) -> Part:
        if self.whole or self.run is None:
            return select.everything(self.history, self.scopes, self.at, inner=self.whole)
        if not self.asked_for and len(self.history.ops) <= 10 * select.SMALL:
            part = select.everything(self.history, self.scopes, self.at, inner=False)
            until = [run for run in self.trace.passes if run.number <= self.run.number]
            if len(part) <= select.SMALL and not select.is_loop(until, self.history):
                return part
        return select.upstream(self.history, self.run)

    def _walked(self) -> list[int]:
        roots = self.roots if self.run is not None and not self.whole else ()
        return select.walk(self.history, roots or select.ends(self.history, self.at))

    def _nodes_of(self, part: Part) -> list[int]:
        found: dict[int, None] = dict.fromkeys(
            select.walk(self.history, self.roots) if not self.whole else ()
        )
        for event in sorted(part.ops):
            op = self.history.op(event)
            if op.node:
                found[op.node] = None
                found.update(dict.fromkeys(target for target, _ in op.edges if target))
        return list(found)

    def _note_edges(self, part: Part, nodes: Iterable[int]) -> None:
        """Note which tensor each edge belongs to: a leaf's AccumulateGrad is known by nothing else."""
        events = set(part.ops)
        events.update(event for node in nodes if (event := self.history.node_op(node)) is not None)
        for event in sorted(events):
            op = self.history.op(event)
            if len(op.inputs) != len(op.edges):
                continue
            for state, (target, _) in zip(self.history.reads(event), op.edges, strict=True):
                if state and target:
                    self.grad_fn_of[state] = target
                    if self.history.node_op(target) is None:
                        self.leaf_of.setdefault(target, state.tensor)
        for root, tensor in zip(self.roots, self.root_tensors, strict=False):
            if root and tensor and self.history.node_op(root) is None:
                self.leaf_of.setdefault(root, tensor)

    # --- nodes

    def _add_tensors_and_ops(self, part: Part) -> None:
        """Tensors and ops in the order in which they came to be."""
        born: dict[int, State | int] = {event << 33: event for event in (*part.ops, *part.writes)}
        for state in part.states:
            since = state.since if state.since != FIRST else self.history.maker(state.tensor)
            born[(-1 if since is None else since) << 33 | 1 << 32 | state.tensor] = state  # behind its op
        for _, thing in sorted(born.items(), key=itemgetter(0)):
            node = self._tensor(thing) if isinstance(thing, State) else self._op(thing)
            self.result.nodes[node.id] = node

    def _tensor(self, state: State) -> Node:
        history, (tensor, since) = self.history, state
        made = history.made(tensor)
        op = history.op_behind(state)
        flags = history.flags(tensor, history.last_event(state, self.at))
        grad_fn = self.grad_fn_of.get(state) or (op.node if op is not None else 0)
        is_leaf, wanted = bool(flags & LEAF), bool(flags & REQUIRES_GRAD)
        node = Node(
            history.id_of(state),
            m.LEAF if is_leaf else m.TENSOR,
            tensor,
            name=self._name(tensor, made),
            op=op.op if op is not None else made.how if isinstance(made, TensorMade) else None,
            grad_fn=self._grad_fn_name(grad_fn) if wanted and not is_leaf else None,
            is_leaf=is_leaf,
            requires_grad=wanted,
            parameter=tensor in self.trace.parameters,
            scope="" if op is None else self.scopes.path(op.index),
        )
        if since != FIRST:
            mutation = history.mutation(since)
            node.version, node.written_by = mutation.version, mutation.how
            node.op = node.op if op is not None else node.written_by
        if op is None:
            self.unmade.append(node.id)
        node.shape, node.dtype = self._shape(state)
        maker = op if op is not None else made
        self._place(node, maker.site if maker is not None else 0)
        if made is not None and (made.flags & VIEW or isinstance(made, TensorMade)):
            base = history.base(state)
            if base is not None and (flags & VIEW or isinstance(made, TensorMade)):
                node.base = self.names.label(base.tensor)
        return node

    def _shape(self, state: State) -> tuple[tuple[int, ...] | None, str | None]:
        """Shape and dtype at a state: `unsqueeze_` and the like change the shape."""
        if state.since == FIRST:
            return self.trace.shape(state.tensor) or (None, None)
        snapshot = self.trace.snapshot(state.tensor, state.since)
        return (None, None) if snapshot is None else (snapshot.shape, snapshot.dtype)

    def _name(self, tensor: int, made: OpRan | TensorMade | None) -> str | None:
        if isinstance(made, TensorMade) and made.how == "gradient":
            return None  # what is assigned at that place is the pass's result, not what it starts with
        return self.trace.parameters.get(tensor) or self.names.given(tensor, made)

    def _op(self, event: int) -> Node:
        node = Node(self.history.op_ids[event], m.OP, event, scope=self.scopes.path(event))
        if not self.history.is_op[event]:
            node.name = node.op = self.history.mutation(event).how
            self._place(node, self.history.mutation(event).site)
            return node
        op = self.history.op(event)
        node.name, node.op, node.args, node.grad_fn = op.op, op.op, op.args, op.grad_fn or None
        node.pair = self.history.node_ids[op.node] if op.node else ""
        became = self.history.became.get(op.outputs[0]) if op.outputs else None
        if became is not None:
            node.name = self.history.mutation(became.since).how
        self._place(node, op.site)
        return node

    def _add_grad_fns(self, nodes: list[int]) -> None:
        for number in nodes:
            node = Node(self.history.node_ids[number], m.GRAD_FN, number)
            node.name = node.grad_fn = self._grad_fn_name(number)
            event = self.history.node_op(number)
            if event is not None:
                op = self.history.op(event)
                node.op, node.scope = op.op, self.scopes.path(event)
                self._place(node, op.site)
            elif number in self.leaf_of:
                node.base = self.names.label(self.leaf_of[number])
            self.result.nodes[node.id] = node

    def _pair_leaves(self, part: Part) -> None:
        """Tie each leaf to its AccumulateGrad, and put a parameter where it is first used."""
        nodes, parameters = self.result.nodes, self.trace.parameters
        used_in: dict[State, int] = {}
        for event in sorted(part.ops, reverse=True) if parameters else ():
            used_in.update((state, event) for state in self.history.reads(event) if state)
        leaves = [
            state
            for state in part.states
            if state.tensor in parameters or self.grad_fn_of.get(state, 0) in self.leaf_of
        ]
        for state in sorted(leaves):
            node, accumulator = nodes[self.history.id_of(state)], self.grad_fn_of.get(state, 0)
            if state.tensor in parameters and state in used_in:
                node.scope = self.scopes.path(used_in[state])
            if accumulator in self.leaf_of:
                node.pair = self.history.node_ids[accumulator]
                if node.pair in nodes:
                    nodes[node.pair].scope = node.scope

    def _grad_fn_name(self, number: int) -> str | None:
        event = self.history.node_op(number)
        if event is not None:
            return self.history.op(event).grad_fn
        if number in self.leaf_of and self.history.flags(self.leaf_of[number], self.at) & LEAF:
            return "AccumulateGrad"
        return self._received_names.get(number) if number else None

    @cached_property
    def _received_names(self) -> dict[int, str]:
        events = self.trace.indices(Kind.RECEIVED)
        rows = self.trace.events[events]
        return {int(row["subject"]): self.trace.text(row["name"]) for row in rows}

    def _place(self, node: Node, number: int) -> None:
        place = self.places.get(number)
        if place is None:
            place = self.places[number] = self._found_place(number)
        node.file, node.line, node.col, node.end_col, node.text = place

    def _found_place(self, number: int) -> tuple[str | None, int | None, int | None, int | None, str]:
        """File, line, first and last column, and the line's text, of a site."""
        site = self.trace.sites.get(number)
        if site is None:
            return None, None, None, None, ""
        place = site.place
        lines = self.trace.source(place.file)
        text = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
        return place.file, place.line, place.col, place.end_col, text

    def _drop_strays(self) -> None:
        """Leave out tensors without a name that no op made and no op used, such as one that was only printed."""
        nodes, edges = self.result.nodes, self.result.edges
        strays = {name for name in self.unmade if not nodes[name].name}
        if strays:
            strays.difference_update([edge.source for edge in edges])
            strays.difference_update([edge.target for edge in edges if edge.kind != m.VIEW])
        if strays:
            self.result.nodes = {name: node for name, node in nodes.items() if name not in strays}
            self.result.edges = [edge for edge in edges if edge.target not in strays]

    # --- marks

    def _mark_roots(self) -> None:
        if self.run is None:
            return
        site = self.trace.sites.get(self.run.site)
        if site is not None and self.result.pass_number is not None:
            lines = self.trace.source(site.place.file)
            text = lines[site.place.line - 1].strip() if 0 < site.place.line <= len(lines) else ""
            self.result.title = f"line {site.place.line}" + (f": {text}" if text else "")
        for number in self.roots:
            if f"n{number}" in self.result.nodes:
                self.result.nodes[f"n{number}"].root = True
        for tensor in filter(None, self.root_tensors):
            name = self.history.id_of(self.history.before(tensor, self.run.first))
            if name in self.result.nodes:
                self.result.nodes[name].root = True

    def _mark_error(self) -> None:
        for error in self.trace.errors:
            within = self.run is None or self.run.first <= error.event or self.whole
            if error.event <= self.at and within:
                self.result.error = f"{error.type}: {error.message}"
                node = self.result.nodes.get(f"n{error.node}")
                if node is not None:
                    node.error = self.result.error
        if not self.result.error and self.trace.meta.get("ended") == "error" and self.run is None:
            self.result.error = self.trace.meta.get("error", "")
