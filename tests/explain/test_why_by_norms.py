"""`why` on an ordinary recording: of a tensor whose elements were not kept, the strongest way by norms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.explain.by_norms import NormReason, Stage
from gradviz.explain.origin import NoAnswer

Command = Callable[..., CompletedProcess[str]]


def reason_of(path: Path, tensor: str) -> NormReason:
    found = package.why(path, tensor)
    assert isinstance(found, NormReason)
    return found


def stages_of(path: Path, tensor: str) -> dict[str, Stage]:
    return {stage.label: stage for stage in reason_of(path, tensor).stages}


def test_the_norms_are_those_of_the_gradients_and_the_gains_their_quotients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with package.record(tmp_path / "run.gradviz"):
        w = torch.randn(20, 20, requires_grad=True)
        a = w * 3
        b = torch.tanh(a)
        loss = (b * 0.5).pow(2).mean()
        for kept in (a, b, loss):
            kept.retain_grad()
        loss.backward()
    found = reason_of(tmp_path / "run.gradviz", "w")
    stages = {stage.label: stage for stage in found.stages}
    assert found.norm == pytest.approx(w.grad.norm().item(), rel=1e-4)
    assert list(stages) == [
        "backward()",
        "(b * 0.5).pow(2).mean()",
        "(b * 0.5).pow(2)",
        "b * 0.5",
        "torch.tanh(a)",
        "w * 3",
    ]
    for label, of in (("b * 0.5", b), ("torch.tanh(a)", a), ("w * 3", w)):
        assert stages[label].norm == pytest.approx(of.grad.norm().item(), rel=1e-4)
    assert stages["w * 3"].gain == pytest.approx(3.0, rel=1e-4)
    assert not any(stage.meets for stage in found.stages)


def test_where_gradients_meet_the_largest_is_followed(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.ones(100, requires_grad=True)
        h = w * 1
        (h * 5 + torch.sin(h)).sum().backward()
    stages = stages_of(tmp_path / "run.gradviz", "w")
    assert stages["h * 5"].meets == 1
    assert "torch.sin(h)" not in stages


def test_a_network_is_told_by_its_modules(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        model = torch.nn.Sequential(*(torch.nn.Linear(10, 10) for _ in range(40)))
        model(torch.ones(2, 10)).sum().backward()
    stages = reason_of(tmp_path / "run.gradviz", "model.3.weight").stages
    assert [stage.label for stage in stages][-3:] == ["model.5", "model.4", "model.3"]


def test_it_says_where_nan_begins(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import gradviz.engine as torch\n"
        "w = torch.zeros(100, requires_grad=True)\n"
        "h = w * 2\n"
        "r = torch.sqrt(h)\n"
        "loss = (r * h).sum()\n"
        "loss.backward()\n"
    )
    gradviz_here("trace", "run.py")
    told = gradviz_here("why", "run.gradviz", "w").stdout
    assert "gradient of w = (100) NaN" in told
    assert "begins  what came to torch.sqrt(h) is finite, and what it gave is not" in told


@pytest.mark.parametrize(
    ("factor", "says"),
    [(12, "falls   at torch.sigmoid(w * 12) to"), (30, "stops   what torch.sigmoid(w * 30) gave is zero")],
)
def test_it_says_where_a_gradient_vanishes(gradviz_here: Command, tmp_path: Path, factor: int, says: str) -> None:
    (tmp_path / "run.py").write_text(
        "import gradviz.engine as torch\n"
        "w = torch.ones(100, requires_grad=True)\n"
        f"h = torch.sigmoid(w * {factor})\n"
        "h.sum().backward()\n"
    )
    gradviz_here("trace", "run.py")
    assert says in gradviz_here("why", "run.gradviz", "w").stdout


def test_json_has_the_stages_as_data(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import gradviz.engine as torch\nw = torch.ones(100, requires_grad=True)\n(w * 3).sum().backward()\n"
    )
    gradviz_here("trace", "run.py")
    told = json.loads(gradviz_here("why", "run.gradviz", "w", "--format", "json").stdout)
    assert told["norm"] == pytest.approx(30.0)
    assert [(stage["label"], stage["line"], stage["norm"]) for stage in told["stages"]][-1] == ("w * 3", 3, 30.0)


def test_without_any_values_there_is_no_answer(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz", values="none"):
        w = torch.ones(100, requires_grad=True)
        (w * 3).sum().backward()
    with pytest.raises(NoAnswer, match="record with gradviz trace --values full"):
        package.why(tmp_path / "run.gradviz", "w")


def test_nan_from_outside_begins_at_no_operation(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.ones(100, requires_grad=True)
        (w * 3).backward(torch.full((100,), float("nan")))
    assert not any(stage.begins for stage in reason_of(tmp_path / "run.gradviz", "w").stages)
