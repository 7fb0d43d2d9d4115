"""DOT to SVG by both engines, and SVG to PNG."""

from __future__ import annotations

import functools
import random
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest
import resvg_py

from gradviz.pictures import layout, render
from gradviz.pictures.layout import GaveUp, LayoutError, engines, to_svg
from gradviz.pictures.render import PictureTooLarge, to_png
from gradviz.pictures.scene import Scene, Thing

pytestmark = pytest.mark.slow  # both layout engines lay out

SVG = "{http://www.w3.org/2000/svg}"
needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for dot is a shell script")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    """No test follows the GRADVIZ_LAYOUT of whoever runs it."""
    monkeypatch.delenv("GRADVIZ_LAYOUT", raising=False)


@pytest.fixture(params=["dot", "embedded"])
def engine(request):
    if request.param == "dot":
        request.getfixturevalue("system_dot")
    return request.param


@pytest.fixture
def fake_dot(monkeypatch, tmp_path):
    """Puts a `dot` on PATH that is a shell script, and nothing else."""

    def install(script: str) -> None:
        dot = tmp_path / "dot"
        dot.write_text(f"#!/bin/sh\n{script}\n")
        dot.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def chain(length: int) -> str:
    return "digraph {" + ";".join(f"n{i} -> n{i + 1}" for i in range(length)) + "}"


def test_what_nothing_is_linked_to_does_not_lie_in_one_row(engine):
    things = {name: Thing(name, ["leaf"], [("name", name * 20)], "", "") for name in "abcdefghijklmn"}
    drawn = ElementTree.fromstring(to_svg(layout.dot_of(Scene([], things=things)), engine))
    rows = {text.get("y") for text in drawn.iter(f"{SVG}text") if (text.text or "").strip()[:1] in things}
    assert len(rows) == 3


def tangle(nodes: int) -> str:
    """Random edges: seconds of work for dot."""
    pick = random.Random(0).randrange
    return "digraph {" + ";".join(f"n{pick(nodes)} -> n{pick(nodes)}" for _ in range(3 * nodes)) + "}"


def groups(svg: str) -> dict[str, ElementTree.Element]:
    """The <g> elements of an SVG document, by id."""
    return {g.get("id", ""): g for g in ElementTree.fromstring(svg.encode()).iter(f"{SVG}g")}


def texts(svg: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(svg.encode()).iter(f"{SVG}text")]


class TestWhatComesOut:
    def test_the_svg_is_xml_with_every_node_and_edge(self, engine):
        classes = [g.get("class") for g in groups(to_svg("digraph { a -> b -> c }", engine)).values()]
        assert sorted(classes) == ["edge", "edge", "graph", "node", "node", "node"]

    def test_ids_and_classes_come_through(self, engine):
        svg = to_svg('digraph { a [id="t1" class="leaf grad"]; a -> b [id="e1" class="cut"] }', engine)
        assert groups(svg)["t1"].get("class") == "node leaf grad"
        assert groups(svg)["e1"].get("class") == "edge cut"

    def test_clusters_come_through(self, engine):
        dot = 'digraph { subgraph cluster_m { label="Linear"; id="scope1"; class="scope"; a -> b } }'
        svg = to_svg(dot, engine)
        assert groups(svg)["scope1"].get("class") == "cluster scope"
        assert "Linear" in texts(svg)

    def test_record_labels_come_through(self, engine):
        assert texts(to_svg('digraph { a [shape=record label="{w|<p>3.0}"] }', engine)) == ["w", "3.0"]

    def test_labels_of_any_script_come_through(self, engine):
        assert texts(to_svg('digraph { a [label="∂ℒ/∂w 기울기 😀"] }', engine)) == ["∂ℒ/∂w 기울기 😀"]

    def test_markup_in_a_label_stays_text(self, engine):
        assert texts(to_svg('digraph { a [label="<script>&x"] }', engine)) == ["<script>&x"]

    def test_characters_that_xml_cannot_hold_are_replaced(self, engine):
        assert texts(to_svg('digraph { a [label="x\x00\x1b\ud800y"] }', engine)) == ["x\ufffd\ufffd\ufffdy"]


class TestWhatGoesWrong:
    @pytest.mark.parametrize("bad", ["", "hello", "digraph { a -> ", "graph { a -> b }", 'digraph { a [label="x }'])
    def test_bad_dot_is_an_error_of_one_line(self, engine, bad):
        with pytest.raises(LayoutError) as caught:
            to_svg(bad, engine)
        assert "\n" not in str(caught.value)

    def test_the_error_of_bad_dot_does_not_spoil_the_next_render(self, engine):
        with pytest.raises(LayoutError):
            to_svg("digraph { a -> ", engine)
        assert "n7" in to_svg(chain(7), engine)

    def test_a_time_out_is_kept_and_a_later_render_works(self, engine):
        to_svg("digraph { a }", engine)  # so that loading the engine is not part of the time
        with pytest.raises(LayoutError, match=r"did not finish in 0\.2 s: draw less"):
            to_svg(tangle(3000), engine, timeout=0.2)
        assert "n7" in to_svg(chain(7), engine)

    def test_an_unknown_engine_is_an_error_that_names_the_known(self):
        with pytest.raises(LayoutError, match="'neato': use dot or embedded"):
            to_svg("digraph { a }", "neato")

    def test_dot_asked_for_and_not_there_is_an_error(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(LayoutError, match="install Graphviz"):
            to_svg("digraph { a }", "dot")

    @needs_sh
    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ("kill -SEGV $$", "ended by SIGSEGV: draw less"),
            ("exit 3", r"failed \(exit status 3\): set GRADVIZ_LAYOUT=embedded"),
            ("echo 'Error: no svg here' >&2; exit 1", r"failed \(no svg here\)"),
            ("exec /bin/sleep 60", r"did not finish in 0\.5 s"),
            ("exit 0", "no graph"),
        ],
    )
    def test_a_broken_dot_that_was_chosen_is_an_error_of_one_line(self, fake_dot, script, message):
        fake_dot(script)
        timeout = 0.5 if "sleep" in script else 60.0  # a busy machine takes long to start what ends at once
        with pytest.raises(LayoutError, match=message) as caught:
            to_svg("digraph { a }", "dot", timeout=timeout)
        assert "\n" not in str(caught.value)

    @needs_sh
    @pytest.mark.parametrize(
        "script", ["kill -SEGV $$", "exit 3", "echo 'Format: \"svg\" not recognized. Use one of:' >&2; exit 1"]
    )
    def test_for_a_dot_that_fails_the_embedded_engine_draws(self, fake_dot, script):
        fake_dot(script)
        assert "<title>a</title>" in to_svg("digraph { a }")

    @needs_sh
    def test_a_dot_that_is_too_slow_is_not_waited_for_twice(self, fake_dot):
        fake_dot("exec /bin/sleep 60")
        with pytest.raises(LayoutError, match=r"did not finish in 0\.5 s"):
            to_svg("digraph { a }", timeout=0.5)

    def test_a_graph_that_an_engine_cannot_rank_is_not_called_malformed(self, fake_dot):
        fake_dot("echo 'Error: trouble in init_rank' >&2; exit 1")
        with pytest.raises(GaveUp, match=r"dot failed \(trouble in init_rank\)"):
            to_svg("digraph { a }", "dot")


class TestWhoServes:
    def test_without_dot_on_path_the_embedded_one_serves(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        system, embedded = engines()
        assert (system.version, system.serves) == (None, False)
        assert system.where.startswith("there is no `dot` on PATH")
        assert embedded.serves
        assert f"Generated by graphviz version {embedded.version}" in to_svg("digraph { a }")

    @needs_sh
    def test_dot_serves_where_it_is_on_path(self, fake_dot, tmp_path):
        fake_dot("echo '<!-- Generated by graphviz version 9.8.7 (0) --><svg/>'")
        system, embedded = engines()
        assert system == layout.Engine("dot", "9.8.7", str(tmp_path / "dot"), serves=True)
        assert not embedded.serves
        assert "9.8.7" in to_svg("digraph { a }")

    @needs_sh
    def test_a_dot_that_does_not_draw_is_shown_with_the_reason_and_does_not_serve(self, fake_dot):
        fake_dot("echo 'Error: no svg here' >&2; exit 1")
        system, embedded = engines()
        assert (system.version, system.serves, embedded.serves) == (None, False, True)
        assert "no svg here" in system.where

    @needs_sh
    def test_the_environment_variable_decides(self, fake_dot, monkeypatch):
        fake_dot("echo '<svg/>'")
        monkeypatch.setenv("GRADVIZ_LAYOUT", "embedded")
        assert [engine.serves for engine in engines()] == [False, True]
        assert "<title>a</title>" in to_svg("digraph { a }")
        assert to_svg("digraph { a }", "dot") == "<svg/>\n"  # but what the caller says comes first

    def test_a_wrong_environment_variable_is_an_error_that_names_it(self, monkeypatch):
        monkeypatch.setenv("GRADVIZ_LAYOUT", "netscape")
        with pytest.raises(LayoutError, match=r"'netscape'.*GRADVIZ_LAYOUT"):
            engines()


class TestTheEmbeddedEngine:
    def test_it_is_found_where_its_package_says(self):
        assert Path(layout._embedded_program()).samefile(
            next(f.locate() for f in metadata.files("graphviz-pure") if f.stem == "graphviz-pure")
        )

    def test_it_is_found_beside_packages_that_pip_installed_into_a_folder(self, monkeypatch, tmp_path):
        program = tmp_path / "bin" / "graphviz-pure"
        program.parent.mkdir()
        program.touch()
        monkeypatch.setattr(metadata, "files", lambda _: [])
        monkeypatch.setattr(layout, "__file__", str(tmp_path / "gradviz" / "draw" / "layout.py"))
        assert layout._embedded_program() == str(program)

    @pytest.mark.parametrize(
        ("find", "reason"),
        [
            (lambda: None, "graphviz-pure is not installed: pip install graphviz-pure"),
            (lambda: __file__, "does not start (Permission denied): install Graphviz"),
        ],
    )
    def test_without_it_it_is_given_up_with_the_reason(self, find: Callable[[], str | None], reason: str, monkeypatch):
        without = layout._EMBEDDED._replace(find=find)
        monkeypatch.setattr(layout, "_EMBEDDED", without)
        monkeypatch.setattr(layout, "_ENGINES", (layout._DOT, without))
        assert engines()[1].version is None
        assert reason in engines()[1].where
        with pytest.raises(GaveUp) as caught:
            to_svg("digraph { a }")
        assert reason in str(caught.value)

    def test_a_chain_of_40000_nodes_is_laid_out(self):
        assert "n40000" in to_svg(chain(40_000), "embedded")

    def test_threads_may_render_at_once(self):
        dots = [chain(n) for n in range(1, 25)]
        with ThreadPoolExecutor(8) as pool:
            at_once = list(pool.map(functools.partial(to_svg, engine="embedded"), dots))
        assert at_once == [to_svg(dot, "embedded") for dot in dots]


def drawing(text: str = "", family: str = "Times,serif", width: int = 100, height: int = 40) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt">'
        f'<text x="5" y="25" font-size="14" font-family="{family}">{text}</text></svg>'
    )


def pixels(picture: bytes) -> tuple[int, int]:
    return struct.unpack(">II", picture[16:24])


class TestPng:
    def test_an_svg_becomes_a_png(self, engine):
        assert to_png(to_svg("digraph { a -> b }", engine)).startswith(b"\x89PNG\r\n\x1a\n")

    def test_text_is_drawn_on_a_machine_without_fonts(self, monkeypatch):
        bare = functools.partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
        monkeypatch.setattr(resvg_py, "svg_to_bytes", bare)
        for family in ("Times,serif", "Helvetica,sans-Serif", "Courier,monospace", "DejaVu Sans", "No Such Font"):
            pictures = {to_png(drawing(text, family)) for text in ("", "grad", "∂", "∇", "ℒ")}
            assert len(pictures) == 5, family

    def test_a_small_picture_gets_two_pixels_a_point(self):
        assert pixels(to_png(drawing())) == (200, 80)

    def test_the_scale_can_be_given(self):
        assert pixels(to_png(drawing(), scale=3.5)) == (350, 140)

    def test_a_large_picture_gets_fewer_pixels_a_point(self, monkeypatch):
        monkeypatch.setattr(render, "MOST_PIXELS", 9000)
        width, height = pixels(to_png(drawing()))
        assert 4000 < width * height < 9000

    def test_a_very_large_picture_is_scaled_to_fit(self):
        width, height = pixels(to_png(drawing(width=100_000_000)))
        assert width * height > 25_000_000
        assert (width - 1) * (height - 1) < render.MOST_PIXELS  # sides are whole pixels

    @pytest.mark.parametrize(("width", "scale"), [(1_000_000, 1.0), (100, 500), (100, 1e300)])
    def test_a_picture_too_large_is_an_error_of_one_line_before_it_is_drawn(self, monkeypatch, width, scale):
        monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **_: pytest.fail("it was drawn"))
        with pytest.raises(PictureTooLarge, match=r"too large \(at most 32,000,000\): save it as \.svg") as caught:
            to_png(drawing(width=width), scale)
        assert "\n" not in str(caught.value)

    def test_the_size_may_come_from_the_viewbox(self):
        assert pixels(to_png('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20"/>')) == (60, 40)

    @pytest.mark.parametrize("size", ["", 'width="9in" height="9in"', 'width="0" height="9"'])
    def test_an_svg_of_no_clear_size_is_an_error(self, size):
        with pytest.raises(ValueError, match="this SVG"):
            to_png(f'<svg xmlns="http://www.w3.org/2000/svg" {size}/>')

    @pytest.mark.parametrize("scale", [0, -1, float("nan")])
    def test_a_scale_of_nothing_is_an_error(self, scale):
        with pytest.raises(ValueError, match="scale has to be above 0"):
            to_png(drawing(), scale)

    def test_what_is_not_an_svg_is_an_error(self):
        with pytest.raises(ValueError, match="not an SVG"):
            to_png("digraph { a }")
