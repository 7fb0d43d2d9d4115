"""A long run says how much is recorded, if that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.cli.running import progress_told
from tests.conftest import terminal_env

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")
pytest.importorskip("termios")

# It waits at `input()` until the test has seen the terminal.
GROWING = """\
from pathlib import Path
from gradviz.cli.running import progress_told
path = Path("run.gradviz")
path.write_bytes(bytes(12_000))
with progress_told(path, every=0.02):
    input()
print("done")
"""
WRITES = """\
import sys, time
import torch
w = torch.ones(2, requires_grad=True)
(w * w).sum().backward()
sys.stdout.write("epoch 1 ")
sys.stdout.flush()
time.sleep(3)
print("done")
"""


class Terminal:
    """A command in a terminal of 100 columns, which does not show what is typed."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.screen = pyte.Screen(100, 24)
        self.stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            sys.executable, [*command], cwd=str(folder), env=terminal_env(), echo=False, dimensions=(24, 100),
            timeout=120,
        )  # fmt: skip

    def read_until(self, seen: Callable[[], bool]) -> None:
        """Show what is written until something is seen."""
        while not seen():
            self.stream.feed(self.child.read_nonblocking(4096, 120))

    def enter(self) -> None:
        """Let it go on."""
        self.child.sendline("")

    def read_to_end(self) -> None:
        """Show the rest."""
        with pytest.raises(pexpect.EOF):
            self.read_until(lambda: False)
        self.child.close()

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.mark.slow
def test_every_few_seconds_a_line_has_the_size_of_the_trace(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-c", GROWING)
    terminal.read_until(lambda: "recorded" in terminal.screen.display[1])
    terminal.enter()
    terminal.read_to_end()
    assert terminal.lines[0].startswith("gradviz: 12 kB recorded in ")
    assert terminal.lines[-1] == "done"


def test_before_the_first_tensor_an_earlier_trace_is_not_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.gradviz"
    path.write_bytes(bytes(12_000))
    (tmp_path / "run.gradviz-new").touch()
    with progress_told(path, every=0.01):
        while not (line := capfd.readouterr().err):
            pass
    assert line.startswith("gradviz: nothing recorded in ")


@pytest.mark.slow
def test_a_long_run_under_trace_has_the_terminal_for_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WRITES)
    terminal = Terminal(tmp_path, "-m", "gradviz", "trace", "--engine", "numpy", "train.py")
    terminal.read_to_end()
    assert terminal.child.exitstatus == 0
    assert terminal.lines[0] == "epoch 1 done"
    assert terminal.lines[1].startswith("gradviz: recorded 2 operations")
