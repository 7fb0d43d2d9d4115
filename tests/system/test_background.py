"""Threads of gradviz's own: they fail in one line, and what they do is done without them where none can start."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

import gradviz
import gradviz.engine as torch
from gradviz import background
from gradviz.background import Background
from gradviz.tracefile import recorder


def test_a_thread_that_fails_says_so_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    thread = Background(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    thread.start()
    thread.join()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "ZeroDivisionError" in said
    assert not thread.is_running


def test_before_a_fork_a_thread_is_waited_for_that_ends_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine. Python 3.12 warns of a fork beside another thread, which the program alone would not see."""
    looks = []

    def is_there(_: int) -> bool:
        looks.append(1)
        return len(looks) < 20

    clock = count()
    thread = Background(lambda: None, lambda: None)
    thread.start()
    monkeypatch.setattr(background, "thread_exists", is_there)
    monkeypatch.setattr(background.time, "monotonic", lambda: next(clock) / 10)  # each look takes a tenth of a second
    thread.pause()
    assert len(looks) == 20
    thread.join()


@pytest.mark.slow
def test_without_a_thread_the_recorder_writes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(background._thread, "start_new_thread", no_thread)
    monkeypatch.setattr(recorder, "FEW", 10)
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        for _ in range(60):
            x = torch.ones(1000, 1000, requires_grad=True)
            (x * x).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 60
        assert trace.meta["ended"] == "ok"
