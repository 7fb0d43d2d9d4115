"""The gradient that a path brings alone: each node on the path computes again with what the node before it gave.

In a trace of `--values inputs` the whole pass runs again. One of `--values full` has the elements of all tensors, and
the calls that made the nodes: there the call of each node is made with the recorded elements, and its VJP is used if it
gives what was recorded in the pass, too."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from gradviz.events.kinds import CallMade, Kind, Received
from gradviz.query.flow import reach
from gradviz.query.gradient_paths import Path, Step, elements, rounding
from gradviz.query.query import Query
from gradviz.replay.outcome import Graph, Runner, Vjp, graph_of
from gradviz.replay.plan import CUT, DATA, Call, Input, Plan, ReplayError, plan_of, step_of

_NEAR = 1e-4  # relative to the largest element
_ITSELF: tuple[list[dict[str, int]], dict[str, int]] = ([{"tensor": 0}], {})


class PathsOfPass:
    """The gradients that paths of one pass bring alone. `runner` runs the whole pass again."""

    def __init__(self, query: Query, runner: Runner, number: int) -> None:
        self.query, self.plan = query, plan_of(query, number)
        self._vjp = runner.vjp_of(self.plan, graph_of(query, self.plan))

    def gradient(self, path: Path) -> np.ndarray:
        """The gradient that a path brings if no other gradient meets it. Raises ReplayError if that is unknown."""
        root, *arrivals = (step.arrival for step in path.steps)
        shape, _ = self.query.trace.shape(self.plan.roots[root.position]) or ((), "")
        start = self.plan.starts[root.position]
        gradient, output = np.ones(shape) if start is None else start, root.nr
        for arrival in arrivals:
            upstream: list[np.ndarray | None] = [None] * (output + 1)
            upstream[output] = gradient
            gradient, output = self._vjp(arrival.source, arrival.position, upstream), arrival.nr
        return gradient


class PathsByNodes:
    """The gradients that paths of one pass bring alone. `runner` makes the calls of their nodes again."""

    def __init__(self, query: Query, runner: Runner, number: int) -> None:
        self.query, self.runner = query, runner
        self.began = query.passes.began(number)
        self._vjps: dict[int, Vjp] = {}  # by the event of the call
        flow = query.deliveries(number)
        self._received = dict(zip(*(column.tolist() for column in flow.received), strict=True))

    def gradient(self, path: Path) -> np.ndarray:
        """The gradient that a path brings if no other gradient meets it. Raises ReplayError if that is unknown."""
        steps = path.steps
        first = next((at for at, step in enumerate(steps) if step.others), len(steps) - 1)
        arrival = steps[first].arrival  # it came here alone
        gradient = self._elements(arrival.gradient, arrival.event)
        for before, step in zip(steps[first:], steps[first + 1 :], strict=False):
            if before.hooked:
                raise ReplayError(f"a hook changes the gradient at {self.query.nodes.name(before.node)}")
            upstream: list[np.ndarray | None] = [None] * (before.arrival.nr + 1)
            upstream[before.arrival.nr] = gradient
            gradient = self._sent(step, upstream)
        return gradient

    def _sent(self, step: Step, upstream: Sequence[np.ndarray | None]) -> np.ndarray:
        """The gradient that the node of a step sends along its edge, given other gradients than those of the pass."""
        node, position, _, recorded, event = step.arrival
        gave = self._elements(recorded, event)
        received = self._received_by(node)
        try:
            vjp = self._vjp(node)
            again = vjp(node, position, received)
            largest = float(np.max(np.abs(gave), initial=0.0))
            near = max(_NEAR, 4 * rounding(self.query, recorded, event)) * largest
            if again.shape == gave.shape and np.all(np.abs(again - gave) <= near):
                return vjp(node, position, upstream)
            reason = f"{self.query.nodes.name(node)} gives something else than in the run"
        except ReplayError as error:
            reason = str(error)
        if not self.query.nodes.rule(node).elementwise or len(received) != 1 or received[0] is None:
            raise ReplayError(reason)
        return _by_elements(reason, gave, received[0], upstream[0])

    def _received_by(self, node: int) -> list[np.ndarray | None]:
        event = self.query.trace.event(self._received[node])
        assert isinstance(event, Received)
        return [self._elements(one, event.index) if one else None for one in event.gradients]

    def _elements(self, tensor: int, event: int) -> np.ndarray:
        array = elements(self.query, tensor, event, None)
        if array is None:
            raise ReplayError("the elements of a gradient on the way were not recorded")
        return array

    def _vjp(self, node: int) -> Vjp:
        call = self._call_of(node)
        if call.event not in self._vjps:
            before = self._before(node)
            self._vjps[call.event] = self.runner.vjp_of(self._plan(call, before), self._graph(call, before))
        return self._vjps[call.event]

    def _call_of(self, node: int) -> Call:
        """The call that made a node. Raises ReplayError if it was not recorded."""
        event = self.query.nodes.op(node)
        calls = self.query.trace.indices(Kind.CALLED)
        at = int(np.searchsorted(calls, event)) if event is not None else len(calls)
        made = self.query.trace.event(int(calls[at])) if at < len(calls) else None
        call = step_of(self.query, made) if isinstance(made, CallMade) else None
        if isinstance(call, Call) and node in self._graph(call, self._before(node)).names:
            return call
        raise ReplayError(f"{self.query.nodes.name(node)} was made by no call that can be made again")

    def _before(self, node: int) -> int:
        """The event before the op of a node."""
        return (self.query.nodes.op(node) or 0) - 1

    def _graph(self, call: Call, before: int) -> Graph:
        """The nodes that a call made: those that lead from its results to the nodes that its inputs had before it."""
        nodes = self.query.nodes
        entries = {nodes.grad_fn(tensor, before if tensor in call.written else call.event) for tensor in call.inputs}
        roots = tuple(nodes.grad_fn(tensor, call.event) for tensor in (*call.outputs, *call.written))

        def onward(node: int) -> list[int]:
            return [edge.node for edge in nodes.edges(node) if edge.node not in entries]

        made = reach([root for root in roots if root not in entries], onward)
        edges = {node: tuple(edge.node for edge in nodes.edges(node)) for node in made}
        return Graph(roots, {node: nodes.name(node) for node in edges}, edges)

    def _plan(self, call: Call, before: int) -> Plan:
        roots = (*call.outputs, *call.written)
        steps = tuple(self._inputs(call, before))
        return Plan(self.began.number, self.began, (*steps, call), roots, (None,) * len(roots))

    def _inputs(self, call: Call, before: int) -> Iterator[Input | Call]:
        """The inputs of a call as they were before it. A view is made again, since its strides may decide which nodes a
        call makes. One that the call writes to is a copy, since no call may write to a leaf that requires a
        gradient."""
        for tensor in dict.fromkeys(call.inputs):
            value = self.query.memory.value(tensor, before) or self.query.memory.value(tensor, call.event)
            if value is None or value.array is None:
                raise ReplayError(f"the elements of {self.query.labels.of(tensor)} were not recorded")
            maker = self._maker(tensor) if value.is_view and tensor not in call.written else None
            if maker is not None:
                yield from self._inputs(maker, before)
                yield maker
                continue
            yield Input(before, CUT if value.requires_grad else DATA, tensor, value)
            if tensor in call.written and value.requires_grad:
                one = (tensor,)
                yield Call(before, call.site, "Tensor.clone", _ITSELF, "", None, value.dtype, one, one, ())

    def _maker(self, view: int) -> Call | None:
        """The call that made a view; None if it was not recorded, or has written to its inputs."""
        made = self.query.trace.event(self._makers[view]) if view in self._makers else None
        step = step_of(self.query, made) if isinstance(made, CallMade) and not made.written else None
        return step if isinstance(step, Call) else None

    @cached_property
    def _makers(self) -> dict[int, int]:
        """The first call that returned each tensor."""
        table = self.query.trace.table(Kind.CALLED)
        outputs = table.lists("outputs")
        pairs = zip(outputs.values.tolist(), table.events[outputs.owners].tolist(), strict=True)
        return dict(reversed([*pairs]))


def _by_elements(reason: str, gave: np.ndarray, received: np.ndarray, upstream: np.ndarray | None) -> np.ndarray:
    """The gradient that an elementwise node sends. The derivative of each element is known where its gradient was not
    zero. Raises ReplayError with a reason otherwise."""
    if upstream is None or not gave.shape == received.shape == upstream.shape:
        raise ReplayError(reason)
    if np.any((received == 0) & (upstream != 0)):
        raise ReplayError(reason)
    return np.divide(gave, received, out=np.zeros_like(gave), where=received != 0) * upstream
