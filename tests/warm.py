"""A Python that has the libraries in memory already: to import PyTorch takes 3 s of the processor, our own modules
half a second, and a thousand tests start a process.

`python()` is what a test starts in place of `sys.executable`: a client, which hands its arguments, environment,
directory and standard streams to a server. The server forks, and the child is the program's process. Nothing is
imported there that `python` would not have imported: what the server has in memory is set aside until the program
imports it. So a recorder sees how PyTorch is imported, as always.

A program whose interpreter has to be set up in another way (options, variables that Python reads as it starts) gets a
Python of its own. A test that looks at the interpreter itself, or kills it, starts `sys.executable`: a client that is
killed is gone before its program is."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CLIENT = """#!{python} -SE
import sys
sys.path[0] = {here!r}
from warm_client import ask
ask({socket!r}, sys.argv[1:])
"""


def python(*settings: tuple[str, str], torch: bool = True) -> str:
    """The program to start. Its server ends with this process. `settings` are what its environment has in addition:
    programs that are started in another environment get a Python of their own. Without `torch`, a fork is cheaper."""
    return _client(settings, torch) if sys.platform.startswith("linux") else sys.executable


@cache
def _client(settings: tuple[tuple[str, str], ...], torch: bool) -> str:
    """The client of one server."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client, socket = folder / "python", folder / "socket"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(settings)
    server = subprocess.Popen(
        [sys.executable, HERE / "warm_server.py", socket, *(["torch"] if torch else [])], cwd=folder, env=environment,
        start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    client.write_text(CLIENT.format(python=sys.executable, here=str(HERE), socket=str(socket)))
    client.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.communicate)
    return str(client)
