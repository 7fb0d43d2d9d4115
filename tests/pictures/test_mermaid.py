"""Mermaid: that the text is a flowchart as its grammar wants it, whatever the names, and within the hosts' limits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradviz.graph.fold import folded
from gradviz.graph.model import Graph
from gradviz.pictures.render import MOST_EDGES, MOST_TEXT, to_mermaid
from tests.graph.graph_samples import chain, program, programs
from tests.pictures.test_draw import HOSTILE, one_node

_LABEL = r'"(?:[^"#<>`]|<br/>|#\d+;)*"'
_NODE = re.compile(rf"  \w+(?:\(\[{_LABEL}\]\)|\({_LABEL}\)|\{{\{{{_LABEL}\}}\}}|\[\[{_LABEL}\]\]|\[{_LABEL}\]):::\w+")
_EDGE = re.compile(r"  (\w+) (-->|-\.->|-\.-o|==>|-\.-)(?:\|(?:[^|#<>\"`]|#\d+;)*\|)? (\w+)")
_OTHER = re.compile(r"%% .*|flowchart TB|  classDef [\w]+ [\w:#,.\- ]+|  linkStyle [\d,]+ [\w:#,.\- ]+")


def parsed(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The nodes and edges of a flowchart; every line of it is one that we know."""
    nodes, edges = [], []
    for line in text.splitlines():
        if edge := _EDGE.fullmatch(line):
            edges.append((edge[1], edge[3]))
        elif _NODE.fullmatch(line):
            nodes.append(re.match(r"  (\w+)", line)[1])
        else:
            assert _OTHER.fullmatch(line), line
    return nodes, edges


@given(programs(30))
def test_every_node_and_edge_is_there_once(graph: Graph) -> None:
    nodes, edges = parsed(to_mermaid(graph))
    assert sorted(nodes) == sorted(graph.nodes)
    assert sorted(edges) == sorted((edge.source, edge.target) for edge in graph.edges)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_no_syntax(name: str) -> None:
    nodes, edges = parsed(to_mermaid(one_node(name)))
    assert (sorted(nodes), len(edges)) == (["n1", "op1", "t1"], 2)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_no_name_is_syntax(name: str) -> None:
    nodes, _ = parsed(to_mermaid(one_node(name)))
    assert sorted(nodes) == ["n1", "op1", "t1"]


def test_names_that_mermaid_keeps_for_itself_are_no_ids() -> None:
    nodes, _ = parsed(to_mermaid(program([("end", "", [0], True), ("graph", "", [0], True)])))
    assert len(nodes) > 2
    assert all(re.fullmatch(r"(t|op|n|g)\d+(v\d+)?", name) for name in nodes)


@pytest.mark.slow
def test_what_is_too_much_for_a_code_host_is_cut_and_said() -> None:
    text = to_mermaid(chain(2_000))
    assert len(text) <= MOST_TEXT
    nodes, edges = parsed(text)
    assert len(edges) <= MOST_EDGES
    assert {end for edge in edges for end in edge} <= set(nodes)
    left = len(chain(2_000).edges) - len(edges)
    assert f"{left:,} more edges are left out" in text
    assert text.splitlines()[-1].startswith("  more[")


def test_what_was_folded_is_said() -> None:
    assert any(line.startswith("%% folded: ") for line in to_mermaid(folded(chain(400))).splitlines())
