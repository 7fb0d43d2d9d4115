"""Python imports this file when a program under `gradviz trace --ranks` starts a process."""

import importlib
import os
import sys


def _begin() -> None:
    """Run the `sitecustomize` that this file hides, and begin to record the process."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError:
        sys.modules["sitecustomize"] = sys.__class__("sitecustomize")
    from gradviz.sources.child_processes import begin_in_child

    begin_in_child()


_begin()
