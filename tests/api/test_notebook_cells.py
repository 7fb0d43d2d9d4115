"""Cells of a notebook as places, and what leads to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import gradviz.engine as torch
from gradviz.sources.notebook_cells import cell_links
from gradviz.sources.record import record
from gradviz.tracefile import open_trace
from gradviz.words.html_table import html_table

CELL = """\
def run(path):
    w = torch.ones(2, requires_grad=True)
    with record(path):
        (w * w).sum().backward()
"""


class Shell:
    """What is asked of IPython's shell: the names of its cells, and who runs them."""

    def __init__(self) -> None:
        self.execution_count = 2
        self.user_ns: dict[str, Any] = {}
        self.compile = SimpleNamespace(format_code_name={"/tmp/cell.py": ("Cell", "In[2]")}.get)
        self.ran: Callable[[Any], None] = print
        self.events = SimpleNamespace(register=lambda name, function: setattr(self, "ran", function))

    def get_parent(self) -> dict[str, Any]:
        return {"metadata": {"cellId": "a1b2"}}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    running = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: running))
    return running


def recorded(path: Any) -> None:
    names: dict[str, Any] = {"torch": torch, "record": record}
    exec(compile(CELL, "/tmp/cell.py", "exec"), names)
    names["run"](path)


def test_cells_are_linked_by_the_ids_that_jupyterlab_gave(tmp_path: Any, shell: Shell) -> None:
    recorded(tmp_path / "run.gradviz")
    shell.ran(SimpleNamespace(execution_count=3, info=SimpleNamespace(cell_id="c3d4")))
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert {site.place.file for site in trace.sites.values()} == {"In[2]"}
        assert trace.meta["script"] == "In[2]"
        assert cell_links(trace) == {"In[2]": "#cell-id=a1b2", "In[3]": "#cell-id=c3d4"}


def test_a_trace_of_another_notebook_has_no_links(tmp_path: Any, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "run.gradviz")
    monkeypatch.setattr("gradviz.sources.notebook_cells._OURS", "another")
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert cell_links(trace) == {}


def test_outside_a_notebook_nothing_is_a_cell(tmp_path: Any) -> None:
    recorded(tmp_path / "run.gradviz")
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert {site.place.file for site in trace.sites.values()} == {"/tmp/cell.py"}
        assert cell_links(trace) == {}


def test_a_place_in_a_table_is_a_link_where_its_cell_is_known() -> None:
    table = html_table(("place",), [("In[2]:7",), ("In[12]:7 <b>",)], links={"In[2]": "#cell-id=x&line={line}"})
    assert '<a href="#cell-id=x&amp;line=7">In[2]:7</a>' in table
    assert "In[12]:7 &lt;b&gt;" in table
