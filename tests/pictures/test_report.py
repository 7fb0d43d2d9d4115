"""`report`: findings, curves and the picture on one page, linked, and harmless whatever the trace says."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.cli.report import charts_of_run, charts_of_runs
from gradviz.pictures.report_page import Drawn, Report, chart_data, html
from gradviz.query import Query
from gradviz.query.curves import NamedCurve, accumulated_norms, change_norms
from gradviz.tracefile import open_trace

Command = Callable[..., CompletedProcess[str]]

STALE = """\
import torch
w = torch.tensor([3.0, 4.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    loss = (w ** 2).sum()  # <b>&amp;
    loss.backward()
    optimizer.step()
"""


def data_of(at: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    return chart_data(Drawn("w, by pass", [NamedCurve("w", at, values)]), {"w": "#000000"}, [])


def curves_of(page: str, title: str) -> dict[str, Any]:
    """The data of a chart in a report."""
    data = re.search(f'<h3>{title}</h3><div class="plot" data-curves="(.*?)">', page)
    assert data is not None
    return json.loads(unescape(data[1]))


@pytest.fixture
def reported(gradviz_here: Command, tmp_path: Path) -> Callable[[str], str]:
    def run(text: str) -> str:
        (tmp_path / "<i>stale.py").write_text(text)
        gradviz_here("trace", "--engine", "numpy", "-o", "stale.gradviz", "<i>stale.py")
        done = gradviz_here("report", "stale.gradviz", "-o", "report.html")
        assert (done.returncode, done.stderr) == (0, "")
        return (tmp_path / "report.html").read_text()

    return run


@pytest.mark.slow
def test_findings_curves_and_picture_are_linked(reported: Callable[[str], str]) -> None:
    page = reported(STALE)
    assert 'id="finding-1"' in page
    assert "stale-gradient" in page
    assert "optimizer.zero_grad()  # before backward()" in page
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {"findings", "curves", "picture", "not-checked"} <= targets
    assert curves_of(page, "Loss, by pass")["marks"] == [[2, "1", "#finding-1"]]
    assert targets <= set(re.findall(r'\bid="([^"]+)"', page))
    drawn = re.findall(r"<figure><h3>(.*?)</h3>(<div|<p)", page)
    assert drawn == [
        ("Loss, by pass", "<div"),
        ("Norm of the gradient of each module, by pass", "<div"),
        ("Norm of the gradient over that of the parameters, by pass", "<div"),
        ("Change of each module relative to its size, by step", "<div"),
        ("Learning rate, by step", "<p"),
    ]
    assert "SGD: 0.01, the same at all steps" in page


@pytest.mark.slow
def test_nothing_of_the_trace_is_markup(reported: Callable[[str], str]) -> None:
    page = reported(STALE)
    assert "<i>stale" not in page
    assert "# <b>" not in page
    assert "&lt;b&gt;&amp;amp;" in page
    assert page.count("<script") == 1  # of the report itself, and its hash allows no other
    assert re.search("script-src 'sha256-[^' ]+'", page)
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)


@pytest.mark.slow
def test_a_sound_run_has_no_findings_and_says_what_was_checked(reported: Callable[[str], str]) -> None:
    page = reported(STALE.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()"))
    assert "No findings" in page
    assert re.search(r"\d+ rules were checked", page)


@pytest.mark.slow
def test_a_trace_without_values_or_passes_has_a_report(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "stale.py").write_text(STALE)
    gradviz_here("trace", "--engine", "numpy", "--values", "none", "stale.py")
    assert gradviz_here("report", "stale.gradviz").returncode == 0
    assert (tmp_path / "stale.report.html").read_text().count("The trace has no values for it") == 4
    done = gradviz_here("report", "stale.gradviz", "-o", "report.pdf")
    assert (done.returncode, done.stderr) == (2, "gradviz: a report is an .html file, not report.pdf\n")


@pytest.mark.slow
def test_several_runs_have_their_curves_together(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "stale.py").write_text(STALE)
    (tmp_path / "sound.py").write_text(
        STALE.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()")
    )
    for name, script in (("one", "stale.py"), ("two", "stale.py"), ("three", "sound.py")):
        gradviz_here("trace", "--engine", "numpy", "-o", f"{name}.gradviz", script)
    done = gradviz_here("report", "one.gradviz", "two.gradviz", "three.gradviz", "-o", "all.html")
    assert done.stdout == "wrote all.html: 2 findings\n"
    page = (tmp_path / "all.html").read_text()
    curves = curves_of(page, "Loss, by pass")["series"]
    assert [curve["name"] for curve in curves] == ["one", "two", "three"]
    assert len({curve["colour"] for curve in curves}) == 3
    assert page.count("<article") == 1
    assert "<p class='see'>in one, two</p>" in page


def test_rates_of_several_runs_that_never_change_are_told_in_a_sentence() -> None:
    rates = {"a": 0.1, "b": 0.2, "c": 0.2}
    queries = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, rate in rates.items():
            with package.record(Path(folder) / name):
                w = torch.ones(2, requires_grad=True)
                optimizer = torch.optim.SGD([w], lr=rate)
                (w * w).sum().backward()
                optimizer.step()
            queries[name] = Query(open_trace(Path(folder) / name))
        (chart,) = (one for one in charts_of_runs(queries) if one.title.startswith("Learning rate"))
    assert (chart.series, chart.note) == ([], "a: SGD: 0.1; b and c: SGD: 0.2, the same at all steps.")


def test_the_norm_of_the_gradients_of_all_parameters_is_without_those_of_inputs(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    x = torch.ones(1, 3, requires_grad=True)
    with package.record(tmp_path / "run.gradviz"):
        net(x).sum().backward()
    norm = sum(float((p.grad**2).sum()) for p in net.parameters()) ** 0.5
    with open_trace(tmp_path / "run.gradviz") as trace:
        (drawn,) = (one for one in charts_of_run(Query(trace)) if "all parameters, by pass" in one.title)
    assert [one.values.tolist() for one in drawn.series] == [[pytest.approx(norm)]]


def test_more_runs_than_colours_are_refused(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "stale.py").write_text(STALE)
    gradviz_here("trace", "--engine", "numpy", "-o", "one.gradviz", "stale.py")
    done = gradviz_here("report", *["one.gradviz"] * 21)
    assert (done.returncode, done.stderr) == (2, "gradviz: a report has up to 20 runs, not 21\n")


def test_a_curve_of_many_points_keeps_its_peaks_and_gaps() -> None:
    values = np.ones(20_000)
    values[[777, 12_345]] = 1e6, np.nan
    (curve,) = data_of(np.arange(20_000), values)["series"]
    assert len(curve["at"]) == len(curve["values"]) < 500
    assert (777, 1e6) in zip(curve["at"], curve["values"], strict=True)
    assert curve["values"].count(None) == 1


@pytest.mark.slow
def test_a_run_without_steps_says_so_where_changes_would_be(reported: Callable[[str], str]) -> None:
    page = reported(STALE.replace("    optimizer.step()\n", ""))
    changes = page.partition("Change of each module relative to its size, by step")[2]
    assert changes.startswith("</h3><p class='quiet'>No step of an optimizer was recorded.</p>")


@pytest.mark.slow
def test_a_leaf_that_no_optimizer_changes_is_not_said_to_have_unknown_changes(reported: Callable[[str], str]) -> None:
    page = reported(
        STALE.replace("(w ** 2)", "(w * x)").replace("for step", "x = torch.ones(2, requires_grad=True)\nfor step")
    )
    names = [one["name"] for one in curves_of(page, "Norm of the gradient of each module, by pass")["series"]]
    assert "x" in names
    assert "whose changes were not recorded" not in page


def test_negative_values_are_drawn_on_a_linear_scale() -> None:
    assert data_of(np.array([1, 2, 3]), np.array([-1.0, 0.0, 1.0]))["linear"]
    assert not data_of(np.array([1, 2]), np.array([1.0, 100.0]))["linear"]


def test_norms_and_ratios_are_those_of_the_run(tmp_path: Path) -> None:
    norms, ratios = [], []
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor([3.0, 4.0], requires_grad=True)
        v = torch.ones(20, 20, requires_grad=True)
        optimizer = torch.optim.Adam([w, v], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ((w**3).sum() + (v**2).sum()).backward()
            norms.append([float(p.grad.norm()) for p in (w, v)])
            before = [p.detach().clone() for p in (w, v)]
            optimizer.step()
            ratios.append([float((p.detach() - q).norm() / q.norm()) for p, q in zip((w, v), before, strict=True)])
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        gradients, changes = accumulated_norms(query), change_norms(query)
    for found, values, expected in (
        (gradients, gradients.values, norms),
        (changes, changes.values / changes.sizes, ratios),
    ):
        assert sorted(found.at.tolist()) == [1, 1, 2, 2, 3, 3]
        order = np.lexsort((found.leaves, found.at))
        assert np.allclose(values[order].reshape(3, 2), expected, rtol=1e-5)


def test_a_change_of_unknown_size_has_no_norm(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        v = torch.ones(20, 20, requires_grad=True)
        optimizer = torch.optim.LBFGS([v], lr=0.1, max_iter=1)  # it may write several times in a step

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (v**2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert change_norms(Query(trace)).values.tolist() == [-1.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 1280])
def test_a_browser_shows_it_at_any_width(
    browser: Any, reported: Callable[[str], str], tmp_path: Path, width: int
) -> None:
    reported(STALE)
    context = browser.new_context(viewport={"width": width, "height": 800})
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("console", lambda told: wrong.append(told.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto((tmp_path / "report.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("article").count() == 1
    tab.click(".chart a")
    assert tab.evaluate("location.hash") == "#finding-1"
    assert wrong == []
    context.close()


NET = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(15)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 3)).pow(2).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_it_prints_within_a_page(browser: Any, reported: Callable[[str], str], tmp_path: Path) -> None:
    reported(NET)
    context = browser.new_context(viewport={"width": 720, "height": 1000})
    tab = context.new_page()
    tab.emulate_media(media="print", color_scheme="dark")
    tab.goto((tmp_path / "report.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720
    assert tab.locator("nav").is_hidden()
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    context.close()


@pytest.mark.slow
def test_the_model_and_the_distributions_are_tables(reported: Callable[[str], str]) -> None:
    page = reported(NET)
    model = page[page.index('id="model"') : page.index('id="distributions"')]
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th><td>(.*?)</td><td>(.*?)</td>', model)
    assert rows == [
        ("net", "Sequential", ""),
        ("* <span>×15</span>", "Sequential", ""),
        ("0 <span>×15</span>", "Linear", "weight 3×3, bias 3"),
        ("1 <span>×15</span>", "Tanh", ""),
    ]
    spread = page[page.index('id="distributions"') :]
    assert spread.count("<i data-bars=") == 2 * 3  # parameters and gradients, at three passes


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Callable[[list[Drawn]], Any]]:
    """A report with charts, in a browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})

    def show(charts: list[Drawn]) -> Any:
        path = tmp_path / "report.html"
        path.write_text(html(Report("charts", [], [], charts)), encoding="utf-8")
        tab = context.new_page()
        tab.goto(path.as_uri())
        return tab

    yield show
    context.close()


def of(name: str, at: list[int], values: list[float]) -> Drawn:
    return Drawn("w, by pass", [NamedCurve(name, np.array(at), np.array(values))])


@pytest.mark.slow
def test_the_numbers_beside_a_chart_are_round(shown: Callable[[list[Drawn]], Any]) -> None:
    ends = [(1, 1), (1, 10), (4, 20), (1, 70), (1, 1_000_000)]
    tab = shown([of("w", [first, last], [1.0, 2.0]) for first, last in ends])
    below = tab.evaluate("""[...document.querySelectorAll('.plot')].map(
        plot => [...plot.querySelectorAll('text[text-anchor=middle]')].map(text => text.textContent))""")
    assert below == [
        ["1"],
        [str(number) for number in range(1, 11)],
        ["4", "6", "8", "10", "12", "14", "16", "18", "20"],
        ["1", "10", "20", "30", "40", "50", "60", "70"],
        ["1", "200,000", "400,000", "600,000", "800,000", "1,000,000"],
    ]
    ends_inside = """[...document.querySelectorAll('.plot')].map(plot => [...plot.querySelectorAll('text')].every(
        text => text.getBoundingClientRect().right <= plot.getBoundingClientRect().right))"""
    assert tab.evaluate(ends_inside) == [True] * 5


@pytest.mark.slow
def test_scales_reach_the_largest_and_the_negative_numbers(shown: Callable[[list[Drawn]], Any]) -> None:
    tab = shown([of("w", [1, 2], [1e300, 1.7e308]), of("w", [1, 2, 3], [-1.0, 0.0, 1.0])])
    beside = tab.evaluate("""[...document.querySelectorAll('.plot')].map(
        plot => [...plot.querySelectorAll('text[text-anchor=end]')].map(text => text.textContent))""")
    assert "1e+300" in beside[0]
    assert {"-1", "0", "1"} <= set(beside[1])


@pytest.mark.slow
def test_names_are_filtered_and_curves_smoothed(shown: Callable[[list[Drawn]], Any]) -> None:
    places, values = np.arange(40), np.where(np.arange(40) % 2, 1.0, 3.0)
    chart = Drawn("w, by pass", [NamedCurve("net.0", places, values), NamedCurve("net.1", places, values + 5)])
    tab = shown([chart])
    assert tab.locator(".chart .smooth").count() == 2
    tab.fill("#filter", "NET.1")
    assert tab.locator(".chart .smooth").count() == 1
    assert tab.locator(".legend li:visible").all_inner_texts() == ["net.16"]
    path = tab.locator(".chart .smooth").get_attribute("d")
    tab.select_option("#mean", "20")
    assert tab.locator(".chart .smooth").get_attribute("d") != path
    assert tab.locator(".chart .heights").get_attribute("d") == path
    tab.select_option("#scale", "logarithmic")
    assert tab.locator(".chart .heights").get_attribute("d") != path


@pytest.mark.slow
def test_a_stretch_is_enlarged_in_all_charts_of_its_axis(shown: Callable[[list[Drawn]], Any]) -> None:
    curve = NamedCurve("w", np.arange(1, 101), np.arange(1.0, 101.0))
    tab = shown([Drawn("a, by pass", [curve]), Drawn("b, by pass", [curve]), Drawn("c, by step", [curve])])

    def last_numbers() -> list[str]:
        return [plot.locator("text[text-anchor=middle]").last.text_content() for plot in tab.locator(".plot").all()]

    box = tab.locator(".plot").first.bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60)
    assert tab.locator(".legend li span").all_inner_texts()[:2] == ["24", "24"]
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    tab.mouse.up()
    zoomed = last_numbers()
    assert zoomed[0] == zoomed[1] == "48"
    assert zoomed[2] == "100"
    tab.click("#whole")
    assert last_numbers() == ["100", "100", "100"]


def test_a_name_has_its_colour_in_each_report() -> None:
    def colours(*names: str) -> dict[str, str]:
        page = html(Report("", [], [], [Drawn("w, by pass", [NamedCurve(n, np.ones(2), np.ones(2)) for n in names])]))
        return {one["name"]: one["colour"] for one in curves_of(page, "w, by pass")["series"]}

    assert colours("head") == {"head": colours("stem", "head")["head"]}
    assert len(set(colours(*(f"layer {n}" for n in range(20))).values())) == 20
