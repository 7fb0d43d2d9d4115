"""Layers and functions with `inplace=True`, and what else of `nn` was missing, as in PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz import engine

LAYERS: dict[str, Callable[[Any], Any]] = {
    "ReLU": lambda nn: nn.ReLU(inplace=True),
    "ReLU6": lambda nn: nn.ReLU6(inplace=True),
    "LeakyReLU": lambda nn: nn.LeakyReLU(0.2, inplace=True),
    "ELU": lambda nn: nn.ELU(inplace=True),
    "SELU": lambda nn: nn.SELU(inplace=True),
    "CELU": lambda nn: nn.CELU(inplace=True),
    "SiLU": lambda nn: nn.SiLU(inplace=True),
    "Mish": lambda nn: nn.Mish(inplace=True),
    "Hardtanh": lambda nn: nn.Hardtanh(inplace=True),
    "Hardsigmoid": lambda nn: nn.Hardsigmoid(inplace=True),
    "Hardswish": lambda nn: nn.Hardswish(inplace=True),
    "Threshold": lambda nn: nn.Threshold(0.1, 0.2, inplace=True),
    "Dropout": lambda nn: nn.Dropout(inplace=True),
    "Dropout1d": lambda nn: nn.Dropout1d(inplace=True),
}
TORCH = pytest.mark.torch


def rounded(tensor: Any) -> list[float]:
    return [round(value, 5) for value in tensor.flatten().tolist()]


def ran(torch: Any, layer: Callable[[Any], Any]) -> tuple[Any, ...]:
    """What a layer does to a tensor that a product made, and the gradient through a square of its result."""
    torch.manual_seed(0)
    nn = import_module(f"{torch.__name__}.nn")
    x = torch.tensor([[[-1.0, 2.0], [-0.3, 4.0], [0.05, -5.0]]], requires_grad=True)
    hidden = x * 1.0
    y = layer(nn)(hidden)
    result = rounded(y)
    (y * y).sum().backward()
    return y is hidden, hidden._version, type(y.grad_fn).__name__, result, rounded(x.grad)


def refused(torch: Any, layer: Callable[[Any], Any]) -> str:
    """The error where the tensor that is written over was saved."""
    torch.manual_seed(0)
    nn = import_module(f"{torch.__name__}.nn")
    x = torch.tensor([[[-1.0, 2.0], [-0.3, 4.0], [0.05, -5.0]]], requires_grad=True)
    with pytest.raises(RuntimeError) as caught:
        layer(nn)(x.exp()).sum().backward()
    return str(caught.value).split(":")[0]


@TORCH
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_place_is_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert ran(engine, LAYERS[name]) == ran(torch, LAYERS[name])


@TORCH
@pytest.mark.parametrize("name", LAYERS)
def test_writing_over_what_was_saved_is_refused_as_by_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert refused(engine, LAYERS[name]) == refused(torch, LAYERS[name])


def ops_of(torch: Any, path: Path) -> list[str]:
    nn = import_module(f"{torch.__name__}.nn")
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    with gradviz.record(path):
        nn.LeakyReLU(inplace=True)(x * 2.0).sum().backward()
    with gradviz.open(path) as trace:
        return [(node.op or "").rstrip("_") for node in gradviz.draw(trace).graph.nodes.values() if node.kind == "op"]


@TORCH
def test_a_layer_in_place_is_one_op(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert ops_of(engine, tmp_path / "ours.gradviz") == ops_of(torch, tmp_path / "theirs.gradviz")


@TORCH
@pytest.mark.parametrize("pool", ["max_pool1d", "max_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d"])
def test_the_indices_of_pooling_are_tensors_of_the_recording(pool: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    shown = []
    for module in (engine, torch):
        F = import_module(f"{module.__name__}.nn.functional")
        path = tmp_path / f"{module.__name__}.gradviz"
        with gradviz.record(path):
            x = module.tensor([[[[1.0, 3.0, 2.0, 0.0], [5.0, 4.0, 6.0, 7.0]]]], requires_grad=True)
            image = x[0] if pool.endswith("1d") else x
            pooled, where = getattr(F, pool)(image, 2, return_indices=True)
            picked = where * 1
            pooled.sum().backward()
        with gradviz.open(path) as trace:
            graph = gradviz.draw(trace, whole=True).graph
        (product,) = [node for node in graph.nodes.values() if node.kind == "op" and node.op == "mul"]
        (source,) = [graph.nodes[edge.source] for edge in graph.edges if edge.target == product.id]
        assert source.kind == "tensor"  # the pooling made it, it is no leaf
        assert source.name == ("where" if pool.endswith("2d") or module is torch else None)
        assert source.value is not None
        shown.append((source.shape, source.dtype, source.value.array.tolist(), picked.tolist()))
    assert shown[0] == shown[1]


@TORCH
@pytest.mark.parametrize("name", ["reset_running_stats", "reset_parameters"])
def test_batch_norm_begins_anew_as_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    states = []
    for module in (engine, torch):
        nn = import_module(f"{module.__name__}.nn")
        norm = nn.BatchNorm1d(2)
        with module.no_grad():
            norm.weight.fill_(3.0)
        norm(module.tensor([[1.0, 2.0], [3.0, 5.0]]))
        getattr(norm, name)()
        states.append({key: value.tolist() for key, value in norm.state_dict().items()})
    assert states[0] == states[1]
    assert states[0]["num_batches_tracked"] == 0


def test_batch_norm_without_running_stats_has_none_to_reset() -> None:
    norm = engine.nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    norm.reset_parameters()
    assert norm.running_mean is None


HOGWILD = """
import os
import {engine} as torch

net = torch.nn.Linear(2, 1)
assert net.share_memory() is net
child = os.fork()
if child == 0:
    with torch.no_grad():
        net.weight.fill_(5.0)
        net.bias.add_(7.0).mul_(0.0)
    os._exit(0)
os.waitpid(child, 0)
net(torch.ones(3, 2)).sum().backward()
print(net.weight.tolist(), net.bias.tolist(), net.weight.grad.tolist())
"""


@pytest.mark.slow
@TORCH
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_processes_that_are_forked_share_a_module() -> None:
    pytest.importorskip("torch")
    printed = [
        subprocess.run(
            [sys.executable, "-c", HOGWILD.format(engine=name)], capture_output=True, text=True, check=True
        ).stdout
        for name in ("gradviz.engine", "torch")
    ]
    assert printed[0] == printed[1] == "[[5.0, 5.0]] [0.0] [[3.0, 3.0]]\n"
