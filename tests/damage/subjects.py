"""The sound traces that are damaged: small runs that together hold every kind of event.

Each is recorded with a chunk for every few ops, whatever the machine's speed, so that a mutation can be made again."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import gradviz.engine as torch
from gradviz.sources.record import record
from gradviz.tracefile import Recorder


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        (x,) = ctx.saved_tensors
        return given * 3 * x * x


def lesson(chunk: Callable[[], None]) -> None:
    """What a learner tries: leaves, views, hooks, kept gradients, writing in place, forward mode, a NaN, an error."""
    x = torch.tensor([[5.0, 2.0], [1.0, -3.0]], requires_grad=True)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = _Cube.apply(x) @ w
    y.retain_grad()
    y.register_hook(lambda given: given * 2)
    chunk()
    z = (y[:1] * w.sum()).sum()
    z.backward(retain_graph=True)
    z.backward()
    chunk()
    b = x.detach().clone().requires_grad_().requires_grad_(False)
    b.mul_(2.0)
    b[0] = 7.0
    x.grad = None
    (x.view(4) * b.view(4)).sum().backward()
    (given,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    given.sum().backward()
    chunk()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        torch.autograd.forward_ad.unpack_dual(dual * w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.log(x - x.max() - 1).sum().backward()
        _ = y.grad_fn, (y * 2).grad
    chunk()
    with suppress(RuntimeError):
        z.backward()


def training(chunk: Callable[[], None]) -> None:
    """Four steps of a network with an optimizer and a scheduler, whose gradients are clipped."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data, target = torch.randn(16, 12), torch.randn(16, 1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(data), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        chunk()


def loop(chunk: Callable[[], None]) -> None:
    """A cell that is used again and again, over twelve passes."""
    cell = torch.nn.RNNCell(3, 3)
    x = torch.ones(1, 3)
    for number in range(12):
        state = torch.zeros(1, 3)
        for _ in range(3):
            state = cell(x, state)
        state.sum().backward()
        if number % 4 == 3:
            chunk()


def _unended(path: Path) -> None:
    """Make of a trace what is left of a run that was killed: its last pass has not ended."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '' WHERE key = 'ended'")
        connection.execute("UPDATE passes SET last = NULL, nodes = NULL, digest = NULL WHERE number > 1")
    connection.close()


def _mid_commit(path: Path) -> None:
    """Make of a trace what a process leaves that is killed while it commits: pages half written and a journal."""
    kept = path.with_suffix(".kept")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript("PRAGMA cache_size = 1; PRAGMA journal_mode = TRUNCATE; BEGIN;")
    writer.execute("UPDATE meta SET value = 'half done'")
    writer.execute("UPDATE payloads SET data = zeroblob(100000)")
    shutil.copy(path, kept)
    shutil.copy(f"{path}-journal", f"{kept}-journal")
    writer.execute("ROLLBACK")
    writer.close()
    kept.replace(path)
    Path(f"{kept}-journal").replace(f"{path}-journal")


_NOTHING: Callable[[Path], None] = lambda path: None
SUBJECTS: dict[str, tuple[Callable[[Callable[[], None]], None], dict[str, Any], Callable[[Path], None]]] = {
    "lesson": (lesson, {"values": "full", "check_functions": True}, _NOTHING),
    "training": (training, {}, _NOTHING),
    "bare": (training, {"values": "none"}, _NOTHING),
    "ring": (loop, {"last": 4}, _NOTHING),
    "chosen": (loop, {"passes": {1, 6}}, _NOTHING),
    "killed": (loop, {}, _unended),
    "half": (lesson, {}, _mid_commit),
}


@contextmanager
def _no_time_limit() -> Iterator[None]:
    """Nothing is written but when it is asked for."""
    with mock.patch("gradviz.tracefile.writer.INTERVAL", 3600):
        yield


def make(name: str, path: Path) -> None:
    """Record a subject."""
    program, settings, after = SUBJECTS[name]
    recorders: list[Recorder] = []

    def through(recorder: Recorder) -> Recorder:
        recorders.append(recorder)
        return recorder

    with _no_time_limit(), record(path, through=through, with_torch=False, **settings):
        program(lambda: recorders[0].writer.flush())
    after(path)


def make_all(folder: Path) -> dict[str, Path]:
    """Record all subjects into a folder; where each is."""
    found = {name: folder / f"{name}.gradviz" for name in SUBJECTS}
    for name, path in found.items():
        make(name, path)
    return found


if __name__ == "__main__":
    for made in make_all(Path(sys.argv[1])).values():
        print(made)
