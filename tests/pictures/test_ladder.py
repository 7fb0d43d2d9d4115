"""The ladder of layouts: whatever the size, there is a picture in reasonable time, and it says how it was made."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from gradviz.graph.build import build
from gradviz.graph.model import Edge, Graph, Node
from gradviz.pictures import layout
from gradviz.pictures.layout import GaveUp, LayoutError, _size, placed, svg_of
from gradviz.pictures.render import DrawError, svg
from gradviz.pictures.scene import scene_of
from tests.graph.graph_samples import chain, programs
from tests.graph.test_graph import Traced, traced
from tests.graph.test_graph import programs as real_programs
from tests.pictures.test_draw import HOSTILE, SVG, elements, one_node, texts

__all__ = ["traced"]


@pytest.fixture
def gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(source: str, timeout: float) -> str:
        raise GaveUp("Graphviz did not finish in 20 s: draw less of it")

    monkeypatch.setattr(layout, "to_svg", give_up)


def drawn(document: str, kind: str) -> dict[str, tuple[list[str], list[str]]]:
    """Classes and texts of everything of a kind in a picture, by id."""
    return {
        name: ((element.get("class") or "").split(), texts(element))
        for name, element in elements(document, kind).items()
        if "tie" not in (element.get("class") or "").split()
    }


# --- the same picture by every rung


@pytest.mark.slow
@real_programs
@pytest.mark.parametrize("whole", [False, True])
def test_every_layout_draws_the_same_nodes_edges_and_texts(
    program: Callable, whole: bool, traced: Traced, system_dot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced(program) as trace:
        graph = build(trace, whole=whole)
    pictures = []
    for engine in ("dot", "embedded", "rows"):
        monkeypatch.setenv("GRADVIZ_LAYOUT", engine)
        document = svg(graph)
        pictures.append((drawn(document, "node"), drawn(document, "edge")))
    assert pictures[0] == pictures[1] == pictures[2]
    assert set(pictures[0][0]) >= set(graph.nodes)
    assert pictures[0][1]


# --- which rung


def test_a_small_graph_is_laid_out_by_graphviz_and_nothing_is_said_of_it() -> None:
    assert "placed in rows" not in svg(chain(20))


def test_where_graphviz_gives_up_things_stand_in_rows_and_the_picture_says_why(gives_up: None) -> None:
    document = svg(chain(20))
    assert "placed in rows: Graphviz did not finish in 20 s<" in document
    assert set(elements(document, "node")) >= set(chain(20).nodes)


def test_without_any_graphviz_things_stand_in_rows_and_the_picture_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_EMBEDDED", layout._EMBEDDED._replace(find=lambda: None))
    assert "placed in rows: graphviz-pure is not installed<" in svg(chain(20))


@pytest.mark.slow
def test_graphviz_is_given_so_much_time_and_no_more() -> None:
    document = layout.laid_out(scene_of(chain(600)), patience=0.001)
    assert "placed in rows: Graphviz did not finish in 0.001 s" in document


@pytest.mark.slow
def test_what_is_too_large_for_graphviz_is_not_given_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "to_svg", lambda *_, **__: pytest.fail("it was"))
    graph = chain(2_500)
    document = svg(graph)
    assert "things are too many for Graphviz" in document
    assert set(elements(document, "node")) >= set(graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "count"), [("dot", 4_000), ("embedded", 12_000), ("rows", 12_000)])
def test_a_deep_graph_crashes_nothing(
    engine: str, count: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if engine == "dot":
        request.getfixturevalue("system_dot")
    monkeypatch.setenv("GRADVIZ_LAYOUT", engine)
    assert count > layout.FAST / 2  # with as many edges, more than Graphviz is given otherwise
    monkeypatch.setattr(layout, "FAST", 100_000)
    graph = Graph()
    for i in range(count):
        graph.nodes[f"op{i}"] = Node(f"op{i}", "op", i, name="mul")
        graph.edges.append(Edge(f"op{i}", f"op{min(i + 1, count - 1)}", "data"))
    assert len(elements(svg(graph), "node")) == count


def test_an_engine_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADVIZ_LAYOUT", "neato")
    with pytest.raises(DrawError, match="there is no layout engine 'neato'"):
        svg(one_node("x"))


def test_what_goes_wrong_in_layout_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, timeout: float) -> str:
        raise LayoutError("there is no dot")

    monkeypatch.setattr(layout, "to_svg", fail)
    with pytest.raises(DrawError, match="there is no dot"):
        svg(one_node("x"))


# --- the last rung


@pytest.mark.slow
@settings(max_examples=50)
@given(programs())
def test_in_rows_nothing_overlaps_and_what_is_computed_stands_below(graph: Graph) -> None:
    scene = scene_of(graph)
    sizes = {name: _size(thing) for name, thing in scene.things.items()}
    places, (width, height) = placed(scene, sizes)
    assert set(places) == set(scene.things)
    boxes = []
    for name, (x, y) in places.items():
        w, h = sizes[name]
        assert x - w / 2 >= -0.01
        assert x + w / 2 <= width + 0.01
        assert y - h / 2 >= -0.01
        assert y + h / 2 <= height + 0.01
        boxes.append((x - w / 2, x + w / 2, y - h / 2, y + h / 2))
    for i, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:i]:
            apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
            assert apart
    for link in scene.links:
        if link.classes[0] == "data":
            assert places[link.source][1] < places[link.target][1]
    for thing in scene.things.values():
        if thing.pair:
            assert places[thing.id][1] == places[thing.pair][1]


def test_links_in_a_circle_are_drawn_too() -> None:
    graph = Graph()
    for i in range(3):
        graph.nodes[f"op{i}"] = Node(f"op{i}", "op", i, name="mul")
        graph.edges.append(Edge(f"op{i}", f"op{(i + 1) % 3}", "data"))
    graph.edges.append(Edge("op0", "op0", "data"))
    assert len(elements(svg_of(scene_of(graph)), "edge")) == 4


def test_nothing_is_a_picture_too() -> None:
    assert ElementTree.fromstring(svg_of(scene_of(Graph()))).tag == f"{SVG}svg"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing_in_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADVIZ_LAYOUT", "rows")
    document = svg(one_node(name))
    root = ElementTree.fromstring(document)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "g", "title", "path", "polygon", "ellipse", "rect", "text"}
    attributes = {key for element in root.iter() for key in element.attrib}
    assert not {key for key in attributes if key.startswith("on") or key.endswith("href")}
    assert set(elements(document, "node")) == {"t1", "op1", "n1"}
