"""Cells of a notebook as places. A cell is called `In[2]`, as in IPython's tracebacks."""

import secrets
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from gradviz.tracefile import Trace

KERNEL = "kernel"  # the metadata of a trace: the process that its cells ran in
_OURS = secrets.token_hex(8)


class _Cells:
    """The cells that this process has run, with the ids that JupyterLab knows them by."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.shell: Any = None

    def follow(self, shell: Any) -> None:
        """Note the cells that a shell runs from now on."""
        if self.shell is not shell:
            self.shell = shell
            shell.events.register("post_run_cell", self._ran)

    def note(self, name: str, cell_id: str | None) -> None:
        """Note the id of a cell, where it has one."""
        if cell_id is not None:
            self.ids[name] = cell_id

    def _ran(self, result: Any) -> None:
        self.note(f"In[{result.execution_count}]", getattr(result.info, "cell_id", None))


_cells = _Cells()


def _shell() -> Any:
    """IPython's shell; None where this is no notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython is not None else None


def follow_cells(shell: Any) -> None:
    """Note the cells that a shell of IPython runs from now on, so that they can be reached by links."""
    _cells.follow(shell)


def cell_name(path: str) -> str | None:
    """The name of the cell whose code has this file name; None if it is no cell."""
    told = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    label = told(path) if told is not None else None
    return label[1] if label is not None else None


def cell_around(frame: FrameType | None) -> str | None:
    """The name of the cell whose code runs at or above a frame; None if there is none."""
    while frame is not None:
        name = cell_name(frame.f_code.co_filename)
        if name is not None:
            return name
        frame = frame.f_back
    return None


def notebook_meta(frame: FrameType | None) -> dict[str, str]:
    """The metadata of a recording that begins in a cell, at or above a frame: the cell in place of a script, and what
    tells that the trace is of this process. Empty where there is no cell."""
    cell = cell_around(frame) if _shell() is not None else None
    if cell is None:
        return {}
    shell = _shell()
    _cells.follow(shell)
    message = shell.get_parent() if hasattr(shell, "get_parent") else {}
    _cells.note(cell, message.get("metadata", {}).get("cellId"))
    return {"script": cell, KERNEL: _OURS}


def cell_links(trace: Trace) -> Mapping[str, str]:
    """The links to the cells of a trace in this notebook, by their names, to be formatted with `line`.
    Empty for a trace of another notebook, and where no links are known."""
    shell = _shell()
    if shell is None or trace.meta.get(KERNEL) != _OURS:
        return {}
    if "__vsc_ipynb_file__" in shell.user_ns:  # VS Code's own name for the notebook
        return {
            f"In[{count}]": f"vscode-notebook-cell:?execution_count={count}&line={{line}}"
            for count in range(1, shell.execution_count + 1)
        }
    return {name: f"#cell-id={cell_id}" for name, cell_id in _cells.ids.items()}
