"""Programs on a GPU compute the same, to the last bit, plain and recorded, and their values are recorded right.

These are skipped where there is no device, as in CI. They passed on one H200, with PyTorch 2.11.0, on 2026-11-26."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.values import stats_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
Tensors = list[Any]


def trained(net: Any, data: Any, target: Any, steps: int = 3) -> Tensors:
    net, data, target = net.cuda(), data.cuda(), target.cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(data).flatten(0, -2), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *net.parameters()]


def mlp() -> Tensors:
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    return trained(net, torch.randn(128, 64), torch.randint(10, (128,)))


def cnn() -> Tensors:
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(16 * 14 * 14, 10))
    return trained(net, torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))


def transformer() -> Tensors:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    net = torch.nn.Sequential(torch.nn.Embedding(100, 64), layer, torch.nn.Linear(64, 100))
    tokens = torch.randint(100, (8, 32))
    return trained(net, tokens, tokens.flatten())


def mixed_precision() -> Tensors:
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    data = torch.randn(128, 64, device="cuda")
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = net(data).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [loss.detach(), torch.tensor(scaler.get_scale()), *net.parameters()]


def side_stream() -> Tensors:
    stream, weight = torch.cuda.Stream(), torch.randn(512, 512, device="cuda", requires_grad=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            loss = (weight @ weight).tanh().sum()
            loss.backward()
    torch.cuda.current_stream().wait_stream(stream)
    return [loss.detach(), weight.grad]


def captured_graph() -> Tensors:
    weight, data = torch.randn(300, 300, device="cuda"), torch.randn(300, 300, device="cuda")
    out = torch.zeros(300, 300, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out.copy_(data @ weight)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_((data @ weight).relu())
    for _ in range(5):
        data.normal_()
        graph.replay()
    return [out, out + 1]


def pinned_copies() -> Tensors:
    found = []
    for _ in range(10):
        given = torch.randn(1000, 1000).pin_memory()
        there = given.to("cuda", non_blocking=True)
        back = torch.empty(1000, 1000).pin_memory()
        back.copy_(there * 2, non_blocking=True)
        torch.cuda.synchronize()
        found.append(back.clone())
    return found


def nearly_out_of_memory() -> Tensors:
    free, _ = torch.cuda.mem_get_info()
    taken = torch.ones((free - (96 << 20)) // 4, device="cuda")
    small = torch.randn(1000, 1000, device="cuda", requires_grad=True)
    (small * 2).sum().backward()
    found = [small.grad.clone(), taken[-5:].clone()]
    del taken
    torch.cuda.empty_cache()
    return found


PROGRAMS = [
    mlp, cnn, transformer, mixed_precision, side_stream, captured_graph, pinned_copies, nearly_out_of_memory,
]  # fmt: skip


def run(program: Callable[[], Tensors], recording: Any) -> list[bytes]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with recording:
            found = program()
        torch.cuda.synchronize()
    finally:
        torch.use_deterministic_algorithms(False)
    return [tensor.detach().cpu().numpy().tobytes() for tensor in found]


@pytest.mark.parametrize("grade", ["none", "stats", "full"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_computes_the_same_to_the_last_bit(program: Any, grade: str, tmp_path: Path) -> None:
    plain = run(program, nullcontext())
    recorded = run(program, gradviz.record(tmp_path / "run.gradviz", values=grade))
    assert recorded == plain
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(trace) > 1
        assert "stopped" not in trace.meta


@pytest.mark.parametrize("size", [50, 5000, 3_000_000, 40_000_000])
@pytest.mark.parametrize("kind", ["plain", "half", "with NaN", "tiny"])
def test_statistics_are_those_of_the_elements(kind: str, size: int, tmp_path: Path) -> None:
    made = torch.randn(size, device="cuda")
    if kind == "with NaN":
        made[::7], made[3] = float("nan"), float("inf")
    elif kind == "tiny":
        made *= 1e-30
    elif kind == "half":
        made = made.half()
    with gradviz.record(tmp_path / "run.gradviz"):
        out = made * 1
    expected = tuple(stats_of(out.float().cpu().numpy()))
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        rows = [trace.states.snapshot(row, row) for row in range(len(trace.states))]
    found = [tuple(row.told) for row in rows if row is not None and row.told is not None][-1:]
    assert len(found) == (size > 64)
    for numbers in found:
        assert numbers[4:] == expected[4:]
        scale = float(np.abs(expected[:4]).max())
        assert numbers[:4] == pytest.approx(expected[:4], rel=1e-5, abs=1e-5 * scale)
