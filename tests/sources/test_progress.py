"""A long run says on the terminal that it is recorded, and leaves nothing of that behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.cli.running import shown_on_terminal, size_of
from tests.conftest import terminal_env

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")
pytest.importorskip("termios")

# It waits at each `input()` until the test has seen the terminal.
GROWING = """\
import sys
from pathlib import Path
from gradviz.cli.running import shown_on_terminal
path = Path("run.gradviz")
path.write_bytes(bytes(12_000))
with shown_on_terminal(path, after=0.05, every=0.02):
    sys.stdout.write("loss: ")
    sys.stdout.flush()
    input()
    path.write_bytes(bytes(900))
    input()
print("done")
"""
TRAINING = """\
import torch
w = torch.ones(2, requires_grad=True)
(w * w).sum().backward()
input()
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


def test_the_size_stands_at_the_right_and_is_gone_at_the_end(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-c", GROWING)
    terminal.read_until(lambda: "12.0 kB" in terminal.screen.display[0])
    note = "gradviz records: 12.0 kB"
    assert terminal.lines == ["loss: " + note.rjust(93)]
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (0, 6)
    terminal.enter()
    terminal.read_until(lambda: "900 B" in terminal.screen.display[0])
    assert terminal.lines == [
        "loss: " + "gradviz records: 900 B".rjust(93)
    ]  # nothing is left of the longer note
    terminal.enter()
    terminal.read_to_end()
    assert terminal.lines == ["loss: done"]


@pytest.mark.slow
def test_a_long_run_under_trace_says_that_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    terminal = Terminal(tmp_path, "-m", "gradviz", "trace", "--engine", "numpy", "train.py")
    terminal.read_until(lambda: "gradviz records: " in terminal.screen.display[0])
    terminal.enter()
    terminal.read_to_end()
    assert terminal.child.exitstatus == 0
    assert terminal.lines[0].startswith("done")
    assert terminal.lines[1].startswith("gradviz: recorded 2 operations")


def test_without_a_terminal_nothing_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with shown_on_terminal(tmp_path, after=0):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_340_000, "12.3 MB"), (5_120_000_000, "5.12 GB")],
)
def test_a_size_is_written_for_a_person(count: int, text: str) -> None:
    assert size_of(count) == text
