"""gradviz in a real notebook: pictures, pages, and a cell that is recorded as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

pytestmark = pytest.mark.slow  # a kernel starts for each notebook

SETUP = """\
import gradviz
import gradviz.engine as torch
%load_ext gradviz
"""


@pytest.fixture
def outputs(tmp_path: Path) -> Any:
    """Runs cells in a notebook; gives what each showed."""

    def run(*cells: str) -> list[list[Any]]:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)])
        nbclient.NotebookClient(
            book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        return [cell.outputs for cell in book.cells[1:]]

    return run


def shown(cell: list[Any], kind: str) -> str:
    """What a cell showed, of one kind."""
    (data,) = [output["data"] for output in cell if output["output_type"] in ("execute_result", "display_data")]
    return data[kind]


def printed(cell: list[Any]) -> str:
    return "".join(output["text"] for output in cell if output["output_type"] == "stream")


def test_a_tensor_draws_itself_with_its_names(outputs: Any) -> None:
    ((*_, cell),) = [outputs("x = torch.tensor(5.0, requires_grad=True)\nz = torch.log(x**3)", "gradviz.draw(z)")]
    picture = shown(cell, "image/svg+xml")
    assert ">x<" in picture.replace("\u00a0", "")
    assert "PowBackward" in picture


def test_a_cell_is_recorded_as_it_is(outputs: Any) -> None:
    setup = "w = torch.tensor([1.0, 2.0], requires_grad=True)"
    _, cell, after = outputs(
        setup, "%%gradviz -o cell.gradviz\nloss = (w * w).sum()\nloss.backward()\nprint('ran')", "w.grad.tolist()"
    )
    assert printed(cell) == "ran\n"
    picture = shown(cell, "image/svg+xml").replace("\u00a0", "")
    assert ">loss<" in picture
    assert ".grad = [2, 4]" in picture
    assert shown(after, "text/plain") == "[2.0, 4.0]"


def test_a_loss_of_a_recorded_cell_is_drawn_with_its_modules_in_a_later_one(outputs: Any) -> None:
    _, _, later, unrecorded, with_gradients, after = outputs(
        "net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))",
        "%%gradviz\nloss = net(torch.ones(4, 2)).pow(2).mean()\nloss.backward()",
        "gradviz.draw(loss, rolled=True)",
        "gradviz.draw(net(torch.ones(4, 2)).pow(2).mean())",
        "grad = net[2].bias.grad.tolist()\nagain = net(torch.ones(4, 2)).pow(2).mean()\n"
        "gradviz.draw(again, gradients=True, depth=2)",
        "net[2].bias.grad.tolist() == grad",
    )
    picture = shown(later, "image/svg+xml").replace("\u00a0", " ")
    assert "0 · Linear" in picture
    assert ".grad norm" in picture
    at_hand = shown(unrecorded, "image/svg+xml").replace("\u00a0", " ")
    assert "0 · Linear" in at_hand
    assert "not recorded: modules are told by their parameters" in at_hand
    assert 'class="edge grad flowed' not in at_hand
    flowing = shown(with_gradients, "image/svg+xml").replace("\u00a0", " ")
    assert "this pass was run for the picture: no .grad has changed" in flowing
    assert 'class="edge grad flowed' in flowing
    assert shown(after, "text/plain") == "True"


def test_an_error_in_a_recorded_cell_is_shown_with_the_picture(outputs: Any) -> None:
    (cell,) = outputs(
        "%%gradviz\ntorch.ones(2, requires_grad=True).sum().backward()\nraise ValueError('no such thing')"
    )
    assert [output["evalue"] for output in cell if output["output_type"] == "error"] == ["no such thing"]
    assert "SumBackward0" in shown(cell, "image/svg+xml")
    assert printed(cell) == "%%gradviz: the cell ended with an error; the picture shows what it did until then\n"


def test_of_a_cell_that_failed_before_anything_was_recorded_only_the_error_is_shown(outputs: Any) -> None:
    (cell,) = outputs("%%gradviz\nundefined.backward()")
    assert [output["output_type"] for output in cell] == ["error"]


def test_the_traceback_of_a_recorded_cell_names_the_cell_that_a_reader_sees(outputs: Any) -> None:
    _, cell, after = outputs(
        "def halved(x):\n    return x / torch.ones(5)",
        "%%gradviz\nw = torch.ones(2, requires_grad=True)\nhalved(w).sum().backward()",
        "get_ipython().execution_count - 1",
    )
    (error,) = [output for output in cell if output["output_type"] == "error"]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert re.findall(r"Cell In\[\d+\], line \d+", lines) == ["Cell In[3], line 3", "Cell In[2], line 2"]
    assert shown(after, "text/plain") == "4"


def test_a_run_that_is_opened_shows_what_is_in_it(outputs: Any) -> None:
    _, cell = outputs(
        "%%gradviz -o cell.gradviz\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()",
        "gradviz.open('cell.gradviz')",
    )
    summary, heads, leaf = shown(cell, "text/plain").splitlines()
    assert re.fullmatch(r"In\[2\] · 2 operations, 1 backward pass, \d+ events · ended: ok", summary)
    assert heads.split() == ["leaf", "shape", "requires_grad", ".grad", "made", "at"]
    assert leaf.split() == ["w", "(2,)", "True", "yes", "In[2]:2"]
    assert shown(cell, "text/html").count("<tr>") == 2


def test_the_findings_of_a_cell_are_a_table_above_its_picture(outputs: Any) -> None:
    cell, checked, in_vs_code, reason, rows = outputs(
        "%%gradviz -o cell.gradviz\nw = torch.ones(2, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for _ in range(3):\n    loss = (w * w).sum()\n    loss.backward()\n    optimizer.step()",
        "gradviz.check('cell.gradviz')",
        "__vsc_ipynb_file__ = 'lesson.ipynb'  # as VS Code's kernels have it\ngradviz.check('cell.gradviz')",
        "gradviz.why('cell.gradviz', 'w')",
        "gradviz.open('cell.gradviz').sql('SELECT pass, loss FROM passes')",
    )
    table, picture = (output["data"] for output in cell if output["output_type"] != "stream")
    assert "stale-gradient" in table["text/html"]
    assert "In[2] · pass 2 of 3, with the first finding" in picture["image/svg+xml"].replace("\u00a0", " ")
    assert "finding 1: stale" in picture["image/svg+xml"].replace("\u00a0", " ")
    assert ">In[2]:6<" in shown(checked, "text/html")
    link = '<a href="vscode-notebook-cell:?execution_count=2&amp;line=6">In[2]:6</a>'
    assert link in shown(in_vs_code, "text/html")
    assert "gradient of w" in shown(reason, "text/html")
    assert "In[2]:6</a>  backward()" in shown(reason, "text/html")
    assert shown(rows, "text/html").count("<tr>") == 4
    assert shown(rows, "text/plain").splitlines()[0].split() == ["pass", "loss"]


def test_a_wrong_option_gets_one_line(outputs: Any) -> None:
    (cell,) = outputs("%%gradviz --value full\n1")
    assert printed(cell).startswith("%%gradviz: No such option")
    assert printed(cell).count("\n") == 1


COUNTING = """
from gradviz import magic, notebook, replaying
checks = []
def counted(*arguments):
    checks.append(arguments)
    return replaying.quick_report(*arguments)
magic.quick_report = notebook.quick_report = counted
"""


@pytest.mark.parametrize("option", ["", "--page"])
def test_a_cell_is_checked_once(outputs: Any, option: str) -> None:
    cell = "x = torch.tensor(3.0, requires_grad=True)\n(x * x).backward()"
    *_, told = outputs(COUNTING, f"%%gradviz {option}\n{cell}", "print(len(checks))")
    assert printed(told) == "1\n"


def test_a_trace_is_drawn_and_shown_as_a_page(outputs: Any, tmp_path: Path, browser: Any) -> None:
    drawn, page, opened = outputs(
        "with gradviz.record('run.gradviz'):\n"
        "    x = torch.tensor(3.0, requires_grad=True)\n    (x * x).backward()\n"
        "gradviz.draw('run.gradviz')",
        "gradviz.show('run.gradviz')",
        "with gradviz.open('run.gradviz') as trace:\n    picture = gradviz.draw(trace)\npicture",
    )
    assert "MulBackward0" in shown(drawn, "image/svg+xml")
    frame = shown(page, "text/html")
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    assert len(shown(page, "text/plain")) < 100  # not the page once more
    assert frame.endswith(">The page is hidden until you trust this notebook.</iframe>")
    assert "MulBackward0" in shown(opened, "image/svg+xml")
    _opens_in_a_browser(frame, tmp_path, browser)


def _opens_in_a_browser(frame: str, folder: Path, browser: Any) -> None:
    """The frame that a notebook shows works as a page."""
    file = folder / "frame.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{frame}")
    tab = browser.new_page()
    tab.goto(file.as_uri())
    inside = tab.frame_locator("iframe")
    inside.locator("body[data-ready]").wait_for(timeout=30_000)
    assert inside.locator("#nodes .node").count() > 3
    tab.close()


def test_a_place_in_a_cell_is_the_cell_as_its_reader_sees_it(outputs: Any) -> None:
    defined, ran, again = outputs(
        "def loss_of(w):\n    return (w * w).sum()",
        "w = torch.ones(2, requires_grad=True)\n"
        "with gradviz.record('run.gradviz'):\n    loss = loss_of(w)\n    loss.backward()",
        "sorted({(site.place.file, site.place.line) for site in gradviz.open('run.gradviz').sites.values()})",
    )
    assert not defined
    assert not ran
    assert shown(again, "text/plain") == "[('In[2]', 2), ('In[3]', 3), ('In[3]', 4)]"
