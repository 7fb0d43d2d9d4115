"""Findings with the names of the program: a tensor without a name is called by the expression that made it, and the
words `optimizer`, `scheduler`, `scaler` and `loss` in a cure become the program's own variables."""

import re
from collections.abc import Callable

from gradviz.diagnose.case import Case
from gradviz.diagnose.rule import Found
from gradviz.query.pass_owners import optimizer_name, root_name, scaler_name, scheduler_name
from gradviz.query.source_trees import in_place, statement_at

_LONGEST_CALL = 80
_UNNAMED = re.compile(r"\bt(\d+)\b")
# PyTorch's name of a parameter may have a number after a dot, which is no Python.
_INDEX = re.compile(r"(?<![\w.])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\])*)\.(\d+)\b")
_ATOM = re.compile(r"[\w.]+(\(.*\))?|.*\bline \d+")  # an expression that needs no brackets before a dot
_ROLE = re.compile(
    r"(?<![\w.])(?:(?P<role>optimizer|scheduler|scaler)(?=\.\w)|loss(?=\.backward\()|(?<=[_p]\()optimizer(?=\)))"
)


def typed(case: Case, found: Found) -> str:
    """The cure of a finding, with the names of the program."""
    named = with_indices(by_expressions(case, found.cure.text))
    return _ROLE.sub(lambda match: _NAMES[match[0]](case, found) or match[0], named)


def by_expressions(case: Case, text: str) -> str:
    """The text with each `t3` replaced by the expression that made this tensor. A variable named `t3` stays."""
    names = set(case.query.names.labels) if _UNNAMED.search(text) else set()

    def called(number: re.Match[str]) -> str:
        expression = "" if number[0] in names else _expression(case, int(number[1]))
        is_asked = text[number.end() :].startswith(".") and not _ATOM.fullmatch(expression)
        return (f"({expression})" if is_asked and expression else expression) or number[0]

    return _UNNAMED.sub(called, text)


def with_indices(code: str) -> str:
    """The code with `model[2].weight` for `model.2.weight`."""
    while _INDEX.search(code):
        code = _INDEX.sub(r"\1[\2]", code)
    return code


def _optimizer(case: Case, found: Found) -> str:
    holders = [case.training.holders[tensor] for tensor in found.tensors if tensor in case.training.holders]
    return optimizer_name(case.query, set.intersection(*holders) if holders else set())


_NAMES: dict[str, Callable[[Case, Found], str]] = {
    "optimizer": _optimizer,
    "scheduler": lambda case, found: scheduler_name(case.query),
    "scaler": lambda case, found: scaler_name(case.query),
    "loss": lambda case, found: root_name(case.query, found.number),
}


def update_in_place(case: Case, made: int | None, name: str) -> str:
    """The cure for an update that makes a new tensor of a leaf of this name, at the event `made`."""
    if update := in_place(statement_at(case.query, case.place(made)), name):
        return f"with torch.no_grad(): {update}  # update the leaf in place: it stays the leaf"
    return f"update the leaf {name} in place, under torch.no_grad(): it stays the leaf"


def _expression(case: Case, tensor: int) -> str:
    """The expression that made a tensor, or its line, or the op if it is one of several; empty if all are unknown."""
    query, maker = case.query, case.query.tensors.maker(tensor)
    site = case.place(maker)
    if maker is None or site is None:
        return ""
    is_part = query.tensors.is_op(maker) and site.number not in query.places.of_one_op
    if is_part and not query.names.is_result(query.tensors.op(maker)):
        return query.labels.of(tensor)
    return query.places.expression(site.number) or f"the result of line {site.place.line}"


def in_order(case: Case, *sites: int) -> str:
    """The calls at some sites, in the order in which they should be made: as one line that can be typed, if one
    function makes them all, otherwise each with its line."""
    texts = [case.words.expression(site, _LONGEST_CALL) for site in sites]
    places = [case.query.places.site(site) for site in sites]
    functions = {(known.place.file, known.place.function) for known in places if known is not None}
    if all(texts) and len(functions) == 1:
        return f"{'; '.join(texts)}  # in this order"
    calls = (f"{text or 'the call'}{case.words.at_line(site)}" for text, site in zip(texts, sites, strict=True))
    return f"make these calls in this order: {'; '.join(calls)}"
