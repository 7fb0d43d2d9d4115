"""A step of the chain rule in words: the local derivative, upstream × local, and the sum over broadcast
dimensions."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from gradviz.events.field_types import Rule
from gradviz.query.at_points import points_of, version_of
from gradviz.query.chain_step import ChainStep, is_number, stated
from gradviz.query.moment import Moment
from gradviz.query.passes import Delivery
from gradviz.words.defined_points import called, gradients, place
from gradviz.words.escape import clean, shortened_left
from gradviz.words.numbers import SHOWN, brief, compact, nested, scalar
from gradviz.words.words import MOST_LISTED, Words

# The local derivative of a node as text: its formula with the names of the program, and its number.

_LONGEST_NAME = 40  # a longer name is cut at its beginning in formulas
_ALONE = re.compile(r"[\w.]+(\([^()]*\))?")  # a name or a call needs no brackets


def formulas(rule: Rule, called: Iterable[str], result: str = "") -> Sequence[tuple[str, str]]:
    """For each input of an op, or edge of a node: its name in the formula, and the formula. The names of the
    inputs (`called`) and that of the result replace the names used in the rule. An input that the rule does not
    mention gets empty texts."""
    return _formulas(rule, tuple(called), result)


@lru_cache(maxsize=1024)
def _formulas(rule: Rule, called: tuple[str, ...], result: str) -> Sequence[tuple[str, str]]:
    known = stated(rule, len(called))
    called = tuple(shortened_left(name, _LONGEST_NAME) for name in called)
    names = {symbol: name for (symbol, _), name in zip(known, called, strict=True) if name}
    names["g"] = "upstream"
    if result:
        names["out"] = shortened_left(result, _LONGEST_NAME)
    return [
        (names.get(symbol, clean(symbol)) or name, _with_names(clean(text), names))
        for (symbol, text), name in zip(known, called, strict=True)
    ]


def _with_names(text: str, names: dict[str, str]) -> str:
    """Replace the names in a formula by the names of the program, all at the same time."""

    def put(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        if text[match.end() : match.end() + 1] in (*"ᵀ⁻²³^",) and not re.fullmatch(r"\w+", name):
            return f"({name})"
        enclosed = text[: match.start()].endswith("(") and text[match.end() :].startswith(")")
        return name if match[0] == text or enclosed or _ALONE.fullmatch(name) else f"({name})"

    return re.sub(r"[A-Za-z]+(?!\u0302)", put, text)  # x̂ is another name than x


def numbers_of(array: np.ndarray | None) -> str:
    """A local derivative in numbers; empty if it is not known or too large."""
    return nested(array) if array is not None and array.size <= SHOWN else ""


_SAID_OF_SHAPES = ("spread", "transposed", "summed")  # the words that may follow the comma in a formula
_FEW = 3  # the most outputs that are named
_LONGEST = 24  # characters of a formula that a sentence quotes


def formula_of(words: Words, step: ChainStep) -> str:
    """The formula of a step with the names of the program; empty if it is not known."""
    return _named(words, step)[1]


def formula_said(words: Words, step: ChainStep) -> str:
    """The formula of a step in the language of the session."""
    return _said(words, formula_of(words, step))


def _named(words: Words, step: ChainStep) -> tuple[str, str]:
    """The name of the input in the formula, and the formula."""
    result = words.called(step.output) if step.output else ""
    name, text = formulas(step.made.rule, words.edges_called(step.made), result)[step.position]
    return name, text if step.formula.endswith(", summed") else text.removesuffix(", summed")


def partial(words: Words, step: ChainStep) -> str:
    """The name of what a node computes along an edge: a partial derivative, or a VJP."""
    name = _named(words, step)[0]
    if step.is_whole:
        derivative = words.say("VJP for {name}", name=words.called(step.tensor) if step.tensor else name)
    else:
        derivative = words.partial(step.output, step.tensor, name, before=step.overwritten, of=_outputs(words, step))
    return derivative + which(words, step)


def _outputs(words: Words, step: ChainStep) -> str:
    """The name for the differentiated output of a node without one named output: the program does not see it, or
    there are several."""
    made = step.made
    if not any(made.outputs):
        return words.say("the output of {node}", node=words.node_name(made.node))
    names = [words.called(tensor) for tensor in made.outputs if tensor]
    return ", ".join([*names[:_FEW], *["…"] * (len(names) > _FEW)])


def which(words: Words, step: ChainStep) -> str:
    """The position of an edge among those to the same tensor: ` (2 of 2)` for the second factor of x * x; empty if it
    is the only edge."""
    position, count = step.place
    return words.say(" ({position} of {count})", position=position, count=count) if count > 1 else ""


def contributes(step: ChainStep, moment: Moment) -> bool:
    """Whether other gradients meet the one along an edge, so that it is not yet the derivative."""
    edge = step.made.edges[step.position]
    return moment.meeting(edge.node, edge.nr).of > 1


def downstream(words: Words, step: ChainStep, moment: Moment) -> str:
    """The name of the gradient along an edge: the derivative `∂z/∂x`, or one of several contributions to it."""
    node = step.made.edges[step.position].node
    name = words.derivative(step.tensor, moment, before=step.overwritten, node=node)
    if not contributes(step, moment):
        return name
    by_way = bool(step.output) and step.output != words.root_of(moment)
    text = "contribution to {name} by way of {tensor}" if by_way else "contribution to {name}"
    return words.say(text, name=name, tensor=words.called(step.output)) + which(words, step)


def so_far(words: Words, moment: Moment, node: int, nr: int = 0) -> str:
    """The gradients that have arrived at an output of a node, as a sum; and how many are still missing."""
    meeting = moment.meeting(node, nr)
    total, count = addition(words, moment, meeting.arrivals), len(meeting.arrivals)
    if count > 1 and meeting.total is not None:
        total += f" = {compact(meeting.total)}"
    if meeting.complete:
        return total
    missing = {"sum": total, "count": count, "of": meeting.of}
    return words.say("{sum} so far, {count} of {of} paths", **missing)


def addition(words: Words, moment: Moment, arrivals: Sequence[Delivery]) -> str:
    """Gradients as terms: `1 + 0.6`; if there are many, only the first ones."""
    total = " + ".join(compact(moment.value(one.gradient)) for one in arrivals[:MOST_LISTED])
    if more := len(arrivals[MOST_LISTED:]):
        total += " + " + words.say("{count} more", count=f"{more:,}")
    return total


def local(words: Words, step: ChainStep) -> str:
    """The local derivative as an equation: `∂y/∂x = 2x = 6`; empty if neither formula nor number is known. Where the
    formula does not hold, it is followed by what PyTorch defines there."""
    formula = formula_of(words, step)
    number = "" if is_number(formula) else numbers_of(step.local)
    formula = _said(words, formula)
    if step.is_defined and step.made.op >= 0:
        version = version_of(words.trace)
        for point in points_of(words.query, words.query.tensors.op(step.made.op)):
            if point.is_finite(version) and (given := gradients(point, version)):
                told = {"place": place(point), "pytorch": called(version), "values": given}
                defined = words.say("{place} {pytorch} defines {values}", **told)
                return f"{partial(words, step)} = {formula}; {defined}"
    sides = " = ".join(part for part in (formula, number) if part)
    return f"{partial(words, step)} = {sides}" if sides else ""


def _said(words: Words, formula: str) -> str:
    """A formula whose words behind a comma are in the language of the session: `1, spread`."""
    first, *more = formula.split(", ")
    return ", ".join([first, *(words.say(part) if part in _SAID_OF_SHAPES else part for part in more)])


def whole_op(words: Words, step: ChainStep) -> str:
    """The derivative of an op that made several nodes, at the node that leads to its input: cross_entropy is a
    log_softmax and an nll_loss; empty if the op made one node."""
    query, op = words.query, words.query.tensors.op(step.made.op) if step.made.op >= 0 else None
    nodes = query.nodes.of_op(op.index) if op is not None else []
    if op is None or len(nodes) < 2 or step.tensor not in op.inputs or len(op.outputs) != 1:
        return ""
    formula = formulas(op.rule, words.inputs_called(op))[op.inputs.index(step.tensor)][1]
    together = ", by the {count} nodes of {expression} together"
    of = {"count": len(nodes), "expression": words.expression_of(step.made, 44)}
    name = words.partial(op.outputs[0], step.tensor)
    return f"{name} = {formula}" + words.say(together, **of) if formula else ""


def summed(words: Words, step: ChainStep) -> str:
    """The sum over broadcast dimensions, with its numbers if they are known: `[[1, 0], [0, 1]] summed over dim 0 =
    [1, 1]`; empty if nothing was broadcast."""
    if not step.summed:
        return ""
    if step.downstream is None or step.product is None:
        name = words.called(step.tensor) if step.tensor else _named(words, step)[0] or "?"
        text = "{name} was broadcast: its gradient is {summed}"
        return words.say(text, name=name, summed=over(words, step))
    return f"{compact(step.product)} {over(words, step)} = {compact(step.downstream)}"


def over(words: Words, step: ChainStep) -> str:
    """The dimensions that a step sums over: `summed over dim 0`; empty if there are none."""
    dims = words.listed(map(str, step.summed))
    text = {0: "", 1: "summed over dim {dims}"}.get(len(step.summed), "summed over dims {dims}")
    return words.say(text, dims=dims)


def product(words: Words, step: ChainStep) -> str:
    """Upstream × local, in numbers for scalars, otherwise as a formula, with the sum; empty if it is unknown or
    long."""
    text = _in_numbers(step) or _said(words, _as_formula(words, step))
    return ", ".join((text, over(words, step))) if text and step.summed else text


def _in_numbers(step: ChainStep) -> str:
    if scalar(step.upstream) is None or scalar(step.downstream) is None or step.summed:
        return ""
    number = numbers_of(step.local)
    return f"{brief(step.upstream)} × {number}" if number else ""


def _as_formula(words: Words, step: ChainStep) -> str:
    formula = formula_of(words, step)
    if not formula or len(formula) > _LONGEST or step.is_whole:
        return formula if step.is_whole and len(formula) <= _LONGEST else ""
    if re.match(r"1($|, (?!for)| [a-z])", formula):  # `1, summed`, `1 where taken`
        return f"upstream{formula[1:]}"
    first, _, shape = formula.rpartition(", ")
    if shape not in _SAID_OF_SHAPES:
        first, shape = formula, ""
    joined = re.search(r" [−+<>≤≥] |, | is | where ", first)
    text = f"upstream × ({first})" if joined else f"upstream × {first}"
    return f"{text}, {shape}" if shape else text


def multiplied(words: Words, step: ChainStep) -> str:
    """The gradient before the sum, as a product: `[[2], [4]] = [[1], [2]] × 2`; empty if the numbers are not known."""
    formula, up = formula_of(words, step), step.upstream
    number = formula if is_number(formula) else numbers_of(step.local)
    gradient = step.product if step.summed else step.downstream
    if not number or up is None or gradient is None or up.array is None or up.array.size > SHOWN:
        return ""
    return f"{compact(gradient)} = {compact(up)} × {number}"
