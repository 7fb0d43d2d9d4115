"""Python imports this as it starts a process of a program that runs under `gradviz trace --ranks`."""

import importlib
import os
import sys


def _begin() -> None:
    """Run the `sitecustomize` that would have been found without this one, and begin to record the process."""
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
