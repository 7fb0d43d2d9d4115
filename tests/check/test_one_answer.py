"""Every view names the same line for a leaf that never gets a gradient: `check`, the stepper, `gradviz why`, the
picture and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradviz.diagnose import Finding
from gradviz.events.kinds import OpRan
from gradviz.explain.origin import NoAnswer, why
from gradviz.graph.build import build
from gradviz.page.reasons import reasons
from gradviz.query import Query
from gradviz.query.missing_gradients import Lacking, Lacks
from gradviz.step.plain import script
from gradviz.step.state import Session
from gradviz.tracefile import Trace, open_trace
from gradviz.words import Words
from tests.zoo_programs import ALL, Program, checked

ABOUT_A_LACK = ("detached-path", "off-loss-path")
PROGRAMS = [
    program for program in ALL if program.rule in ABOUT_A_LACK and not program.needs_torch and program.state == "broken"
]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Trace, list[Finding]]]:
    """The trace of a program, and the findings about leaves without a gradient."""
    program: Program = request.param
    report = checked(program, tmp_path)
    with open_trace(tmp_path / "run.gradviz") as trace:
        yield trace, [finding for finding in report if finding.rule in ABOUT_A_LACK]


def test_the_stepper_and_why_name_the_line_of_the_finding(found: tuple[Trace, list[Finding]]) -> None:
    trace, findings = found
    session = Session(trace)
    words = Words(trace)
    never = words.query.of(Lacks).never_got  # others lack only the gradient of one term
    assert findings
    for finding in findings:
        for leaf in [leaf for leaf in finding.tensors if leaf in never][:3]:
            name = words.called(leaf)
            told = "\n".join(script(session, ["end", f"why {name}"]))
            assert f", line {finding.line}" in told.rpartition("is None: ")[2]
            with pytest.raises(NoAnswer, match=f", line {finding.line}"):
                why(trace, name)


def leads_to_the_root(query: Query, lacking: Lacking) -> bool:
    """Whether ops lead from the event of a cut to the root, and not numbers outside of the trace."""
    if not lacking.pass_number:
        return False
    ways = query.of(Lacks).ways(lacking.root, query.passes.by_number[lacking.pass_number].first)
    return not set(ways.reached).isdisjoint(query.tensors.op(lacking.event).outputs)


def test_the_picture_cuts_an_edge_at_the_line_and_the_page_says_why(found: tuple[Trace, list[Finding]]) -> None:
    trace, findings = found
    words = Words(trace)
    lacks = words.query.of(Lacks)
    for finding in findings:
        for leaf in finding.tensors[:3]:
            lacking = lacks.of(leaf)
            event = trace.event(lacking.event) if lacking is not None else None
            if lacking is None or not isinstance(event, OpRan) or not leads_to_the_root(words.query, lacking):
                continue  # no op in the picture blocks: the numbers went another way, or reach no root
            graph = build(words.query, lacking.pass_number)
            lines = {graph.nodes[edge.target].line for edge in graph.edges if edge.cut}
            site = words.query.places.site(lacks.query.trace.events["site"][lacking.event])
            assert site is not None
            assert site.place.line in lines
            told = reasons(graph, words, trace.count - 1)
            own = [text for text in told.values() if text.startswith(f"{words.called(leaf)}.grad")]
            if leaf in lacks.never_got:  # of another leaf `.grad` is None since it was cleared
                assert all(f", line {finding.line}" in text for text in own)
