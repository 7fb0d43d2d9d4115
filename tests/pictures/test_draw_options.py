"""The options of `gradviz graph`: what they leave in the picture, what they say, and what they refuse in one line."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import gradviz.engine as torch
from gradviz.cli.common import patience
from tests.graph.test_graph import Traced, network, several_paths, traced
from tests.pictures.test_draw import elements, texts

__all__ = ["traced"]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gradviz(gradviz_here: Run) -> Run:
    """A command that draws needs no process of its own."""
    return gradviz_here


def deep() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(30)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(4, 1))
    loss = (net(torch.ones(2, 4)) ** 2).mean()
    loss.backward()


def drawn(gradviz: Run, folder: Path, *options: str, ending: str = "svg") -> str:
    """What the command writes with these options."""
    done = gradviz("graph", "run.gradviz", "-o", f"out.{ending}", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / f"out.{ending}").read_text()


def names(document: str) -> set[str]:
    """The first lines of the nodes in a picture."""
    return {found[0] for element in elements(document, "node").values() if (found := texts(element))}


@pytest.mark.slow
def test_a_large_graph_is_folded_and_says_so(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    document = drawn(gradviz, tmp_path, "--unrolled")
    assert len(elements(document, "node")) <= 300
    assert "×" in " ".join(names(document))
    assert re.search("folded: [0-9,]+ ops into", document)


@pytest.mark.slow
def test_depth_opens_so_many_levels(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    sizes = [len(elements(drawn(gradviz, tmp_path, "--depth", str(depth)), "node")) for depth in range(4)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 15
    assert "net · Sequential" in names(drawn(gradviz, tmp_path, "--depth", "0"))
    assert "net · Sequential" not in names(drawn(gradviz, tmp_path, "--depth", "1"))


@pytest.mark.slow
def test_a_picture_is_drawn_from_left_to_right(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    down, across = (size_of(drawn(gradviz, tmp_path, "--rankdir", way)) for way in ("TB", "LR"))
    assert down[0] < down[1]
    assert across[0] > across[1]


def size_of(document: str) -> tuple[float, float]:
    found = re.search(r'width="([0-9.]+)pt" height="([0-9.]+)pt"', document)
    assert found
    return float(found[1]), float(found[2])


@pytest.mark.slow
def test_a_pdf_has_one_page_and_its_text_is_text(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    assert gradviz("graph", "run.gradviz", "-o", "net.pdf").returncode == 0
    content = (tmp_path / "net.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.count(b"/Type /Page\n") == 1
    assert b"/FontFile2" in content


@pytest.mark.slow
def test_all_folds_nothing(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    document = drawn(gradviz, tmp_path, "--all")
    whole = json.loads(drawn(gradviz, tmp_path, "--all", ending="json"))["nodes"]
    assert {node["id"] for node in whole} <= set(elements(document, "node"))
    assert "folded" not in document
    assert not any(node["kind"] == "group" for node in whole)


@pytest.mark.slow
def test_unfold_opens_one_scope(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    closed = drawn(gradviz, tmp_path, "--depth", "0")
    opened = drawn(gradviz, tmp_path, "--depth", "0", "--unfold", "net/7")
    assert "net.7.0.weight" not in names(closed)
    for path in ("7/0", "net.7.0"):
        assert "net.7.0.weight" in names(drawn(gradviz, tmp_path, "--depth", "0", "--unfold", path))
    assert len(elements(closed, "node")) < len(elements(opened, "node"))


def test_json_is_folded_only_when_asked(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    for options, kinds in (((), False), (("--depth", "0"), True)):
        nodes = json.loads(drawn(gradviz, tmp_path, *options, ending="json"))["nodes"]
        assert any(node["kind"] == "group" for node in nodes) == kinds


@pytest.mark.slow
def test_around_and_hops(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(several_paths).close()
    near = names(drawn(gradviz, tmp_path, "--around", "q", "--hops", "1"))
    assert near == {"q", "pow", "PowBackward1", "AccumulateGrad"}
    assert near < names(drawn(gradviz, tmp_path, "--around", "q"))


@pytest.mark.slow
def test_around_a_module(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    found = names(drawn(gradviz, tmp_path, "--around", "net.7.0", "--hops", "0"))
    assert {"net.7.0.weight", "net.7.0.bias"} <= found
    assert "net.6.0.weight" not in found


def test_from_to(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(several_paths).close()
    found = names(drawn(gradviz, tmp_path, "--from", "q", "--to", "y"))
    assert found == {"q", "pow", "y", "PowBackward1", "AccumulateGrad"}


def test_only_grad(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(network).close()
    document = drawn(gradviz, tmp_path, "--only-grad", ending="json")
    nodes = json.loads(document)["nodes"]
    tensors = [node for node in nodes if node["kind"] in ("leaf", "tensor")]
    assert tensors
    assert all(node["requires_grad"] for node in tensors)


@pytest.mark.slow
def test_a_slice_of_a_folded_pictures_size_is_shown_in_full(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(deep).close()
    document = drawn(gradviz, tmp_path, "--around", "net.7.0.weight", "--hops", "2")
    assert "net.7.0.weight" in names(document)
    assert "folded" not in document


@pytest.mark.slow
def test_the_dark_theme_has_light_ink_on_dark(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(several_paths).close()

    def brightness(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        return 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]

    for theme, dark in (("light", False), ("dark", True)):
        document = drawn(gradviz, tmp_path, "--theme", theme).replace('"white"', '"#ffffff"')
        root = ElementTree.fromstring(document)
        paper = next(root.iter("{http://www.w3.org/2000/svg}polygon")).get("fill")
        assert (brightness(paper) < 60) == dark
        for element in elements(document, "node").values():
            box = next((e for e in element.iter() if e.get("fill", "none") != "none"), None)
            if box is None or not texts(element):
                continue
            for text in element.iter("{http://www.w3.org/2000/svg}text"):
                style = re.search(r"fill: (#\w{6})", text.get("style", ""))
                ink = style[1] if style else text.get("fill") or root.get("fill") or "#000000"
                assert abs(brightness(ink) - brightness(box.get("fill"))) > 60, texts(element)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--around", "yy"], "there is no node 'yy' in this graph: did you mean 'y'?"),
        (["--around", "§"], "there is no node '§' in this graph: give a name, an id such as t3, or FILE:LINE"),
        (["--from", "x"], "--from and --to go together: give the start and the end of the paths"),
        (["--from", "y", "--to", "q"], "no path leads from 'y' to 'q' in this graph"),
        (["--unfold", "nothing"], "there is no scope 'nothing' in this graph"),
        (["-o", "out.gif"], "out.gif has no known ending: use one of .svg"),
        (["-o", "nowhere/out.svg"], "cannot write nowhere/out.svg: there is no directory nowhere"),
        (["-o", "."], "has no known ending"),
    ],
)
def test_what_is_not_there_or_cannot_be_written_gets_one_line(
    options: list[str], said: str, traced: Traced, gradviz: Run
) -> None:
    traced(several_paths).close()
    done = gradviz("graph", "run.gradviz", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradviz: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_may_not_be_written_gets_one_line(traced: Traced, tmp_path: Path, gradviz: Run) -> None:
    traced(several_paths).close()
    (tmp_path / "out.svg").mkdir()
    done = gradviz("graph", "run.gradviz", "-o", "out.svg")
    assert (done.returncode, done.stderr) == (2, "gradviz: cannot write out.svg: it is a directory\n")


@pytest.mark.slow
def test_trace_draws_what_graph_draws(tmp_path: Path, gradviz: Run) -> None:
    (tmp_path / "long.py").write_text(
        "import gradviz.engine as torch\n"
        "h = torch.ones(2, requires_grad=True)\n"
        "for _ in range(200):\n"
        "    h = (h * 2).sin()\n"
        "h.sum().backward()\n"
    )
    assert gradviz("trace", "long.py", "--graph", "with.svg").returncode == 0
    assert gradviz("graph", "long.gradviz", "-o", "after.svg").returncode == 0
    assert (tmp_path / "with.svg").read_text() == (tmp_path / "after.svg").read_text()
    assert len(elements((tmp_path / "with.svg").read_text(), "node")) <= 300


def test_the_legend_is_drawn_in_both_themes_and_needs_no_trace(tmp_path: Path, gradviz: Run) -> None:
    for theme in ("light", "dark"):
        done = gradviz("graph", "--legend", "--theme", theme, "-o", f"{theme}.svg")
        assert (done.returncode, done.stdout) == (0, f"wrote {theme}.svg: the legend of all symbols\n")
        assert {"leaf", "AccumulateGrad", "detach"} <= names((tmp_path / f"{theme}.svg").read_text())
    assert gradviz("graph", "--legend").returncode == 0
    assert (tmp_path / "legend.svg").read_text() == (tmp_path / "light.svg").read_text()
    done = gradviz("graph", "--legend", "-o", "legend.mmd")
    assert (done.returncode, done.stderr) == (
        2,
        "gradviz: a legend cannot be written as .mmd: use one of .svg .png .pdf .dot\n",
    )


def test_letters_that_no_font_has_are_told(traced: Traced, gradviz: Run) -> None:
    def named() -> None:
        weights = {"\U00030000": torch.ones(2, requires_grad=True)}  # a Chinese one that hardly any font has
        weights["\U00030000"].sum().backward()

    traced(named).close()
    for ending, told in ((".png", "no font here has \U00030000: save it as .svg"), (".svg", "")):
        done = gradviz("graph", "run.gradviz", "-o", f"out{ending}")
        assert ("no font" in done.stdout + done.stderr) is bool(told)
        assert told in done.stdout + done.stderr
    if find_spec("fpdf"):
        done = gradviz("graph", "run.gradviz", "-o", "out.pdf")
        assert "a PDF has no letters for \U00030000: .svg and .png have them" in done.stdout
        assert done.stderr == ""


def test_a_png_over_the_cap_is_scaled_and_the_line_says_so(
    traced: Traced, tmp_path: Path, gradviz_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long() -> None:
        h = torch.ones(1, requires_grad=True)
        for _ in range(100):
            h = h * h
        h.backward()

    traced(long).close()
    monkeypatch.setattr("gradviz.pictures.render.MOST_PIXELS", 1_000_000)  # to draw 32 million takes ten seconds
    done = gradviz_here("graph", "run.gradviz", "--all", "-o", "out.png", env={"GRADVIZ_LAYOUT": "rows"})
    assert (done.returncode, (done.stdout + done.stderr).count("\n")) == (0, 1)
    assert re.search(r"drawn at \d+% of its size, since a PNG has at most 1,000,000 pixels", done.stdout + done.stderr)
    width, height = struct.unpack(">II", (tmp_path / "out.png").read_bytes()[16:24])
    assert width * height > 950_000
    assert (width - 1) * (height - 1) < 1_000_000  # sides are whole pixels


def test_what_takes_long_is_told_on_a_terminal_and_only_there() -> None:
    def said(terminal: bool, after: float, *awaited: str) -> str:
        screen = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with patience("reading x\x1b.gradviz", after, screen) as doing:
            wait_for(screen, *awaited[:1])
            doing("folding 7 nodes")
            wait_for(screen, *awaited[1:])
        return screen.file.getvalue()

    def wait_for(screen: Console, *texts: str) -> None:
        end = time.monotonic() + 60
        while any(text not in screen.file.getvalue() for text in texts):
            assert time.monotonic() < end, screen.file.getvalue()
            time.sleep(0.01)

    said(True, 0.0, "reading x\\x1b.gradviz", "folding 7 nodes")
    assert said(terminal=True, after=60) == ""
    assert said(terminal=False, after=0.0) == ""
