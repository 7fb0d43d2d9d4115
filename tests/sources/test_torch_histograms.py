"""How the elements of parameters and gradients are distributed at a few passes, with `--histograms` also those of
activations."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
import gradviz.engine as engine  # noqa: E402
from gradviz.cli.report import spreads  # noqa: E402
from gradviz.events.kinds import ElementsBinned, Kind  # noqa: E402
from gradviz.events.values import COUNTS, counts_of_rows  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.curves import Binned, binned  # noqa: E402
from gradviz.tracefile.database import TraceError  # noqa: E402
from gradviz.tracefile.redaction import redact  # noqa: E402
from gradviz.words import Stop, Words  # noqa: E402
from gradviz.words.sentences import sentence  # noqa: E402

pytestmark = pytest.mark.torch


def steps(net: Any, x: Any, count: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(count):
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recorded(
    path: Path, net: Any, x: Any, count: int = 1, histograms: bool = True, **settings: Any
) -> dict[tuple[str, str], Binned]:
    with gradviz.record(path, histograms=histograms, **settings):
        steps(net, x, count)
    return known(path)


def known(path: Path) -> dict[tuple[str, str], Binned]:
    with gradviz.open(path) as trace:
        return {(one.name, one.what): one for one in binned(Query(trace))}


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 8))


def test_counts_are_those_of_the_elements(net: Any, tmp_path: Path) -> None:
    x = torch.randn(50, 20)
    weight = net[0].weight.detach().numpy().copy()
    with torch.no_grad():
        hidden = net[1](net[0](x)).numpy()
    found = recorded(tmp_path / "run.gradviz", net, x)
    gradient = net[0].weight.grad.numpy()
    for key, elements in (
        (("net.1", "activation"), hidden),
        (("net.0.weight", "parameter"), weight),
        (("net.0.weight", "gradient"), gradient),
    ):
        own = found[key].histograms[1]
        assert (own.low, own.high) == pytest.approx((elements.min(), elements.max()), rel=1e-6)
        assert own.counts.tolist() == np.histogram(elements.astype(float), 32)[0].tolist()


def test_an_ordinary_recording_counts_the_leaves_at_passes_1_4_and_16(net: Any, tmp_path: Path) -> None:
    x = torch.randn(50, 20)
    weight = net[0].weight.detach().numpy().copy()
    found = recorded(tmp_path / "run.gradviz", net, x, 17, histograms=False)
    assert set(found) == {(f"net.{at}.weight", what) for at in (0, 2) for what in ("parameter", "gradient")}
    own = found["net.0.weight", "parameter"].histograms
    assert [*own] == [1, 4, 16]
    assert (own[1].low, own[1].high) == (weight.min(), weight.max())
    assert own[1].counts.tolist() == np.histogram(weight.astype(float), 32)[0].tolist()


def test_our_engine_counts_the_leaves_too(tmp_path: Path) -> None:
    engine.manual_seed(0)
    net = engine.nn.Linear(20, 30)
    weight = net.weight.detach().numpy().copy()
    x = engine.randn(50, 20)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(5):
            net.zero_grad()
            net(x).pow(2).mean().backward()
            gradient = net.weight.grad.numpy().copy()
            engine.autograd.grad(net(x).sum(), net.weight)
    found = known(tmp_path / "run.gradviz")
    assert set(found) == {("net.weight", "parameter"), ("net.weight", "gradient")}
    for what, elements in (("parameter", weight), ("gradient", gradient)):
        own = found["net.weight", what].histograms
        assert [*own] == [1, 7]  # each second pass is that of `grad`, which reaches no leaf
        assert own[7].counts.tolist() == np.histogram(elements.astype(float), 32)[0].tolist()


def test_an_ordinary_recording_counts_some_elements_of_a_large_leaf(tmp_path: Path) -> None:
    net = torch.nn.Linear(300, 400)
    found = recorded(tmp_path / "run.gradviz", net, torch.randn(6, 300), histograms=False)
    assert 1_000 < found["net.weight", "gradient"].histograms[1].counts.sum() <= 2_048


def test_the_leaves_of_two_networks_are_counted_at_passes_of_their_own(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(20, 30), torch.nn.Linear(20, 30)
    x = torch.randn(9, 20)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(4):
            first(x).sum().backward()
            second(x).sum().backward()
    found = known(tmp_path / "run.gradviz")
    assert [*found["first.weight", "gradient"].histograms] == [1, 7]
    assert [*found["second.weight", "gradient"].histograms] == [2, 8]


def test_new_leaves_at_each_pass_are_counted_at_few_of_them(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(20):
            torch.randn(100, requires_grad=True).pow(2).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len({number for number, _ in trace.leaf_histograms}) == 16


@pytest.mark.parametrize("values", ["none", "full"])
def test_leaves_are_counted_only_where_statistics_are_kept(net: Any, values: str, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), histograms=False, values=values) == {}


def test_a_ring_keeps_the_histograms_of_the_passes_that_it_keeps(net: Any, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), 17, histograms=False, last=3)
    assert [*found["net.0.weight", "gradient"].histograms] == [16]


def test_a_trace_from_before_there_were_histograms_of_leaves_is_read(net: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), histograms=False)
    with closing(sqlite3.connect(tmp_path / "run.gradviz")) as file:
        file.execute("DROP TABLE histograms")
    assert known(tmp_path / "run.gradviz") == {}


def test_a_histogram_with_missing_bins_is_refused(net: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), histograms=False)
    with closing(sqlite3.connect(tmp_path / "run.gradviz")) as file:
        file.execute("UPDATE histograms SET counts = x'0000'")
        file.commit()
    with pytest.raises(TraceError, match="damaged"):
        known(tmp_path / "run.gradviz")


@pytest.mark.filterwarnings("error")
def test_rows_are_counted_as_each_by_itself() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 500))
    rows[1, ::7], rows[1, 3], rows[1, 4] = np.nan, np.inf, -np.inf
    rows[2], rows[3] = 1.0, np.nan
    rows[4, :2] = 1.5e308, -1.5e308  # further apart than a float64 can say
    found = counts_of_rows(rows)
    assert [histogram is None for histogram in found] == [False, False, True, True, True, False]
    for row, histogram in zip(rows, found, strict=True):
        if histogram is not None:
            low, high, counts = histogram
            finite = row[np.isfinite(row)]
            assert (low, high) == (finite.min(), finite.max())
            assert np.frombuffer(counts, COUNTS).tolist() == np.histogram(finite, 32)[0].tolist()


def test_rows_of_equal_elements_have_no_bins() -> None:
    assert counts_of_rows(np.ones((2, 100))) == [None, None]
    assert [histogram is None for histogram in counts_of_rows(np.eye(2, 100) * [[0], [1]])] == [True, False]


def test_few_passes_are_looked_at_and_few_elements_of_each_tensor(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU())
    found = recorded(tmp_path / "run.gradviz", net, torch.randn(60, 300), 9)
    own = found["net.0.weight", "parameter"].histograms
    assert [*own] == [1, 2, 4, 8]
    assert 10_000 < own[1].counts.sum() <= 16_384
    assert [*found["net.1", "activation"].histograms] == [1, 2, 4, 8]


@pytest.mark.slow
def test_the_report_does_not_say_that_the_ends_are_those_of_a_large_tensor(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    net = torch.nn.Linear(200, 200)  # of its weight every third element is counted
    with torch.no_grad():
        net.weight[0, 1] = 1000.0
    found = recorded(tmp_path / "run.gradviz", net, torch.ones(2, 200))
    assert found["net.weight", "parameter"].histograms[1].high < 1.0
    assert gradviz_here("report", "run.gradviz", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text().partition('<section id="distributions">')[2]
    assert "from the least element that was counted to the largest" in page
    assert "it may have others outside" in page


def test_a_module_that_is_called_often_before_a_pass_counts_once(net: Any, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz", histograms=True):
        for _ in range(5):
            net(torch.randn(4, 20))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        events = [event for event in trace if isinstance(event, ElementsBinned)]
    assert [event.module for event in events] == ["net.0", "net.1", "net.2"]


def test_an_activation_is_that_of_the_pass_and_not_of_an_evaluation_before_it(net: Any, tmp_path: Path) -> None:
    x = torch.randn(50, 20)
    with gradviz.record(tmp_path / "run.gradviz", histograms=True):
        net(x).sum().backward()
        with torch.no_grad():
            net(100 * x)
        net(x).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        found = {(one.name, one.what): one.histograms for one in binned(Query(trace))}
    first, second = (found["net.0", "activation"][number] for number in (1, 2))
    assert (second.low, second.high) == (first.low, first.high)


def test_a_frozen_part_that_runs_without_grad_has_its_activation(tmp_path: Path) -> None:
    frozen, head = torch.nn.Linear(20, 30), torch.nn.Linear(30, 1)
    with gradviz.record(tmp_path / "run.gradviz", histograms=True):
        with torch.no_grad():
            hidden = frozen(torch.randn(9, 20))
        head(hidden).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert ("frozen", "activation") in {(one.name, one.what) for one in binned(Query(trace))}


@pytest.mark.parametrize(("reentrant", "passes"), [(True, [1]), (False, [1, 2])])
def test_what_a_checkpoint_computes_again_is_not_of_the_next_pass(
    net: Any, reentrant: bool, passes: list[int], tmp_path: Path
) -> None:
    x = torch.randn(50, 20, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz", histograms=True):
        for _ in range(3):
            torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        found = {(one.name, one.what): one.histograms for one in binned(Query(trace))}
    assert [*found["net.0", "activation"]] == passes


def test_what_has_no_range_is_left_out(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(torch.nan)
        net[0].bias.fill_(1.0)
    found = recorded(tmp_path / "run.gradviz", net, torch.ones(2, 3))
    assert ("net.1", "activation") not in found
    assert ("net.0.bias", "parameter") not in found


class Huge(torch.nn.Module):
    """Returns numbers that lie further apart than a float64 can say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.5e308, -1.5e308], dtype=torch.float64)


@pytest.mark.filterwarnings("error")
def test_a_range_that_overflows_does_not_end_the_recording(tmp_path: Path) -> None:
    lines: list[str] = []
    with gradviz.record(tmp_path / "run.gradviz", histograms=True, say=lines.append):
        Huge()(torch.ones(2, 2, dtype=torch.float64))
        torch.nn.Linear(20, 3)(torch.ones(2, 20)).sum().backward()
    assert lines == []
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        found = binned(Query(trace))[0]
    assert (found.name, found.what) == ("Linear", "activation")


class Freeing(torch.nn.Module):
    """Returns a tensor whose memory is freed at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(100)
        y.untyped_storage().resize_(0)
        return y


def test_memory_that_was_freed_does_not_end_the_recording(tmp_path: Path) -> None:
    lines: list[str] = []
    with gradviz.record(tmp_path / "run.gradviz", histograms=True, say=lines.append):
        Freeing()(torch.ones(2))
        torch.nn.Linear(20, 3)(torch.ones(2, 20)).sum().backward()
    assert lines == []
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert [one.what for one in binned(Query(trace))][:2] == ["activation", "parameter"]


def test_all_else_is_as_without(net: Any, tmp_path: Path) -> None:
    kinds = []
    for histograms in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Linear(20, 3)
        with gradviz.record(tmp_path / "run.gradviz", histograms=histograms):
            steps(net, torch.randn(5, 20), 3)
        with gradviz.open(tmp_path / "run.gradviz") as trace:
            kinds.append(trace.kinds)
    assert Kind.BINNED not in kinds[0]
    assert kinds[1][kinds[1] != Kind.BINNED].tolist() == kinds[0].tolist()


def test_a_redacted_copy_has_no_ranges(net: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        redact(trace, tmp_path / "copy.gradviz")
    with gradviz.open(tmp_path / "copy.gradviz") as copy:
        lows = [event.low for event in copy if isinstance(event, ElementsBinned)]
        assert len(lows) == 11
        assert np.isnan(lows).all()
        assert binned(Query(copy)) == []


def test_a_redacted_copy_has_no_histograms_of_leaves(net: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), histograms=False)
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert trace.leaf_histograms
        redact(trace, tmp_path / "copy.gradviz")
    assert known(tmp_path / "copy.gradviz") == {}


def test_a_sentence_says_what_was_counted(net: Any, tmp_path: Path) -> None:
    recorded(tmp_path / "run.gradviz", net, torch.randn(50, 20))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        found = next(event for event in trace if isinstance(event, ElementsBinned))
        told = sentence(Stop(Words(trace), found.index))
    assert "1,500 elements of the activation of net.0 in 32 bins from " in told


def test_of_many_layers_some_at_all_depths_are_shown(tmp_path: Path) -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(10, 10, bias=False) for _ in range(61)])
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 10), histograms=False)
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        shown, _ = spreads(Query(trace))
    assert [one.name for one in shown if one.what == "parameter"] == [f"net.{at}.weight" for at in range(0, 61, 4)]


@pytest.mark.slow
def test_a_histogram_is_in_the_column_of_its_pass(
    net: Any, tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with torch.no_grad():
        net[2].weight.fill_(1.0)  # it has no range at pass 1
    recorded(tmp_path / "run.gradviz", net, torch.randn(5, 20), 4, histograms=False)
    assert gradviz_here("report", "run.gradviz", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text().partition('<section id="distributions">')[2]
    names = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', page)
    assert names == [(f"net.{at}.weight", what) for what in ("parameter", "gradient") for at in (0, 2)]
    row = page.partition('<th scope="row">net.2.weight</th><td>parameter</td>')[2].partition("</tr>")[0]
    assert row.startswith('<td></td><td class="spread"><b>4</b>')


@pytest.mark.slow
def test_the_report_shows_them(tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nnet = torch.nn.Linear(20, 30)\n"
        "for _ in range(3):\n    net(torch.randn(9, 20)).pow(2).mean().backward()\n"
    )
    assert gradviz_here("trace", "--histograms", "program.py").returncode == 0
    assert gradviz_here("report", "program.gradviz", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text().partition('<section id="distributions">')[2]
    row = page.partition('<tr><th scope="row">net</th><td>activation</td>')[2].partition("</tr>")[0]
    assert row.count("<i data-bars=") == 2
    assert "<b>1</b>" in row
    assert "<b>2</b>" in row
