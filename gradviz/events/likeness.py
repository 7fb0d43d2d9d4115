"""How the nodes of recorded passes came to be, for a pass of which only the graph is at hand. Where a recorded pass had
the same nodes with the same edges, each op has the place, the text and the scopes that it had there."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.counters import next_scope_number
from gradviz.events.listener import Entered, Made

_MOST_FORMS = 16  # of passes that are remembered
# Nodes whose derivative is not finite somewhere: what they save of that place, and where it is finite.
SINGULAR: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    **dict.fromkeys("LogBackward0 Log2Backward0 Log10Backward0".split(), ("self", lambda x: x != 0)),
    **dict.fromkeys("AcosBackward0 AsinBackward0 AtanhBackward0".split(), ("self", lambda x: abs(x) < 1)),
    **dict.fromkeys("ExpBackward0 ReciprocalBackward0 RsqrtBackward0".split(), ("result", np.isfinite)),
    **dict.fromkeys("SqrtBackward0 HypotBackward0".split(), ("result", lambda x: x > 0)),
    "DivBackward0": ("other", lambda x: x != 0),
    "Log1PBackward0": ("self", lambda x: x != -1),
    "PowBackward0": ("self", lambda x: x > 0),
}
_SMOOTH = re.compile(r"exponent=[1-9]|[\d.]+(e.*)?$")  # arguments of `pow` and `div`
_NOWHERE, _OTHER_LEAF = -1, -2  # edges without a target, and to a leaf that is made anew for each pass

Form = tuple[tuple[str, tuple[int, ...]], ...]  # the name of each node, and where its edges lead


class Origin(NamedTuple):
    """Where an input of an op comes from: output `nr` of a node, by its place in the pass, or the leaf of that number,
    or neither: then the op took data without a graph."""

    node: int = -1
    nr: int = 0
    leaf: int = 0


class Like(NamedTuple):
    """How a node came to be in recorded passes, and where the inputs of its op come from. Its arguments are
    `steady` if all of several passes had the same; None after the first."""

    made: Made
    inputs: tuple[Origin, ...]
    steady: bool | None = None


class Likes:
    """The nodes of the last few forms of passes, the oldest node first."""

    def __init__(self) -> None:
        self.known: OrderedDict[Form, list[Like | None]] = OrderedDict()
        self.newest = 0  # the newest tensor as the last of these passes ended: older leaves stay

    def form(self, nodes: Iterable[tuple[int, str, Sequence[int]]], leaves: Mapping[int, int]) -> Form:
        """The form of nodes, each with its number, its name and the numbers of the nodes that its edges lead to.
        `leaves` has the leaf of each node of a leaf."""
        nodes = list(nodes)
        places = {number: at for at, (number, _, _) in enumerate(nodes)}

        def edge(number: int) -> int:
            if number in places:
                return places[number]
            leaf = leaves.get(number)
            if leaf is None:
                return _NOWHERE
            return -3 - leaf if leaf <= self.newest else _OTHER_LEAF

        return tuple((name, tuple(map(edge, targets))) for _, name, targets in nodes)

    def note(
        self, form: Form, made: Sequence[Made | None], outputs: Mapping[int, Origin], newest: int
    ) -> list[Like | None]:
        """Note how the nodes of a recorded pass came to be. `outputs` has the origin of each tensor, and `newest` is
        the newest of all."""
        likes = [
            None if one is None else Like(one, tuple(outputs.get(tensor, Origin()) for tensor in one.inputs))
            for one in made
        ]
        before = self.known.pop(form, None)
        self.known[form] = likes if before is None else list(map(_in_common, before, likes))
        if len(self.known) > _MOST_FORMS:
            self.known.popitem(last=False)
        self.newest = newest
        return likes

    def of(self, form: Form) -> list[Like | None]:
        """How the nodes of a form came to be in the recorded pass that has most of them in common, from the oldest on.
        Nothing is known of the others."""
        best: list[Like | None] = []
        for known, likes in self.known.items():
            common = next((at for at, (one, other) in enumerate(zip(known, form)) if one != other), None)  # noqa: B905
            common = min(len(known), len(form)) if common is None else common
            if common >= len(best):
                best = likes[:common]
        return [*best, *[None] * (len(form) - len(best))]


def is_often_singular(name: str, like: Like | None) -> bool:
    """Whether the derivative of a node may not be finite: of a power of 1 or more and of a division by a number it
    is."""
    args, op = ("", "") if like is None else (like.made.args, like.made.op)
    return name in SINGULAR and op != "square" and not _SMOOTH.match(args)


def _in_common(before: Like | None, now: Like | None) -> Like | None:
    """What two passes tell of a node: nothing, if they made it at different places."""
    if before is None or now is None or _where(before.made) != _where(now.made):
        return None
    return now._replace(steady=before.steady is not False and before.made.args == now.made.args)


def _where(made: Made) -> tuple[Any, ...]:
    return made.where, made.op, [(scope.where, scope.name, scope.training) for scope in made.scopes]


class OpenScopes:
    """The scopes that are open while the ops of such a pass are emitted to a listener, each with its number here."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.scopes: list[tuple[Entered, int]] = []

    def enter(self, wanted: Sequence[Entered]) -> None:
        """Leave and enter scopes until the wanted ones are open."""
        common = 0
        while common < min(len(wanted), len(self.scopes)) and self.scopes[common][0] == wanted[common]:
            common += 1
        for _, number in reversed(self.scopes[common:]):
            self.listener.scope_left(number)
        del self.scopes[common:]
        for scope in wanted[common:]:
            number = next_scope_number()
            self.listener.scope_entered(scope.where, number, *scope[2:])
            self.scopes.append((scope, number))
