"""The picture of a textbook: gates joined by wires, with the value above a wire, the gradient below it, and the local
derivative at the gate. It is for small graphs and has no boxes for grad_fns; the sum is shown at a tensor that is
used twice."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from gradviz.errors import GradvizError
from gradviz.events.kinds import Kind, NodeMade, Produced, TangentPushed
from gradviz.graph.model import GRAD_FN, LEAF, TENSOR, Graph, Node
from gradviz.pictures.node_text import Line, added_told
from gradviz.pictures.scene import Link, Scene, Thing, about
from gradviz.query.chain_step import ChainStep, chain_step, pushed_through
from gradviz.query.moment import Moment
from gradviz.query.ops import operator_of
from gradviz.query.tensors import State
from gradviz.tracefile import Snapshot
from gradviz.words.chain import contributes, local, over, so_far
from gradviz.words.escape import plain
from gradviz.words.forward_mode import in_numbers, terms
from gradviz.words.numbers import compact
from gradviz.words.stop import Stop
from gradviz.words.words import Words

MOST = 40  # gates
_MOST_EDGES = 10 * MOST  # one gate of `stack` may have thousands
_LONGEST = 46  # characters of a line
_LONGEST_ROW = 12  # the most operations in a row from left to right
_WIDEST_ROW = 170  # characters side by side that can be read where the whole row is as wide as a page
_LONGEST_SUM = 24  # the longest sum that is written out
_SYMBOLS = {
    "add": "+", "sub": "−", "mul": "×", "div": "÷", "neg": "−", "pow": "^", "log": "ln", "matmul": "@", "mm": "@",
    "mv": "@", "dot": "·",
}  # fmt: skip


def textbook(words: Words, graph: Graph, names: Sequence[str] = (), rankdir: str = "") -> Scene:
    """The scene of the graph of a pass, or of the graph that leads to a tensor. `names` are new names for its
    tensors, in the order of their making. It is drawn from left to right (`rankdir` LR) unless it is long: a chain of
    more than a dozen operations, or of long names, is read from top to bottom (TB). Raises GradvizError if it has more
    than MOST operations or too many edges, or no operation."""
    book = _Book(words, graph, names)
    scene = book.scene()
    is_long = book.longest(lambda made: 1) > _LONGEST_ROW or book.longest(book.width) > _WIDEST_ROW
    scene.rankdir = rankdir or ("TB" if is_long else "LR")
    return scene


class _Book:
    """Makes one scene."""

    def __init__(self, words: Words, graph: Graph, names: Sequence[str]) -> None:
        self.words, self.query, self.graph = words, words.query, graph
        number = graph.pass_number
        self.backward_pass = None if number is None else words.trace.find_pass(number)
        last = graph.at if self.backward_pass is None else self.query.passes.last(self.backward_pass)
        self.moment: Moment = self.query.at(last)
        self.result = Scene(about(graph))
        tensors = sorted({tensor for made in self.gates for tensor in self._tensors_at(made)})
        called = {node.number: node.called for node in self._boxes.values()}
        words.rename({**called, **dict(zip(tensors, names, strict=False))})

    @cached_property
    def roots(self) -> list[tuple[int, int]]:
        """The nodes from which gradients start, each with its tensor."""
        if self.backward_pass is not None:
            return [(root.node, root.tensor) for root in self.query.passes.starts(self.backward_pass.number)]
        made = {node.number for node in self.graph.nodes.values() if node.kind == GRAD_FN}
        led_to = {edge.node for node in made for edge in self.query.nodes.edges(node)}
        return [(node, (self.query.nodes.tensors(node) or [0])[0]) for node in sorted(made - led_to)]

    @cached_property
    def gates(self) -> list[NodeMade]:
        """The nodes of operations behind the roots, in the order of their making."""
        walked = self.query.nodes.walk([node for node, _ in self.roots])
        gates = [made for node in walked if (made := self.query.nodes.event(node)) is not None]
        if not (gates or self._tangents) or len(gates) + len(self._tangents) > MOST:
            raise GradvizError(
                f"--style textbook draws up to {MOST} operations with a grad_fn: there are {len(gates):,} here"
            )
        if (edges := sum(len(made.edges) for made in gates)) > _MOST_EDGES:
            raise GradvizError(
                f"--style textbook draws up to {_MOST_EDGES} edges of operations: there are {edges:,} here"
            )
        return sorted(gates, key=lambda made: made.index)

    def longest(self, length: Callable[[NodeMade], int]) -> int:
        """The length of the longest path of operations, each of which has a length."""
        reached: dict[int, int] = {}
        for made in self.gates:
            reached[made.node] = length(made) + max((reached.get(edge.node, 0) for edge in made.edges), default=0)
        return max(reached.values(), default=0)

    def width(self, made: NodeMade) -> int:
        """The characters of a gate and of the wires behind it, side by side."""
        things = [f"g{made.node}", *(self._id(state) for _, state in self._outputs(made))]
        return sum(
            max(len(text) for _, text in self.result.things[thing].lines)
            for thing in things
            if thing in self.result.things
        )

    @cached_property
    def _boxes(self) -> dict[State, Node]:
        """The tensors of the graph, by state: what a write in place changed is drawn apart from what it was."""
        return {
            State(node.number, node.since): node for node in self.graph.nodes.values() if node.kind in (LEAF, TENSOR)
        }

    def _read(self, tensor: int, made: NodeMade) -> State:
        """The state of a tensor that an operation read."""
        return self.query.tensors.before(tensor, self._made(made))

    def _outputs(self, made: NodeMade) -> list[tuple[int, State]]:
        """The results of an operation that the program sees, each with its number among the results."""
        return [(nr, self.query.tensors.after(one, self._made(made))) for nr, one in enumerate(made.outputs) if one]

    def _id(self, state: State) -> str:
        box = self._boxes.get(state)
        return f"v{state.tensor}" if box is None else f"v{box.id.removeprefix('t')}"

    @cached_property
    def _added(self) -> dict[int, tuple[Snapshot, Snapshot] | None]:
        """The leaves whose `.grad` was not None before the pass: the gradient before, and the gradient added."""
        return {node.number: node.added for node in self.graph.nodes.values() if node.kind == LEAF}

    @cached_property
    def _produced(self) -> dict[int, Produced]:
        """The gradients that each node produced in the pass."""
        table = self.query.trace.table(Kind.PRODUCED)
        number = 0 if self.backward_pass is None else self.backward_pass.number
        events = [table.object(event) for event in table.events[table["in_pass"] == number].tolist()]
        return {event.node: event for event in events if isinstance(event, Produced)}

    @staticmethod
    def _tensors_at(made: NodeMade) -> list[int]:
        return [tensor for tensor in (*(edge.tensor for edge in made.edges), *made.outputs) if tensor]

    def scene(self) -> Scene:
        """The whole scene."""
        steps = [step for made in self.gates for step in self._steps(made)]
        uses = Counter(self._source(step) for step in steps)
        for made in self.gates:
            for tensor in dict.fromkeys(edge.tensor for edge in made.edges if edge.tensor):
                if not any(tensor in gate.outputs for gate in self.gates):
                    self._add(self._variable(self._read(tensor, made), made))
            self._add(self._gate(made))
            for nr, state in self._outputs(made):
                self._add(self._wire(made, nr, state))
                self._link(f"g{made.node}", self._id(state), [], "out")
                self.result.times[self.result.links[-1].id] = self._made(made), 0
        for step in steps:
            source = self._source(step)
            if source in self.result.things:
                self._link(source, f"g{step.made.node}", self._contribution(step) if uses[source] > 1 else [])
                ran = self._produced.get(step.made.node)
                times = self._made(step.made), ran.index if ran is not None else 0
                self.result.times[self.result.links[-1].id] = times
        for pushed in self._tangents:
            self._add_pushed(pushed)
        return self.result

    # --- forward mode

    @cached_property
    def _tangents(self) -> list[TangentPushed]:
        """The tangents of the last sweep of forward mode in the graph, in the order in which they were pushed."""
        sweep = self.query.modes.sweep_near(self.moment.k)
        shown = {state.tensor for state in self._boxes}
        if sweep is None or not shown.issuperset(sweep.tangents) or sweep.seeds.keys() == sweep.tangents.keys():
            return []
        table = self.query.trace.table(Kind.TANGENT)
        events = table.events[(table.events >= sweep.first) & (table.events <= sweep.last)].tolist()
        return [event for event in map(table.object, events) if isinstance(event, TangentPushed)]

    def _add_pushed(self, pushed: TangentPushed) -> None:
        """A tensor with its tangent, and the gate that it comes from, with the local derivatives."""
        stop = Stop(self.words, pushed.index)
        state = self.query.tensors.after(pushed.tensor, pushed.index)
        wire, tangent = self._id(state), plain(stop.compact(pushed.tangent), _LONGEST)
        op, parts = pushed_through(self.query, pushed), terms(stop, pushed)
        sums = in_numbers(stop, pushed)
        equation = " = ".join(part for part in ("tangent", sums, tangent) if part)
        lines: list[Line] = [("value", self._value(state)), *(("grad", line) for line in _broken(equation))]
        self._add(Thing(wire, ["variable", "constant"] if op is None else ["on-wire"], lines, "", ""))
        self.result.times.setdefault(wire, (pushed.index, pushed.index))
        if op is None:
            return
        operator = operator_of(op.op, op.args) or _SYMBOLS.get(op.op, op.op)
        gate = Thing(f"p{op.index}", ["gate"], [("name", plain(operator, 20))], plain(op.op, 60), "")
        gate.lines += [("args", plain(line, _LONGEST)) for part in parts for line in _broken(part.local)]
        self._add(gate)
        self.result.times.setdefault(gate.id, (op.index, 0))
        for tensor in dict.fromkeys(part.tensor for part in parts):
            self._link(self._id(self.query.tensors.before(tensor, op.index)), gate.id, [], "tangent")
            self.result.times[self.result.links[-1].id] = op.index, op.index
        self._link(gate.id, wire, [], "out")
        self.result.times[self.result.links[-1].id] = op.index, 0

    def _made(self, made: NodeMade) -> int:
        """The event of the operation of a gate."""
        return made.op if made.op >= 0 else made.index

    def _timed(self, thing: Thing, made: int, node: int) -> Thing:
        """A thing that is there since an event, and its gradient since its node received it."""
        came = self.moment.received(node) if self.backward_pass is not None and node else None
        self.result.times.setdefault(thing.id, (made, came.index if came is not None else 0))
        return thing

    def _steps(self, made: NodeMade) -> Iterator[ChainStep]:
        received = self.moment.received(made.node) if self.backward_pass is not None else None
        for position, edge in enumerate(made.edges):
            if edge.node or edge.tensor:
                yield chain_step(self.query, made, position, received, self._produced.get(made.node))

    def _source(self, step: ChainStep) -> str:
        """The thing at which an edge of a node ends: a tensor, or the gate of a tensor that the program does not
        see."""
        if step.tensor:
            return self._id(self._read(step.tensor, step.made))
        return f"g{step.made.edges[step.position].node}"

    def _add(self, thing: Thing) -> None:
        self.result.things.setdefault(thing.id, thing)

    def _link(self, source: str, target: str, label: list[str], *marks: str) -> None:
        number = len(self.result.links)
        self.result.links.append(Link(f"e{number}", source, target, ["wire", *marks], label, f"{source} → {target}"))

    # --- things

    def _gate(self, made: NodeMade) -> Thing:
        op = self.query.tensors.op(made.op) if made.op >= 0 else None
        name = plain(op.op if op is not None else made.grad_fn, 20)
        number = "" if op is None else op.args.rpartition("=")[2]
        args = number if _is_number(number) else ""
        operator = operator_of(op.op, op.args) if op is not None else ""
        if operator and len(self.query.nodes.of_op(made.op)) > 1:
            operator = made.grad_fn  # `2 / x` is a reciprocal and a product
        lines: list[Line] = [("name", plain(operator, 20) or f"{_SYMBOLS.get(name, name)} {args}".strip())]
        for step in self._steps(made):
            if step.made.edges[step.position].node and (equation := local(self.words, step)):
                equation += f", {over(self.words, step)}" * bool(step.summed)
                lines += [("args", plain(line, _LONGEST)) for line in _broken(equation)]
        return self._timed(Thing(f"g{made.node}", ["gate"], lines, plain(made.grad_fn, 60), ""), self._made(made), 0)

    def _variable(self, state: State, made: NodeMade) -> Thing:
        tensor = state.tensor
        node = next((edge.node for edge in made.edges if edge.tensor == tensor), 0)
        lines: list[Line] = [("value", self._value(state))]
        lines.append(("fact", "leaf" if node else "requires_grad=False"))
        lines += self._gradient(node, 0, tensor)
        if sum_text := added_told(self._added.get(tensor)):
            lines.append(("grad", f".grad {sum_text.replace('(before)', self.words.say('(before)'))}"))
        born = max(self.query.trace.born(tensor) or 0, state.since)
        classes = ["variable", *["constant"] * (not node)]
        return self._timed(Thing(self._id(state), classes, lines, "", ""), born, node)

    def _wire(self, made: NodeMade, nr: int, state: State) -> Thing:
        is_root = (made.node, state.tensor) in self.roots
        mark = " (root)" if is_root else ""
        lines: list[Line] = [("value", self._value(state) + mark), *self._gradient(made.node, nr, state.tensor)]
        thing = Thing(self._id(state), ["on-wire", *["root"] * is_root], lines, "", "")
        return self._timed(thing, self._made(made), made.node)

    def _value(self, state: State) -> str:
        name, box = plain(self.words.called(state.tensor), _LONGEST), self._boxes.get(state)
        if box is None or box.value is None or box.value.stats is None:
            return name
        changed = ""
        if box.used is not None:
            changed = self.words.say(" → {value} in backward", value=plain(compact(box.used), _LONGEST))
        return f"{name} = {plain(compact(box.value), _LONGEST)}{changed}"

    def _gradient(self, node: int, nr: int, tensor: int) -> list[Line]:
        """The gradient of a tensor, as the sum of the gradients along its wires."""
        if self.backward_pass is None or not node or not self.moment.meeting(node, nr).arrivals:
            return []
        name, text = self.words.derivative(tensor, self.moment), so_far(self.words, self.moment, node, nr)
        addition, _, total = text.rpartition(" = ")
        if not addition or len(text) <= _LONGEST_SUM:
            return [("grad", plain(line, _LONGEST)) for line in _broken(f"{name} = {text}")]
        parts = len(self.moment.meeting(node, nr).arrivals)
        return [
            *(("grad", plain(line, _LONGEST)) for line in _broken(f"{name} = {total}")),
            ("grad", self.words.say("the sum of {count}", count=parts)),
        ]

    def _contribution(self, step: ChainStep) -> list[str]:
        """The contribution of one of several wires to the gradient of a tensor."""
        if step.downstream is None or not contributes(step, self.moment):
            return []
        return [plain(compact(step.downstream), _LONGEST)]


def _broken(equation: str) -> list[str]:
    """An equation in one line, or in two lines with its last side in the second."""
    left, _, right = equation.rpartition(" = ")
    return [equation] if len(equation) <= _LONGEST or not left else [left, f"= {right}"]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
