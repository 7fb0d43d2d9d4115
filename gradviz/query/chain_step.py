"""One step of the chain rule: upstream × local = downstream along an edge of a node, and the sum over what
broadcasting repeated. Views put it into words and work nothing out themselves."""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.field_types import Rule
from gradviz.events.kinds import NodeMade, OpRan, Produced, Received, TangentPushed
from gradviz.query.gradient_paths import rounding
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot

Names = dict[str, Any]


class NotationError(ValueError):
    """A formula cannot be evaluated."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ln": np.log, "exp": np.exp, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "sign": np.sign, "trunc": np.trunc, "sinc": np.sinc, "clamp": np.clip, "det": np.linalg.det,
    "softplus": lambda x: np.logaddexp(0, x), "σ": lambda x: np.exp(-np.logaddexp(0, -x)),
    "Φ": np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2, otypes=[float]),
    "φ": lambda x: np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
}  # fmt: skip
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+−-]?\d+)?|I[₀₁]ₑ?|x̂|[A-Za-z_]+|[πσΦφ∞√Σ]|⁻ᵀ|⁻¹|[²³ᵀ]|[+−·×/^()|⌊⌋<>≤≥=,])")
_COMPARISONS = {"<": np.less, ">": np.greater, "≤": np.less_equal, "≥": np.greater_equal, "=": np.equal}
_ENDS = {"+", "−", "/", "·", "×", ")", "|", "⌋", ",", *_COMPARISONS}


def evaluated(text: str, names: Names) -> Any:
    """The value of a formula. `names` has the arrays and further functions by name; if `names["·"]` is np.matmul,
    matrices that stand side by side are multiplied by it. Raises NotationError for a formula that is words."""
    body, _, definition = text.partition(" with ")
    if definition:
        name, _, value = definition.partition(" = ")
        names = {**names, name: evaluated(value, names)}
    parts = _split(body)
    result: Any = 0
    for part in reversed(parts):
        value, _, condition = part.partition(" where ")
        if part.startswith("else "):
            result = _sum_of(part.removeprefix("else "), names)
        elif condition:
            result = np.where(_holds(condition, names), _sum_of(value, names), result)
        elif len(parts) > 1:
            raise NotationError(f"{part!r} of {text!r} is words")
        elif re.search(r"[<>≤≥=]| is ", part):
            result = _holds(part, names)
        else:
            result = _sum_of(part, names)
    return np.asarray(result)


def _split(text: str) -> list[str]:
    """The parts between commas that are outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and text.startswith(", ", i):
            parts.append(text[start:i])
            start = i + 2
    return [*parts, text[start:]]


def _holds(text: str, names: Names) -> Any:
    for word, join in (" or ", np.logical_or), (" and ", np.logical_and):
        left, separator, right = text.partition(word)
        if separator:
            return join(_holds(left, names), _holds(right, names))
    if text.startswith("not "):
        return np.logical_not(_holds(text.removeprefix("not "), names))
    for word, test in (" is finite", np.isfinite), (" is a number", lambda x: ~np.isnan(x)):
        if text.endswith(word):
            return test(_sum_of(text.removesuffix(word), names))
    reader = _Reader(text, names)
    left = reader.sum()
    holds = np.True_ if reader.next in _COMPARISONS else np.asarray(left, bool)
    while reader.next in _COMPARISONS:
        compare = _COMPARISONS[reader.take()]
        right = reader.sum()
        holds, left = holds & compare(left, right), right
    reader.end()
    return holds


def _sum_of(text: str, names: Names) -> Any:
    reader = _Reader(text, names)
    value = reader.sum()
    reader.end()
    return value


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, text: str, names: Names) -> None:
        self.text, self.names = text, names
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise NotationError(f"{text[position:]!r} of {text!r}")
            self.tokens.append(match[1])
            position = match.end()
        self.tokens.reverse()

    @property
    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self, expected: str = "") -> str:
        if not self.tokens or (expected and self.next != expected):
            raise NotationError(f"no {expected!r} where it should be in {self.text!r}")
        return self.tokens.pop()

    def end(self) -> None:
        if self.tokens:
            raise NotationError(f"{self.next!r} in {self.text!r}")

    def sum(self) -> Any:
        negative = self.next == "−" and self.take()
        value = self.product()
        value = -value if negative else value
        while self.next in ("+", "−"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Any:
        value = self.power()
        while self.next and (self.next in ("·", "/", "×") or self.next not in _ENDS):
            if self.next == "/":
                self.take()
                value = value / self.power()
            elif self.next == "×":
                self.take()
                value = self.names["×"](value, self.power())
            else:
                together = self.names.get("·", np.multiply) if self.next != "·" else np.multiply
                if self.next == "·":
                    self.take()
                value = together(value, self.power())
        return value

    def power(self) -> Any:
        value = self.atom()
        while self.next and self.next in "²³^ᵀ⁻ᵀ⁻¹":
            sign = self.take()
            if sign == "^":
                value = value ** self.atom()
            elif sign in "²³":
                value = value ** (2 if sign == "²" else 3)
            else:
                value = np.linalg.inv(value) if "⁻" in sign else value
                value = np.swapaxes(value, -1, -2) if "ᵀ" in sign else value
        return value

    def atom(self) -> Any:
        token = self.take()
        if re.match(r"\d", token):
            return float(token)
        if token == "Σ":
            return self.names["Σ"](self.product())
        if token in self.names:
            value = self.names[token]
            return self.called(value) if callable(value) else value
        if token in FUNCTIONS:
            return self.called(FUNCTIONS[token])
        if token == "√":
            return np.sqrt(self.atom())
        closing = {"(": ")", "|": "|", "⌊": "⌋"}.get(token)
        if closing:
            value = self.sum()
            self.take(closing)
            return np.abs(value) if token == "|" else np.floor(value) if token == "⌊" else value
        if token in "π∞":
            return np.pi if token == "π" else np.inf
        raise NotationError(f"{token!r} in {self.text!r}")

    def called(self, function: Callable[..., Any]) -> Any:
        squared = self.next == "²" and self.take()
        if self.next == "(":
            self.take()
            arguments = [self.sum()]
            while self.next == ",":
                self.take()
                arguments.append(self.sum())
            self.take(")")
            value = function(*arguments)
        else:
            value = function(self.power())
        return value**2 if squared else value


_MOST = 4096  # the most elements of a tensor on which a formula is evaluated
_ROUNDINGS = 64  # the number of roundings by which a product may differ from the recorded gradient
_SUMMED = ", summed"


class ChainStep(NamedTuple):
    """The step along the edge `position` of a node.

    `formula` is the local derivative as the table states it, or the whole VJP; it is empty if unknown. `symbol` is the
    name of the input in it. `upstream` is the only gradient that the node received, and `downstream` the gradient that
    it produced along this edge. `local` is the local derivative in numbers; None unless it gives the recorded
    gradient. `product` is upstream × local before the sum over `summed`, the dimensions that broadcasting added or
    repeated; None if nothing is summed. `is_defined` means that the formula has another value than the recorded
    derivative: PyTorch defines one where there is none."""

    made: NodeMade
    position: int
    symbol: str
    formula: str
    upstream: Snapshot | None = None
    downstream: Snapshot | None = None
    local: np.ndarray | None = None
    product: Snapshot | None = None
    summed: tuple[int, ...] = ()
    is_defined: bool = False

    @property
    def tensor(self) -> int:
        """The tensor whose gradient goes along the edge, 0 if it is not known."""
        return self.made.edges[self.position].tensor

    @property
    def output(self) -> int:
        """The only output of the node, 0 if there are several or if it is not known."""
        return self.made.outputs[0] if len(self.made.outputs) == 1 else 0

    @property
    def overwritten(self) -> bool:
        """Whether the op wrote over the tensor, so that the gradient is that of its former value."""
        return bool(self.tensor) and self.tensor in self.made.outputs

    @property
    def is_whole(self) -> bool:
        """Whether the formula contains the upstream gradient, so that it is the complete VJP."""
        return bool(re.search(r"(?<![A-Za-z_])g(?![A-Za-z_])", self.formula))

    @property
    def is_number(self) -> bool:
        """Whether the formula is only a number."""
        return is_number(self.formula)

    @property
    def place(self) -> tuple[int, int]:
        """The position of this edge among the node's edges to the same tensor, from 1, and their number: (2, 2) for the
        second factor of x * x."""
        same = [i for i, edge in enumerate(self.made.edges) if edge.node and edge.tensor == self.tensor]
        return (same.index(self.position) + 1, len(same)) if self.tensor and self.position in same else (1, 1)


def is_number(formula: str) -> bool:
    """Whether a formula is only a number."""
    return formula.lstrip("−-").replace(".", "", 1).isdigit()


def stated(rule: Rule, count: int) -> list[tuple[str, str]]:
    """The name in the formulas and the formula of each of `count` inputs of an op, or edges of a node; empty texts if
    the rule does not mention it. A rule with one formula applies to all."""
    if len(rule.inputs) == 1 and count > 1:
        return [("", rule.inputs[0][1])] * count
    return [*rule.inputs[:count], *[("", "")] * (count - len(rule.inputs))]


def chain_step(
    query: Query, made: NodeMade, position: int, received: Received | None, produced: Produced | None
) -> ChainStep:
    """The step along one edge of a node; without the gradients that the node has not received or produced."""
    symbol, formula = stated(made.rule, len(made.edges))[position]
    plain = formula.removesuffix(_SUMMED)
    sums = made.rule.elementwise or is_number(plain)
    output, tensor = made.outputs[0] if len(made.outputs) == 1 else 0, made.edges[position].tensor
    up = _only(query, made, received)
    gradient = produced.flows[position].gradient if produced is not None and position < len(produced.flows) else 0
    down = query.memory.value(gradient, produced.index) if produced is not None and gradient else None
    above = up or query.memory.value(output, made.index)
    below = down or _input(query, made, tensor)
    summed = _repeated(above, below) if sums else ()
    is_known = sums and above is not None and below is not None
    stands = plain if is_known or made.rule.elementwise else formula
    step = ChainStep(made, position, symbol, stands, up, down, summed=summed)
    if up is None or down is None or produced is None:
        return step
    return _in_numbers(query, step, up, down, _ROUNDINGS * rounding(query, gradient, produced.index))


def _only(query: Query, made: NodeMade, received: Received | None) -> Snapshot | None:
    """The only gradient that a node received; None if it received none or several, or has several outputs."""
    if received is None or not received.gradients or not received.gradients[0]:
        return None
    if len(made.outputs) > 1 or any(received.gradients[1:]):
        return None
    return query.memory.value(received.gradients[0], received.index)


def _repeated(above: Snapshot | None, below: Snapshot | None) -> tuple[int, ...]:
    """The dimensions of a result over which an input was repeated."""
    if above is None or below is None or len(below.shape) > len(above.shape):
        return ()
    shape = (1,) * (len(above.shape) - len(below.shape)) + below.shape
    if any(size not in (1, wide) for size, wide in zip(shape, above.shape, strict=True)):
        return ()
    added = len(above.shape) - len(below.shape)
    return tuple(i for i, size in enumerate(shape) if i < added or size != above.shape[i])


def _in_numbers(query: Query, step: ChainStep, up: Snapshot, down: Snapshot, tolerance: float) -> ChainStep:
    """The step with `local` in numbers: the value of the formula if that gives the recorded gradient, else, where
    nothing is summed, downstream / upstream."""
    if step.summed and step.formula == "1":
        return step._replace(local=np.ones(()), product=up)
    g, recorded = (_real(snapshot) for snapshot in (up, down))
    if g is None or recorded is None or step.is_whole:
        return step
    local = _evaluated(query, step, g)
    if local is not None:
        with np.errstate(all="ignore"):
            product = np.broadcast_to(g * local, g.shape)
            result = np.reshape(product.sum(step.summed), recorded.shape) if step.summed else product
            scale = float(np.max(np.abs(product).sum(step.summed), initial=0.0))
            agrees = result.shape == recorded.shape and np.all(np.abs(result - recorded) <= tolerance * scale)
        if agrees:
            of = replace(up, array=product.astype(np.float64), told=None) if step.summed else None
            return step._replace(local=local, product=of)
    if step.summed:
        return step
    return step._replace(local=quotient(step.made.rule.elementwise, up, down), is_defined=local is not None)


def _real(snapshot: Snapshot) -> np.ndarray | None:
    """The elements of a small real tensor in double precision."""
    array = snapshot.array
    if array is None or array.size > _MOST or array.dtype.kind != "f":
        return None
    return array.astype(np.float64)


def _evaluated(query: Query, step: ChainStep, g: np.ndarray) -> np.ndarray | None:
    """The formula of an elementwise op on the recorded values; None if it is words, or if a value is not known."""
    names = _values(query, step.made) if step.made.rule.elementwise else {}
    if not step.formula or (g.ndim and not step.made.rule.elementwise and not step.is_number):
        return None
    try:
        with np.errstate(all="ignore"):
            local = np.asarray(evaluated(step.formula, names), np.float64)
            return local if np.broadcast_shapes(local.shape, g.shape) == g.shape else None
    except (NotationError, ValueError, TypeError):
        return None


def _values(query: Query, made: NodeMade) -> Names:
    """The values in forward that the names in a node's formulas stand for."""
    op = query.tensors.op(made.op) if made.op >= 0 else None
    names: Names = {}
    for (symbol, _), edge in zip(stated(made.rule, len(made.edges)), made.edges, strict=True):
        value = _input(query, made, edge.tensor) if edge.tensor else None
        array = None if value is None else _real(value)
        if array is not None:
            names[symbol] = array
        elif not edge.tensor and not edge.node and op is not None:
            with suppress(ValueError):
                names[symbol] = np.float64(op.args)
    out = query.memory.value(made.outputs[0], made.index) if len(made.outputs) == 1 else None
    array = None if out is None else _real(out)
    return names if array is None else {**names, "out": array}


def _input(query: Query, made: NodeMade, tensor: int) -> Snapshot | None:
    """The value of an input in forward; the value before the op, if the op wrote over it."""
    before = tensor in made.outputs and made.op > 0
    return query.memory.value(tensor, made.op - 1 if before else made.index) if tensor else None


def quotient(elementwise: bool, upstream: Snapshot | None, downstream: Snapshot | None) -> np.ndarray | None:
    """downstream / upstream if both are scalars or the op is elementwise; None if that is not finite."""
    up, down = (None if snapshot is None else _real(snapshot) for snapshot in (upstream, downstream))
    if up is None or down is None or up.shape != down.shape or (up.size > 1 and not elementwise):
        return None
    with np.errstate(all="ignore"):
        ratio = down / up
    return ratio if np.all(np.isfinite(ratio)) else None


# --- forward mode


class Push(NamedTuple):
    """A term of the tangent of an op's output: an input by its position, its tangent, and the local derivative in
    numbers; None unless the terms add up to the recorded tangent."""

    position: int
    tangent: int
    local: np.ndarray | None


def pushed_through(query: Query, event: TangentPushed) -> OpRan | None:
    """The op that a tangent was pushed through; None for the inputs of a sweep."""
    tensors = query.tensors
    return None if event.how == "make_dual" else tensors.op_behind(tensors.after(event.tensor, event.index))


def pushes(query: Query, event: TangentPushed) -> list[Push]:
    """The terms whose sum is the tangent of an op's output. Empty for the inputs of a sweep."""
    op = pushed_through(query, event)
    if op is None:
        return []
    before = max(op.index - 1, 0)  # an op in place replaces its input and the tangent of its input
    tangents = {i: query.tensors.tangent(tensor, before) for i, tensor in enumerate(op.inputs) if tensor}
    moved = {i: query.memory.value(tangent, event.index) for i, tangent in tangents.items() if tangent}
    local = _adding_up(query, op, event, moved)
    moving = [i for i, value in moved.items() if value is None or value.array is None or np.any(value.array != 0)]
    if not local and len(moving) == 1:
        result = query.memory.value(event.tangent, event.index)
        local = {moving[0]: quotient(op.rule.elementwise, moved[moving[0]], result)}
    return [Push(i, tangents[i], local.get(i)) for i in moved]


def _adding_up(
    query: Query, op: OpRan, event: TangentPushed, moved: dict[int, Snapshot | None]
) -> dict[int, np.ndarray | None]:
    """The local derivatives by the formulas of an op, if with the tangents they add up to the recorded tangent."""

    def known(tensor: int, k: int) -> Any:
        value = query.memory.value(tensor, k) if tensor else None
        return None if value is None else _real(value)

    rules = stated(op.rule, len(op.inputs))
    names = {rules[i][0]: known(tensor, max(op.index - 1, 0)) for i, tensor in enumerate(op.inputs)}
    names["out"], recorded = known(event.tensor, event.index), known(event.tangent, event.index)
    tangents: dict[int, Any] = {i: None if value is None else _real(value) for i, value in moved.items()}
    if not (op.rule.elementwise or all(is_number(rules[i][1]) for i in moved)):
        return {}
    try:
        with np.errstate(all="ignore"):
            local = {i: np.asarray(evaluated(rules[i][1], names), np.float64) for i in moved}
            terms = [local[i] * tangents[i] for i in moved]
            scale = sum(float(np.max(np.abs(term), initial=0.0)) for term in terms)
            tolerance = _ROUNDINGS * rounding(query, event.tangent, event.index) * scale
            agrees = np.shape(sum(terms)) == recorded.shape and np.all(np.abs(sum(terms) - recorded) <= tolerance)
    except (NotationError, ValueError, TypeError, AttributeError):  # words in the formula, or a value is not known
        return {}
    return {**local} if agrees else {}
