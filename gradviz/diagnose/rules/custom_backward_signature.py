"""`custom-backward-signature`: the backward of a custom Function returned the wrong number or shape of gradients. The
line is the one where it returned them, or that of the call where its source was not kept."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.function_source import returned_at
from gradviz.diagnose.rule import Found, Rule
from gradviz.words.escape import clean

_MESSAGES = ("returned an incorrect number of gradients", "returned an invalid gradient")


def _search(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if any(text in error.message for text in _MESSAGES):
            made = case.query.nodes.event(error.node)
            called = f"; called at {case.at(made.index)}" if made is not None else ""
            yield Found(
                clean(error.message.splitlines()[0]) + called,
                "return one gradient of the same shape for each input of forward, None where there is none",
                (error.event, made.index) if made is not None else (error.event,),
                site=returned_at(case, made.grad_fn.removesuffix("Backward")) if made is not None else 0,
                node=error.node,
                number=error.number,
                severity=case.severity_of(error),
            )


RULE = Rule(
    "custom-backward-signature",
    ERROR,
    "a custom Function whose backward returns the wrong number or shape of gradients",
    _search,
)
