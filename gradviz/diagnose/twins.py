"""Parameters of modules that a model has several times: numbered experts, layers, blocks."""

from __future__ import annotations

import re

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind

_NUMBER = re.compile(r"\d+")


def has_used_twin(case: Case, leaf: int) -> bool:
    """Whether a leaf got a gradient whose form is the same and whose name differs only in its numbers."""
    name = case.trace.parameters.get(leaf, "")
    if not _NUMBER.search(name):
        return False
    got, form = case.of(_learning), _form(case, leaf)
    return any(
        _NUMBER.sub("#", other) == _NUMBER.sub("#", name) and _form(case, number) == form
        for other, number in got.items()
    )


def learns_in_other_blocks(case: Case, leaf: int) -> bool:
    """Whether a leaf is in a numbered block with other parts that get gradients, and the same part of another block
    gets a gradient. In the last block of a chain, nothing uses the output for a next block."""
    parts = case.trace.parameters.get(leaf, "").split(".")
    got = case.of(_learning)
    for place, part in enumerate(parts):
        block, rest = ".".join(parts[:place]), ".".join(parts[place + 1 :])
        same_part = re.compile(rf"{re.escape(block)}\.\d+\.{re.escape(rest)}")
        if (
            part.isdigit()
            and any(other.startswith(f"{block}.{part}.") for other in got)
            and any(same_part.fullmatch(other) for other in got)
        ):
            return True
    return False


def learns_in_another_model(case: Case, leaf: int) -> bool:
    """Whether the same parameter of another model gets a gradient: its path in the model is the same, and the same line
    made it. The class has the parameter for what that model is used for."""
    name, made = case.trace.parameters.get(leaf, ""), case.query.tensors.made(leaf)
    if "." not in name or made is None:
        return False
    path, line = name.partition(".")[2], case.query.places.line(made.site)
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    return any(
        other.partition(".")[2] == path
        and number in got
        and (twin := case.query.tensors.made(number)) is not None
        and case.query.places.line(twin.site) == line
        for number, other in case.trace.parameters.items()
    )


def _learning(case: Case) -> dict[str, int]:
    """The parameters that got a gradient, by name."""
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    return {name: number for number, name in case.trace.parameters.items() if number in got}


def _form(case: Case, tensor: int) -> object:
    states = case.trace.states
    return states.form(states.first(tensor))
