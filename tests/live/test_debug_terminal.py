"""`gradviz debug` in a real terminal: the script and the stepper share it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradviz.tracefile import open_trace
from tests.conftest import terminal_env

pytestmark = pytest.mark.slow  # each starts a terminal

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")
pytest.importorskip("termios")

LESSON = """\
import sys
import torch
name = input("name? ")
x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
print("hello", name)
y = x**3
z = torch.log(y).sum()
z.backward()
print("done", x.grad)
sys.exit(3)
"""
ENDLESS = """\
import time
import torch
w = torch.ones(2, requires_grad=True)
print("running")
while True:
    (w * w).sum().backward()
    time.sleep(0.01)
"""
SLEEPING = """\
import time
import torch
print("sleeping")
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
THREADS = """\
import threading
import torch

def work(n):
    w = torch.tensor(float(n), requires_grad=True)
    for i in range(200):
        (w * w).backward()
    print(f"worker {n} done: {w.grad.item()}")

workers = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print("all done")
"""


class Debugged:
    """`gradviz debug` in a terminal of 80 by 24."""

    def __init__(self, folder: Path, script: str, *options: str, shell: str = "", **env: str) -> None:
        (folder / "lesson.py").write_text(script)
        (folder / "names.txt").write_text("Bob\n")
        self.folder = folder
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)
        command = f'{sys.executable} -m gradviz debug "$@" lesson.py {shell}'
        self.child = pexpect.spawn(
            "/bin/sh",
            ["-c", f"trap : INT; {command}; echo status $?; stty -a > after", "sh", *options],
            cwd=folder,
            dimensions=(24, 80),
            env=terminal_env(**env),
            timeout=120,
        )
        self.raw = b""

    def wait(self, pattern: str) -> str:
        """The screen once it shows `pattern`."""
        end = time.monotonic() + 120
        shown = ""
        while time.monotonic() < end:
            shown = "\n".join(line.rstrip() for line in self.screen.display)
            if re.search(pattern, shown):
                return shown
            try:
                data = self.child.read_nonblocking(65536, timeout=0.05)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
            self.raw += data
            self.stream.feed(data)
        raise AssertionError(f"no {pattern!r} on the screen:\n{shown}")

    def press(self, keys: str, pattern: str) -> str:
        """The screen once `keys` have been dealt with."""
        self.child.send(keys)
        return self.wait(pattern)

    def ended(self, status: int) -> str:
        """The whole output of the session, without the stepper's screens."""
        self.wait(f"status {status}")
        self.raw += self.child.read()
        assert " echo" in (self.folder / "after").read_text()  # the terminal is as it was
        screens = rb"\x1b\[\?1049h.*?\x1b\[\?1049l(\x1b\[\?25h)?"
        written = re.sub(screens, b"", self.raw, flags=re.DOTALL).decode()
        return re.sub(r"\x1b\[[0-9;]*m", "", written)


@pytest.fixture
def debug(tmp_path: Path) -> Iterator[Callable[..., Debugged]]:
    begun: list[Debugged] = []

    def begin(script: str, *options: str, **env: str) -> Debugged:
        begun.append(Debugged(tmp_path, script, *options, **env))
        return begun[-1]

    yield begin
    for one in begun:
        one.child.close(force=True)


def events(folder: Path) -> int:
    with open_trace(folder / "lesson.debug.gradviz") as trace:
        return trace.count


def test_a_reader_steps_back_and_forth_and_continues_to_the_end(debug: Callable[..., Debugged]) -> None:
    session = debug(LESSON, "--no-nan")
    session.wait(r"name\?")
    shown = session.press("Ada\r", "event 1 of 1 ")
    assert "paused · lesson.debug.gradviz" in shown
    assert "c continue" in shown
    assert "q end the script" in shown
    session.press("n", "event 2 of 3 ")
    session.press("b", "event 1 of 3 ")
    session.press("nn", "event 3 of 3 ")
    session.press("n", "event 4 of 5 ")
    session.press(":break backward\r", "breakpoint 1")
    session.press("c", "event 9 of 9 ")
    session.press(":delete all\r", "all breakpoints deleted")
    session.press("c", "status 3")
    written = session.ended(3)
    assert "name? Ada\r\nhello Ada\r\ndone tensor([3.0000,    nan, 0.7500])\r\n" in written
    assert "gradviz: recorded 3 operations, 1 backward pass, 18 events" in written
    assert events(session.folder) == 18


def test_the_first_nan_pauses_the_script(debug: Callable[..., Debugged]) -> None:
    session = debug(LESSON, "--run")
    session.wait(r"name\?")
    session.press("Ada\r", "the first infinity")
    shown = session.press("c", "the first NaN")
    assert "event 15 of 15" in shown
    assert "6  y = x**3" in shown
    session.press("q", "status 0")
    assert "done" not in session.ended(0)
    assert events(session.folder) == 16  # its pass was broken off


def test_stepping_off_the_end_shows_the_end(debug: Callable[..., Debugged]) -> None:
    session = debug(LESSON, "--no-nan", "--break", "event == 17")
    session.wait(r"name\?")
    session.press("Ada\r", "event 17 of 17 ")
    session.press("n", "event 18 of 18 ")
    shown = session.press("n", r"the script has ended \(exit status 3\)")
    assert "paused" not in shown
    session.press("b", "event 17 of 18 ")
    session.press("q", "status 3")
    session.ended(3)


def test_keys_typed_ahead_are_for_the_next_stop(debug: Callable[..., Debugged]) -> None:
    session = debug(LESSON, "--no-nan")
    session.wait(r"name\?")
    session.press("Ada\r", "event 1 of 1 ")
    session.press("nnnnnbn", "event 6 of 7 ")
    session.press("q", "status 0")


def test_ctrl_c_pauses_a_running_script(debug: Callable[..., Debugged]) -> None:
    session = debug(ENDLESS, "--run")
    session.wait("running")
    time.sleep(0.5)
    session.press("\x03", "paused by Ctrl-C")
    session.press("\x03", "the script is paused: c lets it go on")
    session.press("b", r"event (\d+) of")
    session.child.send("c")
    time.sleep(0.5)
    session.press("\x03", "paused by Ctrl-C")
    session.press("q", "status 0")
    assert "Traceback" not in session.ended(0)
    assert events(session.folder) > 20


def test_a_second_ctrl_c_interrupts_what_does_not_come_to_an_event(debug: Callable[..., Debugged]) -> None:
    session = debug(SLEEPING, "--run")
    session.wait("sleeping")
    session.press("\x03", "pausing at the next event")
    session.press("\x03", "interrupted")
    session.ended(0)


def test_keys_come_from_the_terminal_where_the_script_reads_a_file(debug: Callable[..., Debugged]) -> None:
    session = debug(LESSON, "--no-nan", shell="< names.txt > out.txt")
    session.wait("event 1 of 1 ")
    session.press("c", "status 3")
    assert (session.folder / "out.txt").read_text().startswith("name? hello Bob\ndone tensor")


def test_one_thread_is_paused_and_the_others_wait(debug: Callable[..., Debugged]) -> None:
    session = debug(THREADS, "--break", "op mul")
    first = int(re.search(r"event (\d+) of", session.wait("event")).group(1))
    session.press("c", f"event (?!{first} )")
    session.press(":delete all\r", "all breakpoints deleted")
    session.press("c", "status 0")
    written = session.ended(0)
    assert "worker 1 done: 400.0" in written
    assert "worker 2 done: 800.0" in written
    assert "all done" in written


def test_quitting_in_a_thread_ends_all_of_them(debug: Callable[..., Debugged]) -> None:
    script = THREADS.replace("range(200)", "iter(int, 1)").replace("import threading", "import threading, time", 1)
    session = debug(script + "time.sleep(60)\n", "--break", "pass == 5")
    session.wait("event")
    session.press("q", "status 0")
    assert "Traceback" not in session.ended(0)
