"""Pictures: what DOT and SVG say of a graph, that both layout engines agree, and that hostile names do no harm."""

from __future__ import annotations

import html
import json
import re
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import FoldError
from gradviz.graph.model import Edge, Graph, Node
from gradviz.pictures.layout import dot_of
from gradviz.pictures.picture import Picture
from gradviz.pictures.render import DrawError, check_path, save, svg
from gradviz.pictures.scene import FAR, frames, scene_of
from gradviz.tracefile.writer import INTERVAL
from tests.conftest import EXAMPLES
from tests.graph.test_graph import Traced, detached, in_place, network, programs, several_paths, traced
from tests.page.page_views import parsed_views

pytestmark = pytest.mark.slow  # both layout engines lay out

__all__ = ["traced"]

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]><svg/onload=alert(1)>",
    "<b>bold</b>",
    "&lt;script&gt; &#60;",
    r"\N \G \l ends with \\"[:-1],
    "a\nb\r\tc\x00\x1b[31m",
    "\u202eevil\u2066",
    "{left|right} <port>",
    'quote " and \\" more',
    "העברית",
    "x" * 500,
]


def elements(document: str, kind: str) -> dict[str, ElementTree.Element]:
    """The SVG groups of this kind (node, edge) by their ids."""
    groups = ElementTree.fromstring(document).iter(f"{SVG}g")
    return {g.get("id", ""): g for g in groups if g.get("class", "").split(" ")[0] == kind}


def texts(element: ElementTree.Element) -> list[str]:
    return [(text.text or "").replace("\u00a0", " ").strip() for text in element.iter(f"{SVG}text")]


def one_node(name: str) -> Graph:
    graph = Graph(script=name, title=name)
    graph.nodes["t1"] = Node("t1", "leaf", 1, name=name, is_leaf=True, requires_grad=True, text=name, file=name)
    graph.nodes["op1"] = Node("op1", "op", 1, name=name, args=name, scope=name, error=name)
    graph.nodes["n1"] = Node("n1", "grad_fn", 1, name=name, scope=f"{name}/{name}", error=name)
    graph.edges = [Edge("t1", "op1", "data", cut=name), Edge("t1", "t1", "mutation", label=name)]
    return graph


# --- what a picture shows


@programs
def test_every_node_is_an_element_with_its_id_and_its_kind_as_class(program: Callable, traced: Traced) -> None:
    with traced(program) as trace:
        graph = build(trace)
    drawn = elements(svg(graph), "node")
    assert set(drawn) == set(graph.nodes)
    for name, node in graph.nodes.items():
        assert node.kind in drawn[name].get("class", "").split()


@programs
def test_both_layout_engines_draw_the_same_nodes_and_texts(
    program: Callable, traced: Traced, system_dot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced(program) as trace:
        graph = build(trace, whole=True)
    drawn = []
    for engine in ("dot", "embedded"):
        monkeypatch.setenv("GRADVIZ_LAYOUT", engine)
        drawn.append({name: texts(element) for name, element in elements(svg(graph), "node").items()})
    assert drawn[0] == drawn[1]


def test_a_node_tells_leaf_requires_grad_grad_fn_shape_value_and_gradient(traced: Traced) -> None:
    with traced(several_paths) as trace:
        graph = build(trace)
    drawn = {graph.nodes[name].name: element for name, element in elements(svg(graph), "node").items()}
    assert texts(drawn["x"]) == [*("x", "leaf · requires_grad", "scalar = 5", ".grad = 1.6", "used 2×")]
    assert texts(drawn["y"]) == ["y", "non-leaf · requires_grad", "grad_fn=PowBackward1", "scalar = 125"]
    assert drawn["x"].get("class") == "node leaf requires-grad has-grad shared"
    assert "root" in drawn["z"].get("class", "")
    assert next(drawn["x"].iter(f"{SVG}text")).get("class") == "name"


def test_where_the_gradient_stops_is_said_on_the_edge(traced: Traced) -> None:
    with traced(detached) as trace:
        document = svg(build(trace))
    cut = [edge for edge in elements(document, "edge").values() if "cut" in edge.get("class", "").split()]
    assert [texts(edge) for edge in cut] == [["detached"]]


_VALUES = """import gradviz.engine as torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(3):
    state, following = torch.randn(8, 4), torch.randn(8, 4)
    aim = 1 + 0.9 * net(following)
    loss = (net(state) - aim.detach()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_PREDICTED = _VALUES.replace("(net(state) - aim.detach())", "(net(state).detach() + 0 * net.bias - aim.data)")
_LESSON = next(path for path in EXAMPLES if path.name == "detach.py").read_text()


@pytest.mark.parametrize(
    ("program", "red"),
    [(_VALUES, []), (_PREDICTED, ["gradient stops here"]), (_LESSON, ["gradient stops here"])],
    ids=["aim", "prediction", "lesson"],
)
def test_a_cut_is_red_only_where_a_finding_says_that_a_gradient_was_due(
    program: str, red: list[str], gradviz_here: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "cut.py").write_text(program)
    gradviz_here("trace", "cut.py")
    gradviz_here("graph", "cut.gradviz", "-o", "cut.svg", "--unrolled")
    edges = elements((tmp_path / "cut.svg").read_text(), "edge").values()
    cuts = [(edge.get("class", "").split(), texts(edge)) for edge in edges]
    assert [text for classes, found in cuts if "due" in classes for text in found] == red
    assert any("cut" in classes for classes, _ in cuts)
    page = gradviz_here("graph", "cut.gradviz", "-o", "cut.html")
    assert page.returncode == 0
    due = [edge for view in parsed_views((tmp_path / "cut.html").read_text()) for edge in view["edges"] if edge[5:]]
    assert bool(due) == bool(red)


def test_gradients_stand_on_the_edges_that_they_went_along(traced: Traced) -> None:
    with traced(several_paths) as trace:
        document = svg(build(trace))
    flowed = [e for e in elements(document, "edge").values() if "flowed" in e.get("class", "").split()]
    assert sorted(text for edge in flowed for text in texts(edge)) == (
        ["0.008", "0.1", "0.5", "0.5", "0.6", "1", "1", "1.609"]
    )


@programs
def test_backward_edges_are_written_the_other_way_round(program: Callable, traced: Traced) -> None:
    with traced(program) as trace:
        graph = build(trace)
    lines = [line for line in dot_of(scene_of(graph)).splitlines() if re.match(r"\s*n\d+ -> n\d+ ", line)]
    pairs = sorted(tuple(re.findall(r"n\d+", line)[:2]) for line in lines)
    assert pairs == sorted((edge.target, edge.source) for edge in graph.edges if edge.kind == "grad")
    assert all("dir=back" in line for line in lines)


def middles(document: str) -> dict[str, tuple[float, float]]:
    """Where the text of each node is, on average."""
    found = {}
    for name, element in elements(document, "node").items():
        written = list(element.iter(f"{SVG}text"))
        x, y = ([float(text.get(axis, "0")) for text in written] for axis in "xy")
        found[name] = sum(x) / len(written), sum(y) / len(written)
    return found


@pytest.mark.parametrize("engine", ["dot", "embedded"])
@pytest.mark.parametrize("program", [network, several_paths, detached])
def test_a_grad_fn_stands_to_the_right_of_its_op_in_one_row(
    program: Callable, engine: str, traced: Traced, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if engine == "dot":
        request.getfixturevalue("system_dot")
    monkeypatch.setenv("GRADVIZ_LAYOUT", engine)
    with traced(program) as trace:
        graph = build(trace)
    places = middles(svg(graph))
    pairs = [(places[node.id], places[node.pair]) for node in graph.nodes.values() if node.pair]
    assert len(pairs) >= 3
    for (x, y), (x_of_fn, y_of_fn) in pairs:
        assert x < x_of_fn
        assert abs(y - y_of_fn) < 3


def test_the_layers_of_a_network_stand_below_one_another(traced: Traced) -> None:
    with traced(network) as trace:
        graph = build(trace)
    places = middles(svg(graph))
    rows = {node.name: places[name][1] for name, node in graph.nodes.items()}
    assert rows["net.0.weight"] < rows["relu"] < rows["net.2.weight"] < rows["loss"]
    entry = next(edge.source for edge in graph.edges if graph.nodes[edge.target].name == "relu")
    assert rows["net.0.bias"] < places[entry][1] < min(rows["net.2.weight"], rows["net.2.bias"])


def test_each_call_of_a_module_has_a_frame_of_its_own(traced: Traced) -> None:
    def recurrent() -> None:
        cell = torch.nn.Linear(2, 2)
        h = torch.ones(1, 2)
        for _ in range(3):
            h = torch.tanh(cell(h))
        h.sum().backward()

    with traced(recurrent) as trace:
        graph = build(trace)
    clusters = elements(svg(graph), "cluster").values()
    assert sorted(texts(cluster)[0] for cluster in clusters) == [
        "cell (2) · Linear",
        "cell (3) · Linear",
        "cell · Linear",
    ]
    places = frames(graph)
    ops = [node for node in graph.nodes.values() if node.kind == "op"]
    inside = [places[op.id] for op in ops if op.scope]
    assert inside == sorted(inside)
    assert len(set(inside)) == 3
    assert {places[op.id] for op in ops if not op.scope} == {""}
    for op in ops:
        assert places[op.pair] == places[op.id]
    parameters = [node.id for node in graph.nodes.values() if node.parameter]
    assert {places[name] for name in parameters} == {"cell"}


def test_modules_are_drawn_as_clusters_within_one_another(traced: Traced) -> None:
    with traced(network) as trace:
        document = svg(build(trace))
    clusters = [texts(cluster) for cluster in elements(document, "cluster").values()]
    assert sorted(clusters) == [["0 · Linear"], ["1 · ReLU"], ["2 · Linear"], ["net · Sequential"]]


def test_a_leaf_that_is_used_again_far_below_is_drawn_there_once_more() -> None:
    graph = Graph()
    graph.nodes["t0"] = Node("t0", "leaf", 0, name="w", is_leaf=True, requires_grad=True)
    for i in range(1, 101):
        graph.nodes[f"op{i}"] = Node(f"op{i}", "op", i, name="mul")
        graph.edges.append(Edge("t0", f"op{i}", "data"))
        if i > 1:
            graph.edges.append(Edge(f"op{i - 1}", f"op{i}", "data"))
    drawn = elements(svg(graph), "node")
    assert set(graph.nodes) < set(drawn)
    references = [drawn[name] for name in set(drawn) - set(graph.nodes)]
    assert len(references) == 99 - FAR
    assert all(texts(element) == ["w"] for element in references)
    assert all("reference" in element.get("class", "") for element in references)


def test_the_caption_says_which_script_and_pass(traced: Traced) -> None:
    with traced(in_place) as trace:
        document = svg(build(trace))
    assert "pass 1 of 1" in document
    assert "line " in document


# --- hostile text


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("engine", ["dot", "embedded"])
def test_hostile_names_are_shown_and_do_nothing(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if engine == "dot":
        request.getfixturevalue("system_dot")
    monkeypatch.setenv("GRADVIZ_LAYOUT", engine)
    document = svg(one_node(name))
    root = ElementTree.fromstring(document)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "g", "title", "path", "polygon", "ellipse", "polyline", "text", "a"}
    attributes = {key for element in root.iter() for key in element.attrib}
    assert not {key for key in attributes if key.startswith("on") or key.endswith("href")}
    assert set(elements(document, "node")) == {"t1", "op1", "n1"}
    shown = texts(elements(document, "node")["t1"])[0]
    safe = name[:39] + "…" if len(name) > 40 else name
    expected = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in safe)
    assert shown == expected.strip()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_no_dot_syntax(name: str) -> None:
    source = dot_of(scene_of(one_node(name)))
    assert "=<" not in source
    assert "URL" not in source
    assert len(re.findall(r"^\t*(?:t1|op1|n1) \[", source, re.MULTILINE)) == 3


def test_no_address_gets_into_a_picture(traced: Traced) -> None:
    with traced(network) as trace:
        assert "0x" not in dot_of(scene_of(build(trace)))


# --- files


def test_the_ending_says_what_is_written(traced: Traced, tmp_path: Path) -> None:
    with traced(several_paths) as trace:
        graph = build(trace)
    for ending in (".svg", ".png", ".dot", ".mmd", ".json", ".SVG"):
        save(graph, tmp_path / f"g{ending}")
    assert ElementTree.parse(tmp_path / "g.svg").getroot().tag == f"{SVG}svg"
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert "digraph" in (tmp_path / "g.dot").read_text()
    assert set(json.loads((tmp_path / "g.json").read_text())) == {"nodes", "edges"}


def test_a_png_has_ink(traced: Traced, tmp_path: Path) -> None:
    with traced(several_paths) as trace:
        save(build(trace), tmp_path / "g.png")
    png = (tmp_path / "g.png").read_bytes()
    height = struct.unpack(">I", png[20:24])[0]
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    rows = zlib.decompress(data)
    step = len(rows) // height
    assert len({rows[i : i + step] for i in range(0, len(rows), step)}) > height / 4  # blank rows are all alike


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("graph", "graph has no known ending: use one of .svg .png .pdf .dot .mmd .json .html"),
        ("graph.gif", "graph.gif has no known ending"),
        ("nowhere/graph.svg", "there is no directory nowhere"),
    ],
)
def test_a_file_that_cannot_be_written_gets_one_clear_line(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DrawError, match=re.escape(message)) as raised:
        save(Graph(), path)
    assert "\n" not in str(raised.value)
    with pytest.raises(DrawError):
        check_path(Path(path))


def test_a_picture_shows_itself_in_a_notebook_and_can_be_saved(traced: Traced, tmp_path: Path) -> None:
    with traced(in_place) as trace:
        picture = Picture(build(trace))
    shown = picture._repr_svg_()
    assert shown.startswith("<svg")
    root = ElementTree.fromstring(shown)
    assert root.get("style") == "max-width: 100%; height: auto"  # not wider than the cell
    assert (root.get("role"), root.get("aria-label")) == (
        "img",
        f"the graph of {picture.graph.script or 'a computation'}, pass 1 of 1: "
        "1 leaf, 3 tensors, 3 operations, 4 grad_fns",
    )
    picture.save(tmp_path / "g.svg")
    assert (tmp_path / "g.svg").read_text() == picture.svg
    assert repr(picture) == (
        '<gradviz picture: 1 leaf, 3 tensors, 3 operations, 4 grad_fns; .save("picture.svg") writes it>'
    )


def test_a_large_graph_at_hand_is_folded_as_the_reader_wants_it(tmp_path: Path) -> None:
    h = torch.ones(2, requires_grad=True)
    for _ in range(200):
        h = (h * 2).sin()
    picture = gradviz.draw(h)
    assert len(elements(picture.svg, "node")) < 100
    assert "a box ×n ran n times" in picture.svg
    unrolled = gradviz.draw(h, rolled=False).svg
    assert "folded" in unrolled
    assert len(elements(picture.svg, "node")) < len(elements(unrolled, "node")) < 100
    assert 'fill="#1a1d21"' in gradviz.draw(h, theme="dark").svg
    picture.save(tmp_path / "whole.json")
    assert len(json.loads((tmp_path / "whole.json").read_text())["nodes"]) == len(picture.graph.nodes) > 1000
    with pytest.raises(FoldError, match="there is no scope 'sines'"):
        _ = gradviz.draw(h, unfold=["sines"]).svg


# --- the command


def test_the_command_draws_the_newest_trace_beside_it(
    traced: Traced, tmp_path: Path, gradviz: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    traced(network).close()
    done = gradviz("graph")
    assert done.returncode == 0
    assert done.stdout == (
        "wrote run.svg: pass 1 of 3, the first, 5 leaves, 7 tensors, 7 operations, 11 grad_fns, 35 edges; "
        "14 operations outside it (--all draws them)\n"
    )
    assert (tmp_path / "run.svg").exists()
    done = gradviz("graph", "run.gradviz", "--pass", "1", "--show", "backward", "-o", "one.json")
    assert done.returncode == 0
    assert {node["kind"] for node in json.loads((tmp_path / "one.json").read_text())["nodes"]} == {"grad_fn"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.gradviz"],
        ["run.gradviz", "--pass", "9"],
        ["run.gradviz", "-o", "x.gif"],
        ["run.gradviz", "-o", "nowhere/x.svg"],
        ["run.gradviz", "--show", "sideways"],
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    arguments: list[str], traced: Traced, gradviz: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    traced(several_paths).close()
    done = gradviz("graph", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("gradviz: ", "Error: "))


def test_a_call_that_fails_leaves_no_recording_behind(capfd: pytest.CaptureFixture[str]) -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        gradviz.draw(Fails(), torch.ones(2))
    time.sleep(4 * INTERVAL)  # a writer that still ran would find its file gone
    assert capfd.readouterr().err == ""


def test_a_finding_about_nothing_in_the_picture_has_a_box_of_its_own(
    gradviz_here: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "steep.py").write_text(
        "import torch\nw = torch.tensor(1.0, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], lr=1.5)\nfor step in range(20):\n    optimizer.zero_grad()\n"
        "    ((w - 3.0) ** 2).backward()\n    optimizer.step()\n"
    )
    gradviz_here("trace", "--engine", "numpy", "steep.py")
    gradviz_here("graph", "steep.gradviz")
    drawn = (tmp_path / "steep.svg").read_text()
    box = drawn[drawn.index('id="f1"') :].partition("</g>")[0]
    texts = [html.unescape(text).strip() for text in re.findall(">([^<]+)</text>", box)]
    assert texts == ["steep.py:7", "optimizer.step()", "finding 1: lr-too-large"]
    other = gradviz.draw(tmp_path / "steep.gradviz", passes=3)
    assert "lr-too-large" not in other.svg  # it is a finding about pass 2
    gradviz.draw(tmp_path / "steep.gradviz").save(tmp_path / "steep.json")
    nodes = json.loads((tmp_path / "steep.json").read_text())["nodes"]
    assert {node["kind"] for node in nodes} == {"leaf", "tensor", "op", "grad_fn"}  # of the program alone


def test_the_picture_is_of_the_pass_of_the_first_finding(
    gradviz_here: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    program = tmp_path / "late.py"
    program.write_text(
        "import gradviz.engine as torch\n"
        "torch.manual_seed(0)\n"
        "net = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "for step in range(12):\n"
        "    prediction = net(torch.randn(8, 4))\n"
        "    target = torch.randn(8) if step == 6 else torch.randn(8, 1)\n"
        "    loss = (prediction - target).pow(2).mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    gradviz_here("trace", program)
    told = gradviz_here("graph", "late.gradviz").stdout
    assert "pass 7 of 12, with the first finding" in told
