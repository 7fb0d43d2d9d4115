"""`gradviz dap`: the stepper for editors, over the Debug Adapter Protocol on stdin and stdout."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from gradviz.cli.common import one_line
from gradviz.cli.step import session_of
from gradviz.errors import GradvizError
from gradviz.step import CommandError
from gradviz.step.adapter import Adapter
from gradviz.step.state import Session
from gradviz.tracefile import open_trace

_LONGEST = 1 << 24  # bytes of a message


class _Editor:
    """The editor at the other end of two streams."""

    def __init__(self, stream: BinaryIO, out: BinaryIO) -> None:
        self.stream, self.out, self.sent = stream, out, 0

    def requests(self) -> Iterator[dict[str, Any]]:
        """The requests, until the stream ends or is no longer the protocol's."""
        while True:
            length = 0
            while line := self.stream.readline(_LONGEST).strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" and value.strip().isdigit() else length
            if not 0 < length <= _LONGEST:
                return
            message = json.loads(self.stream.read(length))
            if isinstance(message, dict) and message.get("type") == "request":
                yield message

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.sent += 1
        content = json.dumps({"seq": self.sent, **message}).encode()
        self.out.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self.out.flush()

    def tell(self, event: str, body: dict[str, Any]) -> None:
        """Send an event."""
        self.send(type="event", event=event, body=body)

    def launched(self, asked: dict[str, Any]) -> Session:
        """The session of a trace, or of a script, which is recorded first. Raises CommandError if there is no trace."""
        program = Path(asked.get("program") or "")
        if program.suffix != ".gradviz":
            program = self._recorded(program, asked)
        return session_of(open_trace(program), 0, "en")

    def _recorded(self, script: Path, asked: dict[str, Any]) -> Path:
        folder = Path(asked.get("cwd") or script.parent)
        trace = folder / f"{script.stem}.gradviz"
        command = [sys.executable, "-m", "gradviz", "trace", "-o", str(trace), str(script), *asked.get("args", ())]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        for category, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            if text:
                self.tell("output", {"category": category, "output": text})
        if not trace.exists():
            raise CommandError("{script} could not be recorded", script=script.name)
        return trace


@click.command(
    epilog="""\b
Examples:
  gradviz dap        what an editor starts: docs/editors.md
"""
)
def dap() -> None:
    """Step through a trace in an editor, forwards and backwards: a debug adapter on stdin and stdout.

    The editor launches a trace, or a script, which is recorded first: {"program": "train.gradviz"} or {"program":
    "train.py", "args": ["--epochs", "2"]}.
    """
    editor = _Editor(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout = sys.stderr  # the protocol has stdout for itself
    told: list[tuple[str, dict[str, Any]]] = []  # events, which come after the response
    adapter = Adapter(lambda event, body: told.append((event, body)), editor.launched)
    for request in editor.requests():
        answered = {"type": "response", "request_seq": request.get("seq"), "command": request.get("command")}
        try:
            body = adapter.answer(str(request.get("command")), request.get("arguments") or {})
        except (GradvizError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            editor.send(**answered, success=False, message=one_line(str(error)))
        else:
            editor.send(**answered, success=True, body=body)
        for event, said in told:
            editor.tell(event, said)
        told.clear()
        if request["command"] in ("disconnect", "terminate"):
            break
