"""`gradviz trace --printed` keeps what a program prints; the program prints the same as without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.tracefile import Trace, open_trace
from gradviz.tracefile.printed_lines import MOST_LINES, WIDEST
from gradviz.tracefile.ring import Ring
from tests.invoked import invoked
from tests.warm import python

TRAINING = """import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
print("start", end=" ")
print("of", 2, "parts")
loss = (w * w).sum()
loss.backward()
print("grad", w.grad.tolist())
"""


def recorded(folder: Path, program: str, *options: str) -> tuple[subprocess.CompletedProcess[bytes], Path]:
    """Run a program under `gradviz trace`: what it printed, and its trace."""
    (folder / "program.py").write_text(program)
    # what the server of programs holds is never thawed, and so is what a forked program makes before it runs
    interpreter = sys.executable if "__del__" in program else python()
    command = [interpreter, "-m", "gradviz", "trace", "-q", "--engine", "numpy", *options, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    return done, folder / "program.gradviz"


def told(trace: Path, commands: str) -> str:
    return invoked(["step", str(trace), "--commands", commands]).output


@pytest.mark.slow
def test_a_line_has_the_place_of_its_first_write_and_the_events_before_it(tmp_path: Path) -> None:
    _, path = recorded(tmp_path, TRAINING, "--printed")
    with open_trace(path) as trace:
        lines = [(line.text, trace.sites[line.site].place.line, line.event) for line in trace.printed]
        assert lines == [("start of 2 parts", 3, 1), ("grad [2.0, 4.0]", 7, trace.count)]


@pytest.mark.slow
def test_the_stepper_shows_by_line_what_was_printed_before_the_next_event(tmp_path: Path) -> None:
    _, path = recorded(tmp_path, TRAINING, "--printed")
    first, _, later = told(path, "variables; line; line").partition("> line\n")
    assert "● program.py:3  start of 2 parts" in first
    assert "grad [2.0, 4.0]" not in first
    assert "  program.py:3  start of 2 parts" in later
    assert "● program.py:7  grad [2.0, 4.0]" in later


@pytest.mark.slow
def test_without_the_option_nothing_is_kept_and_the_stream_is_as_it_was(tmp_path: Path) -> None:
    done, path = recorded(tmp_path, "import sys\n" + TRAINING + "print('write' in vars(sys.stdout))\n")
    assert done.stdout.endswith(b"False\n")
    with open_trace(path) as trace:
        assert trace.printed == []
    assert "printed" not in told(path, "line")


ODD = {
    "a wrong argument": "import sys\ntry:\n    sys.stdout.write(3)\nexcept TypeError as error:\n    print(error)\n",
    "a keyword": "import sys\ntry:\n    sys.stdout.write(text='x')\nexcept TypeError as error:\n    print(error)\n",
    "an error that ends it": "import sys\nprint('x')\nsys.stdout.close()\nprint('y')\n",
    "replaced": "import io, sys\nprint('x')\nsys.stdout, old = io.StringIO(), sys.stdout\nprint('lost')\n"
    "sys.stdout = old\nprint('found')\n",
    "wrapped": "import sys\nown = sys.stdout.write\nsys.stdout.write = lambda text: own(text.upper())\nprint('x')\n",
    "a fork": "import os\nprint('x', flush=True)\nif not os.fork():\n    print('child', flush=True)\n    os._exit(0)\n"
    "os.wait()\nprint('parent')\n",
    "in __del__": "import gradviz.engine as torch\nclass T:\n    def __del__(self):\n        print('gone')\n"
    "for _ in range(50):\n    t = T()\n    t.own = t\n    torch.ones(2)\nimport gc\ngc.collect()\n",
    "in a signal handler": "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *_: print('signal'))\n"
    "os.kill(os.getpid(), signal.SIGUSR1)\nprint('after')\n",
    "at the end": "import atexit\natexit.register(print, 'bye')\nprint('x', end='')\n",
    "in threads": "import threading\nfor k in range(4):\n    one = threading.Thread(target=print, args=(k,))\n"
    "    one.start()\n    one.join()\n",
    "bytes": "import sys\nprint('a')\nsys.stdout.flush()\nsys.stdout.buffer.write(b'b\\n')\n",
    "of another encoding": "import sys\nsys.stdout.reconfigure(encoding='utf-16')\nprint('é\\ud800'[:1])\n",
    "much": "for k in range(5000):\n    print(k)\nprint('x' * 100_000)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", ODD.values(), ids=ODD.keys())
def test_a_program_prints_the_same(program: str, tmp_path: Path) -> None:
    if "os.fork" in program and sys.platform == "win32":
        pytest.skip("there is no fork on Windows")
    done, path = recorded(tmp_path, program, "--printed")
    plain = subprocess.run([python(), "program.py"], cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    with open_trace(path) as trace:
        assert trace.printed


@pytest.mark.slow
def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    _, path = recorded(tmp_path, "print('x' * 1000)\nfor k in range(3000):\n    print(k)\n", "--printed")
    with open_trace(path) as trace:
        first, *others = trace.printed
        assert (len(first.text), first.length) == (WIDEST, 1000)
        assert [line.text for line in others] == [str(k) for k in range(MOST_LINES - 1)]


@pytest.mark.slow
def test_a_long_write_ends_its_lines_where_the_program_did(tmp_path: Path) -> None:
    program = (
        "import sys\nprint('x' * 9000)\nprint('next')\n"
        "sys.stdout.write('y' * 8500 + '\\nnot kept\\nend')\nprint(' of it')\nprint('z' * 9000, 'last')\n"
    )
    _, path = recorded(tmp_path, program, "--printed")
    with open_trace(path) as trace:
        lines = [(line.text[:10], line.length) for line in trace.printed]
    assert lines == [("x" * 10, 9000), ("next", 4), ("y" * 10, 8500), ("end of it", 9), ("z" * 10, 9005)]


@pytest.mark.slow
def test_lines_of_passes_that_are_not_kept_go_with_them(tmp_path: Path) -> None:
    program = (
        "import gradviz.engine as torch\nw = torch.ones(2, requires_grad=True)\n"
        "for k in range(200):\n    (w * k).sum().backward()\n    print('pass', k)\n"
    )
    _, path = recorded(tmp_path, program, "--printed", "--last", "3")
    with open_trace(path) as trace:
        assert [line.text for line in trace.printed][-3:] == ["pass 197", "pass 198", "pass 199"]
        assert len(trace.printed) < 10
        ends = [run.last for run in trace.passes[-3:]]
        assert [line.event - 1 for line in trace.printed[-3:]] == ends


def test_a_line_that_is_printed_while_events_are_taken_out_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program does not wait for the writer when it prints: also between the moment at which the writer has taken
    the lines and the one at which the events are counted anew."""
    choose, thinned = Ring.kept, []
    with gradviz.record(tmp_path / "run.gradviz", last=3) as recording:
        recorder = recording.recorder
        assert recorder is not None
        w = torch.ones(2, requires_grad=True)

        def kept(ring: Ring, trace: Trace, at_end: bool) -> Any:
            if not at_end:
                thinned.append(k)
                recorder.print_piece(None, f"behind pass {k}\n")
            return choose(ring, trace, at_end)

        monkeypatch.setattr(Ring, "kept", kept)
        for k in range(1, 41):
            (w * k).sum().backward()
            recorder.flush()
    with open_trace(tmp_path / "run.gradviz") as trace:
        ends = {one.number: one.last for one in trace.passes}
        assert thinned[-1] in ends
        assert [(line.text, line.event - 1) for line in trace.printed] == [
            (f"behind pass {number}", ends[number]) for number in thinned if number in ends
        ]


@pytest.mark.slow
def test_info_tells_of_printed_lines_and_a_redacted_copy_has_none(tmp_path: Path) -> None:
    _, path = recorded(tmp_path, TRAINING, "--printed")
    assert "2 printed lines" in invoked(["info", str(path)]).output
    copy = tmp_path / "copy.gradviz"
    invoked(["redact", str(path), "-o", str(copy)])
    with open_trace(copy) as trace:
        assert trace.printed == []
    assert b"parts" not in copy.read_bytes()
