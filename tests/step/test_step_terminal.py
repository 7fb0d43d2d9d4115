"""The stepper in a real terminal: keys in, a screen out, and the terminal as it was afterwards."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gradviz.engine as torch
from gradviz.sources.record import record
from tests.conftest import terminal_env

pytestmark = pytest.mark.slow  # each starts a terminal

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")
pytest.importorskip("termios")

LESSON = """\
x = torch.tensor(5.0, requires_grad=True)
y = x ** 3
z = torch.log(y)
z.backward(retain_graph=True)
z.backward()
"""
SIZES = [(80, 24), (200, 60)]


class Terminal:
    """`gradviz step` in a terminal of a given size."""

    def __init__(self, trace: Path, width: int, height: int, *arguments: str, **env: str) -> None:
        self.screen = pyte.Screen(width, height)
        self.stream = pyte.ByteStream(self.screen)
        command = 'stty -a > "$1.before"; shift; "$@"; status=$?; stty -a > "$0.after"; exit $status'
        stem = str(trace.with_suffix(""))
        self.modes = [trace.with_suffix(".before"), trace.with_suffix(".after")]
        self.child = pexpect.spawn(
            "/bin/sh",
            ["-c", command, stem, stem, sys.executable, "-m", "gradviz", "step", str(trace), *arguments],
            dimensions=(height, width),
            env=terminal_env(**env),
            timeout=120,
        )
        self.raw = b""

    def wait(self, pattern: str) -> str:
        """The screen once it shows `pattern`."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                data = self.child.read_nonblocking(65536, timeout=0.05)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
            finally:
                shown = "\n".join(self.screen.display)
            self.raw += data
            self.stream.feed(data)
            shown = "\n".join(self.screen.display)
            if re.search(pattern, shown):
                return shown
        raise AssertionError(f"no {pattern!r} on the screen:\n{shown}")

    def shows(self, pattern: str) -> bool:
        """Whether `pattern` is on the screen, or comes: what is drawn comes in parts."""
        return bool(re.search(pattern, "\n".join(self.screen.display)) or self.wait(pattern))

    def press(self, keys: str, pattern: str) -> str:
        """The screen once `keys` have been dealt with."""
        self.child.send(keys)
        return self.wait(pattern)

    def ended(self) -> int:
        """The exit status, once the program has ended."""
        self.raw += self.child.read()
        self.child.wait()
        self.child.close()
        return self.child.exitstatus

    def restored(self) -> bool:
        """Whether the terminal is as it was: its modes, its cursor, and the screen from before."""
        before, after = (path.read_text() for path in self.modes)
        return before == after and self.raw.rstrip().endswith((b"\x1b[?1049l\x1b[?25h", b"\x1b[?25h\x1b[?1049l"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trace")
    (directory / "lesson.py").write_text(LESSON)
    with record(directory / "run.gradviz"):
        exec(compile(LESSON, str(directory / "lesson.py"), "exec"), {"torch": torch, "__name__": "__main__"})
    return directory / "run.gradviz"


@pytest.fixture
def terminal(trace: Path) -> Iterator[Callable[..., Terminal]]:
    begun: list[Terminal] = []

    def begin(width: int, height: int, *arguments: str, **env: str) -> Terminal:
        begun.append(Terminal(trace, width, height, *arguments, **env))
        return begun[-1]

    yield begin
    for one in begun:
        one.child.close(force=True)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_keys_move_through_the_trace(terminal: Callable[..., Terminal], width: int, height: int) -> None:
    stepper = terminal(width, height)
    assert "made x, a leaf that requires" in stepper.wait("event 1 of 23")
    assert "x ** 3 made y (PowBackward0)" in stepper.press("n", "event 2 of 23")
    stepper.press(" ", "event 3 of 23")
    stepper.press("\x1b[C", "event 4 of 23")
    stepper.press("j", "event 5 of 23")
    stepper.press("b", "event 4 of 23")
    stepper.press("\x1b[D", "event 3 of 23")
    stepper.press("G", "event 23 of 23")
    stepper.press("\x1b[H", "event 1 of 23")
    assert "backward pass 1 begins at z" in stepper.press("B", "event 7 of 23")
    assert "backward pass 2 begins at z" in stepper.press("B", "event 16 of 23")
    shown = stepper.press(":goto 11\r", "event 11 of 23")
    assert "PowBackward0 gives 0.6 to x: 0.008 × 75" in shown
    assert "where PowBackward0 was made" in shown
    stepper.press("nnbn", "event 13 of 23")
    assert "None → 0.6" in "\n".join(stepper.screen.display)
    stepper.child.send("q")
    assert stepper.ended() == 0
    assert stepper.restored()


def test_several_traces_are_stepped_side_by_side(terminal: Callable[..., Terminal], trace: Path) -> None:
    other = trace.with_name("other.gradviz")
    lesson = other.with_suffix(".py")
    lesson.write_text("torch.tensor(2.0, requires_grad=True).exp().backward()\n")
    with record(other):
        exec(compile(lesson.read_text(), str(lesson), "exec"), {"torch": torch})
    stepper = terminal(140, 30, str(other))
    shown = stepper.wait("event 1 of 23.*event 1 of 10")
    assert shown.splitlines()[0].split() == ["run", "│", "other"]
    stepper.press("n", "event 2 of 23.*event 2 of 10")
    stepper.press(":goto 12\r", "there is no event 12")  # in the other, which stays where it is
    assert stepper.shows("event 12 of 23")
    assert stepper.shows("event 2 of 10")
    stepper.press("?", "Keys and commands.*Keys and commands")
    stepper.press("?", "event 12 of 23")
    stepper.child.setwinsize(20, 80)
    stepper.screen.resize(20, 80)
    stepper.wait("1 more: widen the terminal to 97 columns")
    stepper.child.send("q")
    assert stepper.ended() == 0


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_overflows_the_screen(terminal: Callable[..., Terminal], width: int, height: int) -> None:
    stepper = terminal(width, height)
    for event in range(1, 24):
        shown = stepper.press("n" if event > 1 else "", f"event {event} of 23[^\n]*\n[^\n]*q quit").splitlines()
        assert shown[0].startswith("── lesson.py:")  # it has not scrolled
        assert shown[0].rstrip().endswith("run.gradviz ──")
        assert f"event {event} of 23" in shown[-2]
    stepper.child.send("q")
    assert stepper.ended() == 0


@pytest.mark.parametrize("key", ["\x03", "\x04", "q", ":quit\r", ":q\r"])
def test_leaving_restores_the_terminal(terminal: Callable[..., Terminal], key: str) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.child.send(key)
    assert stepper.ended() == 0
    assert stepper.restored()


def test_a_wrong_command_is_told_on_the_screen(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    assert "did you mean 'next'?" in stepper.press(":nxt\r", "unknown command")
    stepper.press(":goto 99\r", "there is no event 99")
    stepper.press(":goto 3\x7f5\r", "event 5 of 23")
    stepper.press("%", "no such key")
    stepper.press("n", "event 6 of 23")


def test_help_shows_every_key_and_any_key_leaves_it(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    assert "next-backward" in stepper.press("?", "Part 1 of")
    stepper.press(" ", "the next event +")
    stepper.press("x", "torch.tensor")


@pytest.mark.parametrize("f1", ["\x1bOP", "\x1b[11~"])
def test_f1_is_help_and_q_closes_only_the_help(terminal: Callable[..., Terminal], f1: str) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    assert "next-backward" in stepper.press(f1, "Part 1 of")
    stepper.press("q", "torch.tensor")
    stepper.press("n", "event 2 of 23")


def test_q_closes_a_page_that_any_key_closes(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.press("y", "Press any key to continue")
    stepper.press("q", "torch.tensor")
    stepper.press("n", "event 2 of 23")


def test_a_wrong_key_says_which_there_are(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.press("%", "n next, b back, B backward pass, y why")


def test_a_resized_terminal_is_drawn_anew(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23[^\n]*\n[^\n]*q quit")
    stepper.screen.resize(48, 160)
    stepper.screen.reset()
    stepper.child.setwinsize(48, 160)
    shown = stepper.wait("\\A── lesson.py:1 ─{120,}(?s:.*)event 1 of 23[^\n]*\n[^\n]*q quit").splitlines()
    assert len(shown[0].rstrip()) == 160
    assert "│" in shown[10]


def test_no_color_means_none(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24, "--at", "11", NO_COLOR="1")
    stepper.wait("event 11 of 23[^\n]*\n[^\n]*q quit")
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", stepper.raw)


def test_a_dumb_terminal_gets_plain_text(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(100, 40, TERM="dumb")
    stepper.wait("event 1 of 23")
    stepper.press("n", "event 2 of 23")
    stepper.press("?", "next-backward")
    stepper.child.send("q")
    assert stepper.ended() == 0
    assert b"\x1b" not in stepper.raw


def test_a_closed_terminal_ends_the_session(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.child.close(force=False)
    assert not stepper.child.isalive()


def test_nothing_that_is_typed_is_lost(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    for key in "nnnnnnnbn":  # while it is starting and drawing
        stepper.child.send(key)
        time.sleep(0.02)
    stepper.wait("event 8 of 23")
    for key in ":goto 23\r":
        stepper.child.send(key)
        time.sleep(0.005)
    stepper.wait("event 23 of 23")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(trace: Path, width: int, height: int) -> None:
    screen = pyte.Screen(width, height)
    stream = pyte.ByteStream(screen)
    shell = pexpect.spawn(
        "/bin/bash", ["--norc", "-i"], dimensions=(height, width), env=terminal_env(PS1="shell> "), timeout=120
    )

    def wait(pattern: str) -> None:
        end = time.monotonic() + 120
        while not re.search(pattern, "\n".join(screen.display)):
            assert time.monotonic() < end, "\n".join(screen.display)
            with contextlib.suppress(pexpect.TIMEOUT):
                stream.feed(shell.read_nonblocking(65536, timeout=0.05))

    shell.sendline(f"{sys.executable} -m gradviz step {trace}")
    wait("event 1 of 23[^\n]*\n[^\n]*q quit")
    shell.send("nn")
    wait("event 3 of 23")
    shell.send("\x1a")
    wait("Stopped")
    screen.reset()
    shell.sendline("echo $((6 * 7))")
    wait("(?m)^42")
    screen.reset()
    shell.sendline("fg")
    wait("event 3 of 23[^\n]*\n[^\n]*q quit")
    shell.send("n")
    wait("event 4 of 23")
    shell.send("q")
    shell.sendline("echo $?")
    wait("(?m)^0")
    shell.close(force=True)


def test_a_closed_input_asks_for_commands(trace: Path) -> None:
    run = ["/bin/sh", "-c", f'"{sys.executable}" -m gradviz step "{trace}" <&-']
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gradviz: step needs a terminal")
    assert len(done.stderr.splitlines()) == 1


def test_a_command_is_completed_edited_and_called_back(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.press(":nex\t", ":next▏")
    stepper.press(" 3\r", "event 4 of 23")
    stepper.press(":\x1b[A", ":next 3▏")
    stepper.press("\x1b[D2\r", "event 23 of 23")  # next 23
    stepper.press(":\x1bb", "event 22 of 23")


def test_a_long_page_is_read_on_and_left(terminal: Callable[..., Terminal]) -> None:
    stepper = terminal(80, 24)
    stepper.wait("event 1 of 23")
    stepper.press(":help fields\r", r"Part 1 of \d: Space for the next")
    stepper.press(" ", r"Part 2 of \d")
    stepper.press("b", r"Part 1 of \d")
    stepper.press("x", "torch.tensor")


EXAMPLES = Path(__file__).parents[2] / "examples"
# What a newcomer asks of an example, the keys that the first screen names, and what they then read.
QUESTIONS = {
    "why is y.grad None": (
        "quickstart",
        ":why y.grad\r",
        "y is a non-leaf",
        r"call\s+y.retain_grad\(\)\s+before\s+backward",
    ),
    "where was the NaN born": ("nan", "!y", "NaN in gradient of w first appears here", r"torch.sqrt\(w\)"),
    "which line wrote over it": (
        "written_over",
        "!y",
        r"event 15,\s+line 12",
        r"t.div_\(t.sum\(\).item\(\)\) changes weights in place",
    ),
    "who wrote over it": (
        "written_over",
        "Gwweights\r",
        "weights changed here, 1 earlier change",
        "▶12      return t.div_",
    ),
}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_screen_leads_to_the_answer(tmp_path: Path, question: str, width: int, height: int) -> None:
    example, keys, *answers = QUESTIONS[question]
    source = EXAMPLES / f"{example}.py"
    with record(tmp_path / "run.gradviz"), contextlib.redirect_stdout(None):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "__main__"})
    stepper = Terminal(tmp_path / "run.gradviz", width, height)
    first = stepper.wait("event 1 of [^\n]*\n[^\n]*q quit")
    for hint in ("why y.grad", "the first event with NaN or inf", "who w", "everything else"):
        assert hint in first
    stepper.press(keys, answers[0])
    assert stepper.shows(answers[1])
    stepper.child.send("q")
    stepper.child.send("q")
    assert stepper.ended() == 0
