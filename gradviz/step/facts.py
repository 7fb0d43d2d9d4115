"""What the stepper knows of a trace, in words: what tensors are called, what a node belongs to, where it was made."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from gradviz.events.kinds import Event, Kind, Mutated, OpRan, PassBegan, Produced, Received, TensorMade
from gradviz.graph.moment import Moment, Moments
from gradviz.graph.named import Named
from gradviz.step.modes import Modes
from gradviz.step.numbers import clean, number
from gradviz.step.trend import Trend, trend
from gradviz.tracefile import Site, Trace

LONGEST = 32  # an expression of up to so many characters may stand for the tensor that it gave


class Facts:
    """Answers about one trace. All text it gives is safe to show."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.moments = Moments(trace)
        self.names = self.moments.names
        self.called = lru_cache(maxsize=4096)(self._called)
        self.trend = lru_cache(maxsize=1024)(self._trend)

    def prepare(self) -> None:
        """Look over the trace once, so that no later answer has to wait for it."""
        moments, names, trace = self.moments, self.names, self.trace
        tables = (
            moments.flags, moments.grads, moments.tangents, moments.makers, moments.passes, moments.scopes,
            moments.depths, moments.pass_at, moments.memory.shared, names.calls, names.last_ops,
            self._single_sites, self._pass_spans, trace.node_events, trace.all_changes,
        )  # fmt: skip
        assert all(table is not None for table in tables)

    def _trend(self, leaf: int) -> Trend | None:
        return trend(self.moments, leaf)

    # --- both modes

    @cached_property
    def has_tangents(self) -> bool:
        """Whether anything was differentiated forwards."""
        return bool(len(self.trace.indices(Kind.TANGENT)))

    @cached_property
    def modes(self) -> Modes:
        """What was differentiated both ways."""
        return Modes(self.moments)

    # --- names

    @cached_property
    def labels(self) -> list[str]:
        """The names that tensors may have: those of variables that something was assigned to, and of parameters."""
        names = [name for site in self.trace.sites.values() for name in site.names]
        return list(dict.fromkeys([*names, *self.trace.parameters.values()]))

    def tensor_called(self, name: str, k: int) -> int:
        """The newest tensor of a name at event k, or else the first to come; 0 where there is none."""
        parameter = next((t for t, known in self.trace.parameters.items() if known == name), 0)
        sites = [number for number, site in self.trace.sites.items() if name in site.names]
        if parameter or not sites:
            return parameter
        made = self.trace.indices(Kind.OP, Kind.TENSOR)
        made = made[np.isin(self.trace.events["site"][made], sites)]
        until = int(np.searchsorted(made, k, side="right"))
        for event in chain(made[:until][::-1], made[until:]):
            maker = self.trace.event(int(event))
            for tensor in (*getattr(maker, "outputs", ()), getattr(maker, "tensor", 0)):
                if tensor and self.names.of(tensor) == name:
                    return tensor
        return 0

    @cached_property
    def named(self) -> Named:
        """The names of all tensors."""
        return Named(self.trace, self.names)

    @cached_property
    def ops(self) -> frozenset[str]:
        """The names of the ops that ran."""
        numbers = np.unique(self.trace.events["name"][self.trace.indices(Kind.OP)])
        return frozenset(self.trace.text(number) for number in numbers)

    def _called(self, tensor: int) -> str:
        """A tensor's name, or the expression that gave it, or `t` and its number."""
        name = self.names.of(tensor)
        if name is not None:
            return clean(name)
        maker = self.names.maker(tensor)
        if isinstance(maker, OpRan) and tensor in maker.outputs:
            written = self._written_into(maker)
            if written:
                return self.called(written)
            text = self.expression(maker.site, LONGEST) if len(maker.outputs) == 1 else ""
            if text and self.is_all_at_its_place(maker):
                return text
        differentiated = self._differentiated(tensor)
        return f"gradient of {self.called(differentiated)}" if differentiated else f"t{tensor}"

    def _differentiated(self, gradient: int) -> int:
        """The tensor whose gradient a tensor is, 0 where it is none."""
        born = self.trace.born(gradient)
        event = None if born is None else self.trace.event(born)
        if isinstance(event, TensorMade) and event.how == "gradient":
            event = self._pass_from(event.index)
        given = getattr(event, "gradients", ())
        if event is None or gradient not in given:
            return 0
        if isinstance(event, Received):
            op = self.op_of(event.node)
            return (
                op.outputs[given.index(gradient)] if op is not None and len(op.outputs) == len(given) else 0
            )
        return self.receiver(event.index, given.index(gradient))

    def _pass_from(self, index: int) -> Event | None:
        """The pass that begins at one of the next events."""
        following = np.flatnonzero(self.trace.kinds[index : index + 64] == Kind.PASS_BEGAN)
        return self.trace.event(index + int(following[0])) if len(following) else None

    def _written_into(self, op: OpRan) -> int:
        """The tensor that an op in place wrote its output into, 0 for none."""
        after = self.trace.event(op.index + 1) if op.index + 1 < self.trace.count else None
        return after.tensor if isinstance(after, Mutated) and after.source in op.outputs else 0

    def is_all_at_its_place(self, op: OpRan) -> bool:
        """Whether an op is all that happens at its place."""
        return op.site in self._single_sites

    @cached_property
    def _single_sites(self) -> set[int]:
        events = self.trace.events
        ops = self.trace.indices(Kind.OP)
        pairs = np.unique(events["site"][ops].astype(np.int64) << 32 | events["name"][ops])
        sites, counts = np.unique(pairs >> 32, return_counts=True)
        scoped = np.unique(events["site"][self.trace.indices(Kind.SCOPE_ENTERED)])
        return set(sites[counts == 1].tolist()) - set(scoped.tolist())

    # --- places

    def site(self, number: int) -> Site | None:
        """A place whose source is at hand: the site, or the nearest caller that has source."""
        site = self.trace.sites.get(number)
        while site is not None and not self.trace.source(site.place.file):
            parent = self.trace.sites.get(site.parent)
            if parent is None or parent.number >= site.number:
                break
            site = parent
        return site

    def expression(self, site: int, longest: int) -> str:
        """The source of an expression, empty where it is not known, not of one line, or long."""
        found = self.trace.sites.get(site)
        place = found.place if found is not None else None
        if place is None or place.col < 0 or place.line != place.end_line:
            return ""
        lines = self.trace.source(place.file)
        text = lines[place.line - 1][place.col : place.end_col] if 0 < place.line <= len(lines) else ""
        return clean(text) if len(text) <= longest else ""

    # --- nodes

    def op_of(self, node: int) -> OpRan | None:
        """The op that made a node; None for an AccumulateGrad."""
        index = self.trace.node_event(node)
        event = None if index is None else self.trace.event(index)
        return event if isinstance(event, OpRan) else None

    def inputs_of(self, op: OpRan) -> list[int]:
        """For each edge of an op's node the input that its gradient is for, 0 where that is not known; all inputs
        of an op that made no node."""
        if len(op.edges) in (0, len(op.inputs)):
            return list(op.inputs)
        left = [tensor for tensor in op.inputs if tensor]
        found = []
        for node, nr in op.edges:
            tensor = next((t for t in left if self._has_edge(t, node, nr)), 0)
            if tensor:
                left.remove(tensor)
            found.append(tensor)
        return found

    def inputs_called(self, op: OpRan) -> list[str]:
        """What the inputs of `inputs_of` are called; a number by its value."""
        value = number(float(op.args)) if re.fullmatch(r"-?\d+(\.\d*)?(e[+-]?\d+)?", op.args) else "a number"
        return [self.called(tensor) if tensor else value for tensor in self.inputs_of(op)]

    def _has_edge(self, tensor: int, node: int, nr: int) -> bool:
        maker = self.names.maker(tensor)
        if isinstance(maker, OpRan) and maker.node:
            return maker.node == node and maker.outputs[nr : nr + 1] == (tensor,)
        return node != 0 and self.trace.node_event(node) is None

    def tensors_of(self, node: int, moment: Moment) -> list[int]:
        """The tensors whose gradients a node receives: the outputs of its op, or the leaf."""
        op = self.op_of(node)
        if op is not None:
            return list(op.outputs)
        for delivery in moment.arrivals(node):
            tensor = self.receiver(delivery.event, delivery.position)
            if tensor:
                return [tensor]
        return []

    def receiver(self, event: int, position: int) -> int:
        """The tensor whose gradient goes along one edge of a Produced, or in at one root of a PassBegan."""
        given = self.trace.event(event)
        if isinstance(given, PassBegan):
            return given.root_tensors[position] if position < len(given.root_tensors) else 0
        op = self.op_of(given.node) if isinstance(given, Produced) else None
        inputs = self.inputs_of(op) if op is not None else []
        return inputs[position] if position < len(inputs) else 0

    def node_name(self, node: int, moment: Moment) -> str:
        """A node as `PowBackward0`, or `AccumulateGrad of x`."""
        op = self.op_of(node)
        if op is not None:
            return clean(op.grad_fn)
        tensors = self.tensors_of(node, moment)
        return f"AccumulateGrad of {self.called(tensors[0])}" if tensors else "AccumulateGrad"

    def running(self, moment: Moment) -> Received | None:
        """The Received of the node that is running at a moment: it has not produced yet."""
        run = moment.pass_info
        for index in range(moment.k, run.first if run is not None else moment.k, -1):
            kind = self.trace.kinds[index]
            if kind == Kind.PRODUCED or kind == Kind.ACCUMULATED:
                return None
            if kind == Kind.RECEIVED:
                event = self.trace.event(index)
                return event if isinstance(event, Received) else None
        return None

    def formula(self, op: OpRan) -> str:
        """The text of an op's derivatives, empty where the trace has none."""
        found: dict[str, str] = getattr(self.trace, "formulas", {})
        return found.get(op.grad_fn or f"{op.op.title()}Backward0", "")

    def partial(self, output: int, tensor: int, name: str = "") -> str:
        """A derivative as it is written: `∂y/∂x`. Of two tensors of one name the lower tells its number, too;
        `name` stands for a tensor that is not known."""
        above = self.called(output) if output else "output"
        below = self.called(tensor) if tensor else name or "?"
        if above == below and output != tensor:
            below = f"{below}#{tensor}"
        return f"∂{_bracketed(above)}/∂{_bracketed(below)}"

    # --- passes

    def in_pass(self, events: np.ndarray) -> np.ndarray:
        """Which of these events lie in a backward pass, of whatever thread."""
        firsts, lasts = self._pass_spans
        at = np.searchsorted(firsts, events, side="right") - 1
        return (
            (at >= 0) & (events <= lasts[np.maximum(at, 0)]) if len(firsts) else np.zeros(len(events), bool)
        )

    @cached_property
    def _pass_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the passes begin, and how far all up to each of them reach."""
        runs = sorted(self.trace.passes, key=lambda run: run.first)
        lasts = [self.trace.count if run.last is None else run.last for run in runs]
        return np.array([run.first for run in runs]), np.maximum.accumulate(np.array(lasts, np.int64))

    def derivative(self, tensor: int, moment: Moment) -> str:
        """How a tensor's gradient is written: `∂z/∂y` where one scalar z is differentiated, else in words."""
        root = self._scalar_root(moment)
        return self.partial(root, tensor) if root else f"gradient of {self.called(tensor) if tensor else '?'}"

    def _scalar_root(self, moment: Moment) -> int:
        run = moment.pass_info
        event = None if run is None else self.trace.event(run.first)
        if not isinstance(event, PassBegan) or len(event.root_tensors) != 1 or len(event.gradients) != 1:
            return 0
        seed = self.trace.snapshot(event.gradients[0])
        plain = (
            seed is not None
            and seed.array is not None
            and seed.array.size == 1
            and seed.array.reshape(-1)[0] == 1
        )
        return event.root_tensors[0] if plain else 0


def _bracketed(name: str) -> str:
    """A name as it stands after ∂: in brackets unless it is a plain name or a path."""
    return name if all(character.isalnum() or character in "_.#[]'\"" for character in name) else f"({name})"
