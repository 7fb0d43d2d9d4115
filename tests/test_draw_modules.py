"""`gradviz.draw` of a network at hand: its parameters are called as the variable that holds it, on either engine."""

from __future__ import annotations

import html
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz.tracefile import open_trace

NAMES = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


def network(torch: Any) -> Any:
    nn = import_module(f"{torch.__name__}.nn")
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def texts(picture: Any) -> set[str]:
    found = re.findall(r"<text[^>]*>([^<]*)", picture._repr_svg_())
    return {html.unescape(text).replace("\xa0", " ").strip() for text in found}


def test_a_loss_shows_the_parameters_by_their_names(torch: Any) -> None:
    net = network(torch)
    loss = (net(torch.ones(4, 2)) ** 2).mean()
    loss.backward(retain_graph=True)
    shown = texts(gradviz.draw(loss))
    assert shown >= {*NAMES, "loss"}
    assert any(text.startswith(".grad = ") for text in shown)


def test_inside_of_a_recording_too(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (net(torch.ones(4, 2)) ** 2).mean()
        loss.backward(retain_graph=True)
        shown = texts(gradviz.draw(loss))
    assert shown >= {*NAMES, "loss"}


def test_a_module_shows_its_layers_and_parameters(torch: Any) -> None:
    net = network(torch)
    for _ in range(2):
        shown = texts(gradviz.draw(net, torch.ones(4, 2)))
        assert shown >= {*NAMES, "net · Sequential", "0 · Linear", "1 · ReLU", "2 · Linear"}


def test_a_network_has_its_names_in_each_recording(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    for name in ("one", "two"):
        with gradviz.record(tmp_path / f"{name}.gradviz"):
            net(torch.ones(4, 2)).sum().backward()
        with open_trace(tmp_path / f"{name}.gradviz") as trace:
            assert set(trace.parameters.values()) == NAMES


def test_names_that_are_given_come_before_those_of_the_variable(torch: Any) -> None:
    net = network(torch)
    loss = net(torch.ones(4, 2)).sum()
    shown = texts(gradviz.draw(loss, params=dict(net.named_parameters())))
    assert "0.weight" in shown
    assert not NAMES & shown
