"""`report`: findings, curves and the picture on one page, linked, and harmless whatever the trace says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.pictures.chart import Series, chart
from gradviz.query import Query
from gradviz.query.curves import gradient_norms, update_ratios
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


@pytest.fixture
def reported(gradviz_here: Command, tmp_path: Path) -> Callable[[str], str]:
    def run(text: str) -> str:
        (tmp_path / "<i>stale.py").write_text(text)
        gradviz_here("trace", "--engine", "numpy", "-o", "stale.gradviz", "<i>stale.py")
        done = gradviz_here("report", "stale.gradviz", "-o", "report.html")
        assert (done.returncode, done.stderr) == (0, "")
        return (tmp_path / "report.html").read_text()

    return run


def test_findings_curves_and_picture_are_linked(reported: Callable[[str], str]) -> None:
    page = reported(STALE)
    assert 'id="finding-1"' in page
    assert "stale-gradient" in page
    assert "optimizer.zero_grad()  # before backward()" in page
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {"findings", "curves", "picture", "not-checked", "finding-1"} <= targets
    assert targets <= set(re.findall(r'\bid="([^"]+)"', page))
    assert page.count('class="chart"') == 2


def test_nothing_of_the_trace_is_markup(reported: Callable[[str], str]) -> None:
    page = reported(STALE)
    assert "<i>stale" not in page
    assert "# <b>" not in page
    assert "&lt;b&gt;&amp;amp;" in page
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)


def test_a_sound_run_has_no_findings_and_says_what_was_checked(reported: Callable[[str], str]) -> None:
    page = reported(STALE.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()"))
    assert "No findings" in page
    assert re.search(r"\d+ rules were checked", page)


def test_a_trace_without_values_or_passes_has_a_report(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "stale.py").write_text(STALE)
    gradviz_here("trace", "--engine", "numpy", "--values", "none", "stale.py")
    assert gradviz_here("report", "stale.gradviz").returncode == 0
    assert (tmp_path / "stale.report.html").read_text().count("The trace has no values for it") == 2
    done = gradviz_here("report", "stale.gradviz", "-o", "report.pdf")
    assert (done.returncode, done.stderr) == (2, "gradviz: a report is an .html file, not report.pdf\n")


def test_norms_and_ratios_are_those_of_the_run(tmp_path: Path) -> None:
    norms, ratios = [], []
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor([3.0, 4.0], requires_grad=True)
        v = torch.ones(20, 20, requires_grad=True)
        optimizer = torch.optim.SGD([w, v], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ((w**3).sum() + (v**2).sum()).backward()
            norms.append([float(p.grad.norm()) for p in (w, v)])
            before = [p.detach().clone() for p in (w, v)]
            optimizer.step()
            ratios.append(
                [float((p.detach() - q).norm() / q.norm()) for p, q in zip((w, v), before, strict=True)]
            )
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        told = gradient_norms(query), update_ratios(query)
    for curves, expected in zip(told, (norms, ratios), strict=True):
        by_name = sorted(curves, key=lambda curve: curve.leaf)
        assert [curve.at.tolist() for curve in curves] == [[1, 2, 3]] * 2
        assert np.allclose([curve.values for curve in by_name], np.array(expected).T, rtol=1e-5)


def test_ratios_are_left_out_where_the_change_is_not_known(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        v = torch.ones(20, 20, requires_grad=True)
        optimizer = torch.optim.Adam([v], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (v**2).sum().backward()
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert update_ratios(Query(trace)) == []


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


def test_a_curve_of_the_largest_numbers_is_drawn() -> None:
    series = Series("w", np.array([1, 2]), np.array([1e300, 1.7e308]))
    assert "1e+300" in chart([series], ["#000000"], [])
