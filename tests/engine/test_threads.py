"""Threads that differentiate at once: modes are each thread's own, and no gradient is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import gradviz.engine as torch
from gradviz.engine.core.tensor import TensorRare
from gradviz.sources.record import record
from gradviz.tracefile import open_trace
from gradviz.tracefile.sites import Sites

THREADS = 4


@pytest.fixture(autouse=True)
def _hasty_switches() -> Iterator[None]:
    """Threads take turns far more often than they would, so that a race is run often enough to be lost."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], None]) -> None:
    """Run `work` in several threads that start at the same time; raises what one of them raised."""
    gate = threading.Barrier(THREADS)
    raised: list[BaseException] = []

    def run(k: int) -> None:
        try:
            gate.wait()
            work(k)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("size", [1, 100_000])  # NumPy lets other threads run within a large operation
def test_no_gradient_of_a_shared_leaf_is_lost(size: int) -> None:
    leaf = torch.zeros(size, requires_grad=True)
    times = 200 if size == 1 else 40

    def work(k: int) -> None:
        for _ in range(times):
            (leaf * (k + 1)).sum().backward()

    together(work)
    assert np.all(leaf.grad.numpy() == times * sum(range(1, THREADS + 1)))


def test_one_graph_is_differentiated_by_several_threads_at_once() -> None:
    x = torch.ones(50, requires_grad=True)
    y = (torch.sin(x) * x).sum()
    expected = np.cos(1) + np.sin(1)

    def work(k: int) -> None:
        for _ in range(50):
            (g,) = torch.autograd.grad(y, x, retain_graph=True)
            np.testing.assert_allclose(g.numpy(), expected, rtol=1e-6)

    together(work)
    assert x.grad is None


def test_modes_are_each_threads_own() -> None:
    x = torch.ones(2, requires_grad=True)

    def work(k: int) -> None:
        for _ in range(100):
            with torch.set_grad_enabled(k % 2 == 0):
                assert (x * 2).requires_grad is (k % 2 == 0)
            with torch.inference_mode(k % 2 == 1):
                assert (x * 2).requires_grad is (k % 2 == 0)

    together(work)


def test_each_thread_makes_and_differentiates_its_own_graphs() -> None:
    results: dict[int, set[float]] = {}

    def work(k: int) -> None:
        for _ in range(50):
            x = torch.full((3,), float(k), requires_grad=True)
            (g,) = torch.autograd.grad((x**2 * torch.exp(x * 0)).sum(), x, create_graph=True)
            g.sum().backward()
            results.setdefault(k, set()).add(x.grad.tolist()[0])

    together(work)
    assert results == {k: {2.0} for k in range(THREADS)}


def test_hooks_run_in_the_thread_that_differentiates() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: dict[int, set[int]] = {k: set() for k in range(THREADS)}

    def work(k: int) -> None:
        for _ in range(20):
            y = x * k
            y.register_hook(lambda g: seen[k].add(threading.get_ident()))
            y.sum().backward()
        seen[k].add(threading.get_ident())

    together(work)
    assert [len(threads) for threads in seen.values()] == [1] * THREADS


def test_no_gradient_is_lost_where_two_threads_differentiate_a_leaf_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = threading.Barrier(THREADS)

    def slowly_made() -> TensorRare:
        with suppress(threading.BrokenBarrierError):
            at_once.wait(timeout=0.2)
        return TensorRare()

    leaf = torch.zeros(3, requires_grad=True)
    monkeypatch.setattr("gradviz.engine.core.tensor.TensorRare", slowly_made)
    together(lambda k: (leaf * 2).sum().backward())
    assert leaf.grad.tolist() == [2 * THREADS] * 3


def test_gradients_are_recorded_whole_from_several_threads(tmp_path: Path) -> None:
    leaf = torch.zeros(3, requires_grad=True)

    def work(k: int) -> None:
        for _ in range(20):
            (leaf * 2).sum().backward()

    with record(tmp_path / "run.gradviz"):
        together(work)
    assert leaf.grad.tolist() == [2 * 20 * THREADS] * 3
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 20 * THREADS
        assert all(run.last is not None for run in trace.passes), "a pass was not told to its end"
        assert len({run.thread for run in trace.passes}) == THREADS


def test_places_that_several_threads_come_by_first_get_numbers_of_their_own() -> None:
    sites = Sites()
    start = threading.Barrier(8)

    def visit(thread: int) -> None:
        lines = "\n".join("number(sys._getframe())" for _ in range(300))
        code = compile(lines, f"<thread {thread}>", "exec")
        start.wait()
        exec(code, {"number": sites.number, "sys": sys})

    threads = [threading.Thread(target=visit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sites.take_new()
    assert len(found) >= 8 * 300
    assert [site.number for site in found] == list(range(1, len(found) + 1))
    assert all(site.parent < site.number for site in found)
