"""`unused-parameter`: a leaf that should learn never gets a gradient, because no op reads it. Leaves of one kind of
which others are used (experts, embeddings of a mixture) are only noted."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.reach import Lack, Lacking, lacking
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.twins import has_used_twin


def _search(case: Case) -> Iterator[Found]:
    by_site: dict[int, list[Lacking]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.UNUSED:
            made = case.query.tensors.made(lack.leaf)
            by_site.setdefault(made.site if made is not None else 0, []).append(lack)
    for site, own in by_site.items():
        leaves = [lack.leaf for lack in own]
        noted = all(lack.severity == NOTE or has_used_twin(case, lack.leaf) for lack in own)
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: no op reads "
            f"{'it' if len(leaves) == 1 else 'them'}",
            "use it in forward(), or remove it",
            tuple(event for leaf in leaves[:4] if (event := case.query.tensors.maker(leaf)) is not None),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if noted else WARNING,
        )


RULE = Rule(
    "unused-parameter",
    WARNING,
    "a parameter that no op reads",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path", "stale-optimizer", "no-graph"),
)
