"""How a derivative is stated: as text, and beside it as a rule.

The text is shown to people. It says what the rule computes:

- Names are those of the op's inputs and arguments. `out` is the output, `g` the upstream gradient.
- A text without `g` is the local derivative. The gradient is the upstream gradient times it.
- A text with `g` is the whole gradient: `g yᵀ`.
- A condition stands for 1 where it holds, and for 0 elsewhere: `x > 0`. Cases read `A where C, B where D, else E`.
- Words after a comma say what else happens to the product: `1, summed`.

Where the formula depends on the value of an argument, each value has its own text and its own rule (`by`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradviz.engine.basics.keywords import parameter_names


@dataclass(frozen=True, slots=True)
class Derivative:
    """How the gradient of one input comes from the gradient of the output."""

    text: str  # as on paper, for people: "cos(x)"
    rule: Callable
    parameters: tuple[str, ...]  # of the rule, after `g`

    @property
    def variants(self) -> tuple[Derivative, ...]:
        """Itself: there is one rule, whatever the arguments are."""
        return (self,)

    def among(self, names: Sequence[str], args: tuple) -> Derivative:
        """Itself: there is one rule, whatever the arguments are."""
        return self

    def mapped(self, change: Callable[[Callable], Callable]) -> Derivative:
        """The derivative with its rule changed."""
        return replace(self, rule=change(self.rule))


@dataclass(frozen=True, slots=True)
class Choice:
    """A derivative that depends on the value of an argument. Each value has a text and a rule of its own."""

    argument: str
    by_value: Mapping[Any, Derivative | Choice]
    otherwise: Derivative | Choice

    @property
    def variants(self) -> tuple[Derivative, ...]:
        """All derivatives that can be chosen. The last one is for all values that are not listed."""
        branches = (*self.by_value.values(), self.otherwise)
        return tuple(variant for branch in branches for variant in branch.variants)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the rules of all variants need together."""
        return tuple(dict.fromkeys(name for variant in self.variants for name in variant.parameters))

    def among(self, names: Sequence[str], args: tuple) -> Derivative:
        """The derivative for these arguments of an op, whose names are `names`."""
        branch = looked_up(self.by_value, args[names.index(self.argument)], self.otherwise)
        return branch.among(names, args)

    def mapped(self, change: Callable[[Callable], Callable]) -> Choice:
        """The choice with all its rules changed."""
        table = {value: branch.mapped(change) for value, branch in self.by_value.items()}
        return replace(self, by_value=table, otherwise=self.otherwise.mapped(change))


AnyDerivative = Derivative | Choice


def d(text: str, rule: Callable) -> Derivative:
    """State a derivative: as text, and as a rule `(g, ...) -> gradient` in plain NumPy."""
    return Derivative(text, rule, parameter_names(rule)[1:])


def by(argument: str, by_value: Mapping[Any, AnyDerivative], otherwise: AnyDerivative) -> Choice:
    """State a derivative for each value of an argument that makes a difference, and one for all other values."""
    return Choice(argument, by_value, otherwise)


def looked_up(table: Mapping[Any, Any], value: Any, otherwise: Any) -> Any:
    """The entry for the value of an argument. An array has no entry."""
    try:
        return table.get(value, otherwise)
    except TypeError:  # an array is not hashable
        return otherwise


def selection(derivative: AnyDerivative, names: Sequence[str], args: str, scope: dict[str, Any]) -> str:
    """The source of an expression for the position of the chosen variant among `variants`.

    `args` is the source of the op's arguments. Names that the expression uses are added to `scope`."""
    positions = iter(range(len(derivative.variants)))
    return _selection(derivative, names, args, scope, positions)


def _selection(
    branch: AnyDerivative, names: Sequence[str], args: str, scope: dict[str, Any], positions: Iterator[int]
) -> str:
    if isinstance(branch, Derivative):
        return str(next(positions))
    parts = [_selection(part, names, args, scope, positions) for part in branch.by_value.values()]
    otherwise = _selection(branch.otherwise, names, args, scope, positions)
    number = f"table_{len(scope)}"
    scope[number] = dict(zip(branch.by_value, range(len(parts)), strict=True))
    scope["looked_up"] = looked_up
    which = f"looked_up({number}, {args}[{names.index(branch.argument)}], {len(parts)})"
    if all(part.isdigit() for part in (*parts, otherwise)) and parts == [str(i) for i in range(len(parts))]:
        return which
    return f"({', '.join((*parts, otherwise))})[{which}]"
