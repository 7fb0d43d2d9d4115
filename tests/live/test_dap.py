"""An editor steps through a trace: the adapter test kit of npm, and messages by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KIT = "@vscode/debugadapter-testsupport@1.68.0"
ADAPTER = 'import sys\nfrom gradviz.cli.command_process import run\nsys.argv = ["gradviz", "dap"]\nrun()\n'
LESSON = """\
import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    loss = torch.log((w ** 2).sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


class Editor:
    """Sends requests to an adapter, and returns all that it sends before and with the response, and behind it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "gradviz", "dap"]
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.sent = 0

    def write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = int(self.process.stdout.readline().split(b":")[1])
        assert self.process.stdout.readline() == b"\r\n"
        return json.loads(self.process.stdout.read(length))

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.sent += 1
        self.write(
            json.dumps({"seq": self.sent, "type": "request", "command": command, "arguments": arguments}).encode()
        )
        while (message := self.read())["type"] != "response":
            self.last = message
        return message

    def moved(self, command: str) -> tuple[str, int]:
        """The reason of the stop after a request, and the line."""
        assert self.ask(command, threadId=1)["success"]
        reason = self.read()["body"]["reason"]
        return reason, self.ask("stackTrace", threadId=1)["body"]["stackFrames"][0]["line"]


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    (tmp_path / "lesson.py").write_text(LESSON, encoding="utf-8")
    editor = Editor(tmp_path)
    editor.ask("initialize")
    return editor


def ended(editor: Editor) -> int:
    assert editor.ask("disconnect")["success"]
    return editor.process.wait(timeout=30)


def test_a_script_is_recorded_and_stepped_through_both_ways(editor: Editor, tmp_path: Path) -> None:
    assert editor.ask("launch", program=str(tmp_path / "lesson.py"))["success"]
    assert editor.read()["event"] == "initialized"
    source = {"path": str(tmp_path / "lesson.py")}
    places = [{"line": 7}, {"line": 5, "condition": "op == 'log'"}, {"line": 1}]
    answered = editor.ask("setBreakpoints", source=source, breakpoints=places)
    assert [one["verified"] for one in answered["body"]["breakpoints"]] == [True, True, False]
    editor.ask("configurationDone")
    assert editor.read()["body"]["reason"] == "entry"
    assert [editor.moved("continue") for _ in range(3)] == [("breakpoint", 5), ("breakpoint", 7), ("breakpoint", 5)]
    assert editor.moved("reverseContinue") == ("breakpoint", 7)
    # to the end of the line, and to that of the next
    assert [editor.moved("next") for _ in range(2)] == [("step", 7), ("step", 8)]
    assert editor.moved("stepBack") == ("step", 7)
    assert ended(editor) == 0


@pytest.mark.slow
def test_what_cannot_be_answered_is_one_line_and_the_session_goes_on(editor: Editor, tmp_path: Path) -> None:
    for program, said in (("no.gradviz", "no such file"), ("no.py", "could not be recorded")):
        refused = editor.ask("launch", program=str(tmp_path / program))
        assert not refused["success"]
        assert said in refused["message"]
        assert "\n" not in refused["message"]
    assert "a recorded run has no pause" in editor.ask("pause")["message"]
    assert editor.ask("stackTrace")["message"] == editor.ask("next")["message"] == "launch a trace first"
    editor.write(b"[]")
    assert editor.ask("launch", program=str(tmp_path / "lesson.py"))["success"]
    assert editor.read()["event"] == "initialized"
    assert "no tensor is called no_such" in editor.ask("evaluate", expression="no_such")["message"]
    assert ended(editor) == 0


@pytest.mark.slow
def test_a_file_that_has_changed_is_shown_as_it_was_recorded(editor: Editor, tmp_path: Path) -> None:
    editor.ask("launch", program=str(tmp_path / "lesson.py"))
    assert editor.read()["event"] == "initialized"
    (tmp_path / "lesson.py").write_text("# another\n", encoding="utf-8")
    source = editor.ask("stackTrace", threadId=1)["body"]["stackFrames"][0]["source"]
    assert "path" not in source
    assert editor.ask("source", sourceReference=source["sourceReference"])["body"]["content"] == LESSON
    assert ended(editor) == 0


@pytest.mark.slow
def test_the_adapter_test_kit_steps_through_a_script(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    installed = subprocess.run(["npm", "install", "--silent", KIT], cwd=tmp_path, capture_output=True, check=False)
    if installed.returncode:
        pytest.skip("the adapter test kit could not be had from npm")
    (tmp_path / "lesson.py").write_text(LESSON, encoding="utf-8")
    (tmp_path / "adapter.py").write_text(ADAPTER, encoding="utf-8")
    script, lesson = Path(__file__).parent / "dap.js", tmp_path / "lesson.py"
    done = subprocess.run(
        ["node", script, tmp_path, sys.executable, tmp_path / "adapter.py", lesson, lesson],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told: dict[str, list[Any]] = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        told.setdefault(answer["what"], []).append(answer["told"])
    assert "failed" not in told
    assert told["capabilities"][0]["supportsStepBack"]
    assert [one["verified"] for one in told["functions"][0]["breakpoints"]] == [True, False]
    assert [stop["text"] for stop in told["continue"]] == ["breakpoint 1: lesson.py:5", "breakpoint 2: log"]
    assert told["stepBack"][0]["text"] == told["next"][0]["text"]
    assert told["reverseContinue"][0]["text"] == "breakpoint 2: log"
    assert told["Event"][0][0]["value"] == "7: torch.log((w ** 2).sum()) made loss (LogBackward0)"
    assert (told["Leaves"][0][0]["name"], told["Leaves"][0][0]["type"]) == ("w", "leaf")
    parts = {one["name"]: one["value"] for one in told["leaf"][0]}
    assert parts == {"value": "[1, 2]", "grad": "None", "requires_grad": "True"}
    assert told["evaluate"] == ["w, float32\n  [1., 2.]"]
    assert told["data"][0]["text"] == "breakpoint 3: watch w"
    assert told["wrong"] == ["no tensor is called no_such: known names: w, loss"]
