"""A cure in the words of the program: what a rule calls `optimizer`, `scheduler`, `scaler` or `loss` has the name that
the program gives it."""

from __future__ import annotations

import re
from collections.abc import Callable

from gradviz.diagnose.case import Case
from gradviz.diagnose.rule import Found
from gradviz.query.own_names import optimizer_name, root_name, scaler_name, scheduler_name
from gradviz.words.escape import clean

_UNNAMED = re.compile(r"\bt(\d+)\b")
# A number behind a dot is no Python, but in a name of PyTorch's for a parameter.
_INDEX = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\])*)\.(\d+)\b")
_ROLE = re.compile(
    r"(?<![\w.])(?:(?P<role>optimizer|scheduler|scaler)(?=\.\w)|loss(?=\.backward\()|(?<=[_p]\()optimizer(?=\)))"
)


def typed(case: Case, found: Found) -> str:
    """The cure of a finding, with the names of the program. A tensor without one is called by the expression that made
    it."""
    named = _UNNAMED.sub(lambda number: _expression(case, int(number[1])) or number[0], found.fix)
    named = _with_indices(named)
    return _ROLE.sub(lambda match: clean(_own(case, found, match[0])) or match[0], named)


def _with_indices(code: str) -> str:
    """`model.2.weight` as one writes it: `model[2].weight`."""
    while _INDEX.search(code):
        code = _INDEX.sub(r"\1[\2]", code)
    return code


def _own(case: Case, found: Found, role: str) -> str:
    return _NAMES[role](case, found)


def _optimizer(case: Case, found: Found) -> str:
    holders = [case.training.holders[tensor] for tensor in found.tensors if tensor in case.training.holders]
    return optimizer_name(case.query, set.intersection(*holders) if holders else set())


_NAMES: dict[str, Callable[[Case, Found], str]] = {
    "optimizer": _optimizer,
    "scheduler": lambda case, found: scheduler_name(case.query),
    "scaler": lambda case, found: scaler_name(case.query),
    "loss": lambda case, found: root_name(case.query, found.number),
}


def _expression(case: Case, tensor: int) -> str:
    """The expression that made a tensor, or the line; empty if the source does not say."""
    maker = case.query.tensors.maker(tensor)
    site = case.query.places.site(case.site(maker)) if maker is not None else None
    if site is None:
        return ""
    return clean(case.query.places.expression(site.number)) or f"the result of line {site.place.line}"
