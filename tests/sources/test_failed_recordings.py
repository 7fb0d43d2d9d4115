"""A recording that fails ends alone: the program goes on, one line says so, and the trace says up to where it is
complete. Another program that reads the file, or wants to record into it, does not stop the program either."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
from gradviz.events.handles import READERS
from gradviz.events.listener import NO_RULE, State
from gradviz.system.descriptors import identity, is_locked
from gradviz.tracefile import Recorder, file, open_trace
from tests.warm import python

Run = Callable[..., subprocess.CompletedProcess[str]]


def differentiate(times: int = 1) -> None:
    x = torch.ones(3, requires_grad=True)
    for _ in range(times):
        (x * x).sum().backward()


def lines_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if line]


def remove(folder: Path) -> None:
    """Remove a folder in which the writer may be making a file."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def test_the_users_exception_stays_the_users(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def record() -> None:
        with gradviz.record(folder / "x.gradviz"):
            differentiate()
            remove(folder)
            differentiate()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record()
    (line,) = lines_of(capfd.readouterr().err)
    assert line.startswith("gradviz: recording stopped (its file cannot be written: ")


def test_a_block_whose_recording_failed_ends_as_it_would(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with gradviz.record(folder / "x.gradviz"):
        remove(folder)
        differentiate()
    assert len(lines_of(capfd.readouterr().err)) == 1


def test_values_that_do_not_fit_in_memory_end_the_recording_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gradviz"
    with gradviz.record(path, values="full") as running:
        differentiate(3)
        running.recorder.flush()
        whole = running.recorder.count

        def keep(value: np.ndarray, whole: bool) -> bytes:
            raise MemoryError

        monkeypatch.setattr(READERS[np.ndarray], "keep", keep)
        differentiate(3)
    (line,) = lines_of(capfd.readouterr().err)
    assert line == (
        f"gradviz: recording stopped (out of memory): {path} is complete up to event {whole}, and the program goes on"
    )
    with open_trace(path) as trace:
        assert (trace.count, len(trace.passes)) == (whole, 3)
        assert trace.meta["stopped"] == f"out of memory; complete up to event {whole}"
        assert trace.meta["ended"] == "ok"


_ONE, _ZERO = np.ones(1), [0]
TELLING = {
    "op": lambda recorder, number: recorder.op(
        None, "exp", "", NO_RULE, 0, True, [1], [number], [_ONE], _ZERO, _ZERO, _ZERO
    ),
    "differentiated": lambda recorder, number: recorder.differentiated(
        None, "exp", "", NO_RULE, 0, [number], 3, _ONE, 0, 0, 0, 1, "Exp", [0, 0, 0], []
    ),
    "named": lambda recorder, number: recorder.named(number, "x", ""),
    "received": lambda recorder, number: recorder.received(number, "Exp", 0, [1], [_ONE]),
    "produced": lambda recorder, number: recorder.produced(number, 0, [0, 1], [_ONE]),
    "ran": lambda recorder, number: recorder.ran(number, "Exp", 0, 1, _ONE, [0, 1], [_ONE]),
    "leaf_ran": lambda recorder, number: recorder.leaf_ran(number, 1, 0, 1, State(1, _ONE)),
    "all_mutated": lambda recorder, number: recorder.all_mutated(
        None, "SGD", [State(1, _ONE), State(number, _ONE), State(2, _ONE)]
    ),
}


@pytest.mark.parametrize("tell", TELLING.values(), ids=TELLING)
@pytest.mark.parametrize("number", [2**32, 2**40])
def test_numbers_that_do_not_fit_end_the_recording_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, tell: Callable[[Recorder, int], None]
) -> None:
    path = tmp_path / "x.gradviz"
    recorder = Recorder(path)
    TELLING["op"](recorder, 2)
    recorder.flush()
    tell(recorder, number)
    recorder.close(ended="ok")
    (line,) = lines_of(capfd.readouterr().err)
    assert "more than 2**32 tensors or events" in line
    with open_trace(path) as trace:
        assert trace.count == 1


@pytest.mark.slow
def test_a_full_disk_ends_the_recording_alone(tmp_path: Path, gradviz: Run, gradviz_here: Run) -> None:
    """A limit of a file's size is to SQLite what a full disk is."""
    (tmp_path / "fills.py").write_text(
        textwrap.dedent("""
        import resource
        import gradviz.engine as torch
        x = torch.ones(3, requires_grad=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for n in range(5_000):
            (x * n).exp().sum().backward()
        print("all of it")
        raise SystemExit(3)
        """)
    )
    done = gradviz("trace", "fills.py")
    assert (done.returncode, done.stdout) == (3, "all of it\n")
    (line,) = (line for line in done.stderr.splitlines() if "stopped" in line)
    assert line.startswith("gradviz: recording stopped (its file cannot be written: ")
    with open_trace(tmp_path / "fills.gradviz") as trace:
        assert trace.meta["stopped"].endswith(f"complete up to event {trace.count}")
        assert trace.meta["ended"] == "exit 3"
        assert [event.index for event in trace] == list(range(trace.count))
    assert "stopped" in gradviz_here("info", "fills.gradviz").stdout
    assert "what came later" in gradviz_here("check", "fills.gradviz").stdout


@pytest.mark.slow
def test_a_reader_that_holds_the_file_does_not_stop_the_program(tmp_path: Path) -> None:
    path = tmp_path / "x.gradviz"
    with gradviz.record(path) as running:
        differentiate()
        running.recorder.flush()
        with sqlite3.connect(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            differentiate(2000)  # which is more than the writer may be behind; it would wait here for good
            reader.execute("COMMIT")
        reader.close()
    with open_trace(path) as trace:
        assert len(trace.passes) == 2001
        assert "stopped" not in trace.meta


def test_a_fault_of_ours_as_the_file_is_finished_stays_out_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("index 53 is out of bounds")

    monkeypatch.setattr("gradviz.tracefile.ring.Ring.kept", fail)
    with gradviz.record(tmp_path / "run.gradviz", last=3):
        differentiate()
    assert lines_of(capfd.readouterr().err)[0].startswith(
        "gradviz: recording stopped (a fault of gradviz's: IndexError('index 53 is out of bounds'))"
    )
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 1
        assert "IndexError" in trace.meta["stopped"]


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows a reader cannot share the lock")
def test_a_reader_that_is_slow_to_let_go_of_the_lock_refuses_no_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.gradviz"
    with gradviz.record(path):
        differentiate()
    waits = []
    with path.open("rb") as reader:
        assert not is_locked(reader.fileno(), shared=True)  # as while it looks whether the file is being recorded

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 10:
                reader.close()

        monkeypatch.setattr("gradviz.tracefile.file.time.sleep", wait)
        with gradviz.record(path):
            differentiate(2)
    assert len(waits) == 10
    with open_trace(path) as trace:
        assert len(trace.passes) == 2


def test_a_second_recording_to_the_same_name_is_refused(tmp_path: Path, gradviz_here: Run) -> None:
    path = tmp_path / "script.gradviz"
    (tmp_path / "script.py").write_text("print('ran')\n")
    with gradviz.record(path):
        differentiate()
        refused = gradviz_here("trace", "-o", "script.gradviz", "script.py")
        with pytest.raises(OSError, match="is being recorded by another run"), gradviz.record(path):
            pass
        differentiate()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "gradviz: script.gradviz is being recorded by another run: choose another name for the trace\n"
    )
    with open_trace(path) as trace:
        assert len(trace.passes) == 2
    assert gradviz_here("trace", "-o", "script.gradviz", "script.py").returncode == 0  # now it is free


@pytest.mark.slow
@pytest.mark.parametrize("command", ["trace", "check"])
def test_a_default_name_that_is_taken_gets_a_number(command: str, tmp_path: Path, gradviz_here: Run) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    with gradviz.record(tmp_path / "script.gradviz"), gradviz.record(tmp_path / "script.2.gradviz"):
        done = gradviz_here(command, "script.py")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ran")
    with open_trace(tmp_path / "script.3.gradviz") as trace:
        assert trace.meta["ended"] == "ok"
    assert gradviz_here(command, "script.py").returncode == 0
    assert not (tmp_path / "script.4.gradviz").exists()  # now the first is free


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no file that is open")
@pytest.mark.parametrize("is_there", [False, True], ids=["no file before", "an empty trace before"])
def test_of_two_runs_that_begin_at_one_moment_neither_takes_the_file_of_the_other(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, others = tmp_path / "run.gradviz", list[int]()
    if is_there:
        with gradviz.record(path):
            pass
    moment = "stays_locked" if is_there else "_lock_earlier"  # the other run is before this, or behind it
    function = getattr(file, moment)

    def interrupted(*arguments: object) -> object:
        results = [] if is_there else [function(*arguments)]
        if not others:
            others.append(-1)
            others[0] = file.locked_file(path)
        return results[0] if results else function(*arguments)

    monkeypatch.setattr(file, moment, interrupted)
    with pytest.raises(OSError, match="is being recorded by another run"):
        file.locked_file(path)
    assert identity(path) == identity(others[0])
    os.close(others[0])


@pytest.mark.skipif(sys.platform == "win32", reason="a profile is private on Windows, files have no modes")
def test_a_trace_is_for_its_owner_to_read(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        differentiate()
    assert (tmp_path / "run.gradviz").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_of_a_sweep_each_run_has_its_own_trace(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""\
        import pathlib, sys, time
        print(sys.argv[1])
        pathlib.Path(f"{sys.argv[1]}.begun").touch()
        while len(list(pathlib.Path().glob("*.begun"))) < 6:  # so that all of them record at once
            time.sleep(0.01)
        """)
    )
    runs = [
        subprocess.Popen(
            [python(), "-m", "gradviz", "trace", "job.py", str(number)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(6)
    ]  # fmt: skip
    ended = [run.communicate(timeout=300) for run in runs]
    assert [(run.returncode, out) for run, (out, _) in zip(runs, ended, strict=True)] == [
        (0, f"{number}\n") for number in range(6)
    ]
    traces = sorted(tmp_path.glob("*.gradviz"))
    assert len(traces) == 6
    for path in traces:
        with open_trace(path) as trace:
            assert trace.meta["ended"] == "ok"


def test_debug_does_not_overwrite_the_trace_of_trace(tmp_path: Path, gradviz_here: Run) -> None:
    (tmp_path / "script.py").write_text(
        "import gradviz.engine as torch\ntorch.ones(1, requires_grad=True).backward()\n"
    )
    assert gradviz_here("trace", "script.py").returncode == 0
    before = (tmp_path / "script.gradviz").read_bytes()
    assert gradviz_here("debug", "--commands", "continue", "script.py").returncode == 0
    assert (tmp_path / "script.gradviz").read_bytes() == before
    assert (tmp_path / "script.debug.gradviz").exists()


def test_a_fork_in_a_recorded_block_leaves_the_file_to_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.gradviz"
    with gradviz.record(path):
        differentiate()
        child = os.fork()
        if not child:
            differentiate(50)
            os._exit(0)
        os.waitpid(child, 0)
        differentiate(2)
    with open_trace(path) as trace:
        assert len(trace.passes) == 3


@pytest.mark.slow
def test_children_of_a_training_thread_do_not_wait_for_its_locks(tmp_path: Path, gradviz: Run) -> None:
    (tmp_path / "forks.py").write_text(
        textwrap.dedent("""
        import os, signal, threading, time
        import gradviz.engine as torch
        x = torch.ones(100_000, requires_grad=True)
        def train():
            while True:
                (x * x).sum().backward()
        threading.Thread(target=train, daemon=True).start()
        ended = 0
        for _ in range(40):
            time.sleep(0.003)
            pid = os.fork()
            if not pid:
                signal.alarm(10)  # a child that waits for good is killed
                y = torch.rand(3, requires_grad=True)
                (y * y).sum().backward()
                (x * 2).sum().backward()
                os._exit(0)
            ended += os.waitpid(pid, 0)[1] == 0
        print(ended, flush=True)
        os._exit(0)
        """)
    )
    assert gradviz("trace", "forks.py").stdout == "40\n"
