"""Tracebacks and stacks that a program reads or prints have the frames that they have without the recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import python

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HEAD = """
import logging, sys, traceback
import torch
x = torch.ones(2, requires_grad=True)
def names(error):
    return [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
class Wrong(torch.nn.Module):
    def forward(self, x):
        try:
            return x @ torch.ones(5, 5)
        except RuntimeError as error:
            raise ValueError("bad shapes") from error
class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        print([frame.name for frame in traceback.extract_stack()])
        raise KeyError("in backward")
"""
PROGRAMS = {
    "raise from in forward ends the program": "Wrong()(x)",
    "raise in an except ends the program": "try: x.view(7)\nexcept RuntimeError: Wrong()(x)",
    "a group of exceptions ends the program": "try: Wrong()(x)\n"
    "except ValueError as error: raise ExceptionGroup('several', [error, KeyError(1)])",
    "extract_tb of a module's error": "try: Wrong()(x)\nexcept ValueError as error:\n"
    "    print(names(error), names(error.__cause__))\n    traceback.print_exc(file=sys.stdout)",
    "extract_tb of a backward": "try: Failing.apply(x).sum().backward()\nexcept KeyError as error: print(names(error))",
    "extract_tb of a hook": "x.register_hook(lambda grad: 1 / 0)\n"
    "try: (x * 2).sum().backward()\nexcept ZeroDivisionError as error: print(names(error))",
    "extract_stack": "def f(): print([frame.name for frame in traceback.extract_stack()])\nf()\n"
    "traceback.print_stack(file=sys.stdout)",
    "walk_tb with extract": "try: Wrong()(x)\nexcept ValueError as error:\n"
    "    print(traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), limit=-2))",
    "logging": "logging.basicConfig(stream=sys.stdout)\ntry: x + torch.ones(3)\n"
    "except RuntimeError: logging.exception('it failed')",
    "an except hook": "def hook(kind, error, trace): print(names(error))\nsys.excepthook = hook\nWrong()(x)",
    "a module that is not there": "def f():\n    import torch.nothing_here\nf()",
}
# Below their own frames, a fork has those of the process that it is a fork of.
SEE_THE_WHOLE_STACK = {"extract_stack", "extract_tb of a backward", "raise from in forward ends the program"}


def ended(folder: Path, *command: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a run, without what gradviz says."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("gradviz: ")]
    return done.returncode, done.stdout, "\n".join(said)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_shown_of_an_error_is_what_is_shown_without_the_recorder(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HEAD + PROGRAMS[name] + "\n")
    plain = sys.executable if name in SEE_THE_WHOLE_STACK else python()
    assert ended(tmp_path, python(), "-m", "gradviz", "trace", "job.py") == ended(tmp_path, plain, "job.py")


@pytest.mark.slow
def test_an_import_of_pytorch_that_fails_shows_no_frame_of_ours(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libtorch.so is missing')\n")
    (package / "_tensor.py").touch()  # as PyTorch has it
    (tmp_path / "job.py").write_text("import torch\n")
    assert ended(tmp_path, sys.executable, "-m", "gradviz", "trace", "job.py") == ended(
        tmp_path, sys.executable, "job.py"
    )
