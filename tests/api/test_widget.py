"""`gradviz.widget`: the page of a trace in a notebook, whose place Python knows and sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")

import gradviz
import gradviz.engine as torch

# What a notebook does for a widget: its model, and the element that it draws into.
HOST = """
<!doctype html><meta charset="utf-8"><div id="cell"></div>
<script type="module">
const state = @@STATE@@;
const heard = new Map();
window.saved = [];
window.model = {
  get: (name) => state[name],
  set: (name, value) => {
    const isNew = state[name] !== value;
    state[name] = value;
    if (isNew) (heard.get(`change:${name}`) || []).forEach((act) => act());
  },
  on: (what, act) => heard.set(what, [...(heard.get(what) || []), act]),
  off: (what, act) => heard.set(what, (heard.get(what) || []).filter((one) => one !== act)),
  save_changes: () => window.saved.push({ ...state, page: "" }),
};
const widget = (await import(URL.createObjectURL(new Blob([@@ESM@@], { type: "text/javascript" })))).default;
window.leave = widget.render({ model: window.model, el: document.getElementById("cell") });
</script>
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(2):
            w.exp().sum().backward()
    return tmp_path / "run.gradviz"


class Cell:
    """A cell of a notebook that shows a widget."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.page = tab.frame_locator("iframe")

    def wait(self, condition: str) -> None:
        self.tab.wait_for_function(f"() => {condition}")

    def get(self, name: str) -> Any:
        return self.tab.evaluate(f"window.model.get('{name}')")

    def set(self, name: str, value: Any) -> None:
        self.tab.evaluate("([name, value]) => window.model.set(name, value)", [name, value])


@pytest.fixture
def cell(browser: Any, path: Path, tmp_path: Path) -> Iterator[Any]:
    """Shows a widget with some traits set before."""
    context = browser.new_context()
    wrong: list[str] = []

    def shown(**traits: Any) -> Cell:
        widget = gradviz.widget(path, passes=1)
        widget.set_trait("height", 600)
        for name, value in traits.items():
            setattr(widget, name, value)
        state = {name: getattr(widget, name) for name in widget.trait_names(sync=True) if name[0] != "_"}
        parts = HOST.split("@@")  # the page has this file's source: nothing of it may be replaced
        parts[1], parts[3] = (
            json.dumps(what).replace("<", "\\u003c")
            for what in ({name: state[name] for name in KEPT}, str(widget._esm))
        )
        host = "".join(parts)
        (tmp_path / "notebook.html").write_text(host)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto((tmp_path / "notebook.html").as_uri())
        tab.wait_for_function("() => window.saved.length > 0")
        return Cell(tab)

    yield shown
    assert wrong == []
    context.close()


KEPT = ("page", "height", "pass_number", "event", "selected", "sentence")


def test_python_knows_the_place_of_the_page(cell: Any) -> None:
    here = cell()
    at_first = here.get("event")
    assert (here.get("pass_number"), here.get("sentence")) == (1, "backward pass 1 ends; its buffers are freed")
    here.page.locator("#back").click()
    here.wait(f"window.model.get('event') === {at_first - 1}")
    assert here.tab.evaluate("window.saved.at(-1).event") == at_first - 1
    here.page.locator('[id^="box-n"] .box').first.dispatch_event("click", {"bubbles": True})
    here.wait("window.model.get('selected').startsWith('n')")


@pytest.mark.slow
def test_the_page_goes_where_python_sets_it(cell: Any) -> None:
    here = cell()
    here.set("event", 3)
    here.wait("window.saved.at(-1).event === 3")
    assert "event 3 of" in here.page.locator("#position").inner_text()
    here.set("pass_number", 2)
    here.wait("window.saved.at(-1).pass_number === 2")
    assert "pass 2 of 2" in here.page.locator("#pass option:checked").inner_text()


@pytest.mark.slow
def test_a_place_that_there_is_not_is_the_nearest_one(cell: Any) -> None:
    here = cell()
    here.set("event", 10_000)
    here.wait("window.saved.at(-1).event < 1000")
    assert here.get("event") > 3


@pytest.mark.slow
def test_a_place_that_is_set_before_the_widget_is_shown_counts(cell: Any) -> None:
    here = cell(event=2)
    here.wait("window.saved.at(-1).event === 2")


@pytest.mark.slow
def test_a_pass_that_is_set_before_the_widget_is_shown_counts(cell: Any) -> None:
    here = cell(pass_number=2)
    here.wait("window.saved.at(-1).pass_number === 2")
    assert "pass 2 of 2" in here.page.locator("#pass option:checked").inner_text()


@pytest.mark.slow
def test_a_cell_that_is_gone_hears_nothing(cell: Any) -> None:
    here = cell()
    here.tab.evaluate("window.leave()")
    count = here.tab.evaluate("window.saved.length")
    before = here.page.locator("#position").inner_text()
    here.page.locator("#back").click()
    here.tab.wait_for_timeout(0)  # the frame's message, if it sends one, comes before this returns
    assert here.page.locator("#position").inner_text() != before
    assert here.tab.evaluate("window.saved.length") == count


@pytest.mark.slow
def test_a_notebook_keeps_it(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = ["import gradviz\nw = gradviz.widget('run.gradviz')\nw", "w.event = 4\nw.event"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    (output,) = book.cells[0].outputs
    model = output["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
    state = book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"][model]["state"]
    assert state["page"].startswith("<!doctype html>")
    assert state["event"] == 4
    assert "srcdoc" in state["_esm"]


def test_without_anywidget_one_line_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gradviz.trace_widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r"pip install anywidget \("):
        gradviz.widget(path)
