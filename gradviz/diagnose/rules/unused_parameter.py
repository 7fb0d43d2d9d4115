"""`unused-parameter`: a leaf that should learn never gets a gradient, because no op reads it. Leaves of one kind of
which others are used (experts, embeddings of a mixture) are only noted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.reach import Lack, Lacking, lacking
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind

_NUMBER = re.compile(r"\d+")


def _search(case: Case) -> Iterator[Found]:
    by_site: dict[int, list[Lacking]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.UNUSED:
            made = case.query.tensors.made(lack.leaf)
            by_site.setdefault(made.site if made is not None else 0, []).append(lack)
    for site, own in by_site.items():
        leaves = [lack.leaf for lack in own]
        noted = all(lack.severity == NOTE or _has_used_twin(case, lack.leaf) for lack in own)
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: no op reads "
            f"{'it' if len(leaves) == 1 else 'them'}",
            "use it in forward(), or remove it",
            tuple(event for leaf in leaves[:4] if (event := case.query.tensors.maker(leaf)) is not None),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if noted else WARNING,
        )


def _has_used_twin(case: Case, leaf: int) -> bool:
    """Whether a leaf whose name differs only in its numbers got a gradient."""
    name = case.trace.parameters.get(leaf, "")
    if not _NUMBER.search(name):
        return False
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist())
    form = _form(case, leaf)
    return any(
        _NUMBER.sub("#", other) == _NUMBER.sub("#", name) and number in got and _form(case, number) == form
        for number, other in case.trace.parameters.items()
    )


def _form(case: Case, tensor: int) -> object:
    states = case.trace.states
    return states.form(states.first(tensor))


RULE = Rule(
    "unused-parameter",
    WARNING,
    "a parameter that no op reads",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path", "stale-optimizer", "no-graph"),
)
