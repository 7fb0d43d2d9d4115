"""`gradviz.draw` of a network at hand: its parameters are called as the variable that holds it, on either engine."""

from __future__ import annotations

import html
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz.notebook import BY_PARAMETERS, NOT_RECORDED
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


MODULES = {"net · Sequential", "0 · Linear", "1 · ReLU", "2 · Linear"}


@pytest.mark.slow
def test_a_loss_that_is_being_recorded_shows_its_modules(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (net(torch.ones(4, 2)) ** 2).mean()
        fresh = gradviz.draw(loss, rolled=True)
        loss.backward()
        run = gradviz.draw(loss, rolled=True)
    assert texts(fresh) >= {*MODULES, "loss", ".grad = None"}
    assert fresh.graph.run() == "what leads to loss"
    assert texts(run) >= {*MODULES, "loss"}
    assert run.graph.run() == "pass 1 of 1"
    assert "flowed" in run.svg
    assert "flowed" not in fresh.svg


@pytest.mark.slow
def test_a_loss_that_was_recorded_shows_its_modules(torch: Any, tmp_path: Path) -> None:
    net, inputs = network(torch), torch.ones(4, 2)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(3):
            loss = (net(inputs) ** 2).mean()
            loss.backward()
    picture = gradviz.draw(loss, rolled=True)
    assert picture.graph.run() == "pass 3 of 3"
    assert texts(picture) >= {*MODULES, "loss", "inputs"}
    assert "pass 3" in picture.html()


def test_a_trace_that_was_written_over_is_not_believed(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = net(torch.ones(4, 2)).sum()
    with gradviz.record(tmp_path / "run.gradviz"):
        torch.ones(2).sum()
    assert gradviz.draw(loss).graph.notes == [BY_PARAMETERS]


def test_a_loss_of_which_a_part_was_recorded_is_drawn_as_it_is_at_hand(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    out = net(torch.ones(4, 2))
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (out**2).mean()
        picture = gradviz.draw(loss)
    assert texts(picture) >= {*NAMES, "loss"}
    assert picture.graph.notes == [BY_PARAMETERS]


@pytest.mark.slow
def test_a_loss_without_a_recording_says_how_its_modules_are_known(torch: Any) -> None:
    net = network(torch)
    loss = net(torch.ones(4, 2)).sum()
    assert texts(gradviz.draw(loss)) >= {"what leads to loss", BY_PARAMETERS}
    decay = (net[0].weight ** 2).sum()
    assert texts(gradviz.draw(decay)) >= {"what leads to decay", NOT_RECORDED}
    x = torch.ones(2, requires_grad=True)
    assert NOT_RECORDED not in texts(gradviz.draw(x * 2))  # it has no modules


@pytest.mark.slow
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


def test_where_the_recording_cannot_be_written_a_loss_is_drawn_as_it_is_at_hand(torch: Any, tmp_path: Path) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz") as recording:
        loss = net(torch.ones(4, 2)).sum()
        recording.recorder.writer.give_up(OSError("the disk is full"))
        picture = gradviz.draw(loss)
    assert texts(picture) >= {*NAMES, "loss", BY_PARAMETERS}
