"""What PyTorch gives where there is no derivative: the table, its page, and the points at which ops of a run are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gradviz
import gradviz.engine as engine
from gradviz.compare import parting
from gradviz.events.kinds import Kind
from gradviz.query.at_points import points_of
from gradviz.query.query import Query
from gradviz.tracefile import open_trace
from gradviz.words.defined_points import gradients, place
from tests.versions import points as script

TABLE = json.loads(script.TABLE.read_text(encoding="utf-8"))


def test_the_engine_follows_a_version_of_the_table() -> None:
    assert engine.__torch_version__ in TABLE["versions"]


def test_the_page_is_what_the_script_prints() -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(TABLE)


def test_the_table_is_written_as_the_script_writes_it() -> None:
    assert script.TABLE.read_text(encoding="utf-8") == script.written(TABLE)


@pytest.mark.slow
@pytest.mark.torch
def test_the_installed_pytorch_gives_what_the_table_says() -> None:
    torch = pytest.importorskip("torch")
    version = torch.__version__.partition("+")[0]
    if version not in TABLE["versions"]:
        pytest.skip(f"the table has no PyTorch {version}: python tests/versions/points.py build PYTHON...")
    calls = [call for call in script.hand_given() if "linalg" not in call.text]  # rounding differs by library
    compared = 0
    for text, call in script.recorded(calls)["calls"].items():
        rows = TABLE["calls"].get(text, {"rows": []})["rows"]
        known = {json.dumps(at): gradients for at, _, gradients in rows}
        for at, given in call["points"].items():
            if at in known and "gradients" in given:
                compared += 1
                expected = [known[at][first] for first in known[at] if first <= version][-1]
                assert _rounded(given["gradients"]) == _rounded(expected), (text, at)
    assert compared > 300


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return value if value is None or isinstance(value, str) else f"{value + 0.0:.3g}"


def _run(tmp_path: Path, source: str) -> Path:
    path, program = tmp_path / "run.gradviz", tmp_path / "program.py"
    program.write_text(source)
    with gradviz.record(path, values="full"):
        exec(compile(source, str(program), "exec"), {"torch": engine, "__name__": "__main__"})
    return path


@pytest.mark.parametrize(
    ("value", "call", "somewhere", "everywhere"),
    [
        ("[0.0, 0.0]", "torch.atan2(w, w)", ["at (0, 0): 0"], ["at (0, 0): 0"]),
        ("[0.0, 1.0]", "torch.sqrt(w)", ["at 0: ∞"], []),
        ("[0.0, 1.0]", "torch.relu(w)", ["at 0: 0"], []),
        ("[0.0, 0.0]", "w.norm()", ["for zeros: 0"], ["for zeros: 0"]),
        ("[[0.0, 0.0]]", "w.norm(dim=1)", ["for zeros: 0"], ["for zeros: 0"]),
        ("[2.0, 2.0]", "w.std()", ["for equal elements: 0"], ["for equal elements: 0"]),
        ("[2.0, 2.0]", "w.amax()", ["for equal elements: "], ["for equal elements: "]),  # it depends on how many
        ("[2.5, 1.0]", "w.clamp(min=2.5)", ["at 2.5: 1"], []),
        ("[2.5, 1.0]", "w.clamp(-1.0, 2.5)", ["at 2.5: 1"], []),
        ("[0.0, 1.0]", "w.pow(0.5)", ["at 0: ∞"], []),
        ("[0.0, 1.0]", "w.pow(2)", [], []),
        ("[3.0, 4.0]", "w.norm()", [], []),
    ],
)
def test_the_points_of_an_op_are_those_of_its_inputs(
    tmp_path: Path, value: str, call: str, somewhere: list[str], everywhere: list[str]
) -> None:
    path = _run(tmp_path, f"w = torch.tensor({value}, requires_grad=True)\n{call}.sum().backward()\n")
    with open_trace(path) as trace:
        query = Query(trace)
        op = next(query.tensors.op(event) for event in range(trace.count) if trace.kinds[event] == Kind.OP)
        for expected, everywhere_only in ((somewhere, False), (everywhere, True)):
            found = points_of(query, op, everywhere_only)
            texts = [f"{place(point)}: {gradients(point, '2.13.0')}" for point in found]
            assert list(dict.fromkeys(texts)) == expected


def _messages(tmp_path: Path, source: str) -> list[str]:
    rules = ("zero-gradient", "singular-derivative")
    return [one.message for one in gradviz.check(_run(tmp_path, source)).findings if one.rule in rules]


ANGLE = """
w = torch.zeros(3, 2, requires_grad=True)
for step in range(3):
    w.grad = None
    torch.atan2(w[:, 1], w[:, 0]).sub(1.0).pow(2).mean().backward()
"""


def test_a_gradient_of_0_that_pytorch_defines_is_called_so(tmp_path: Path) -> None:
    assert _messages(tmp_path, ANGLE) == [
        "the gradient of w is 0 in every pass: at (0, 0) PyTorch 2.13 defines the gradient of"
        " torch.atan2(w[:, 1], w[:, 0]) as 0"
    ]


def test_a_gradient_that_is_0_at_other_values_is_not_called_0_for_any(tmp_path: Path) -> None:
    source = "w = torch.tensor([-1.0, 3.0], requires_grad=True)\nw.clamp(0.0, 1.0).sum().backward()\n"
    (message,) = _messages(tmp_path, source)
    assert message.endswith("w.clamp(0.0, 1.0) turns the gradient that it receives into 0")


def test_a_gradient_that_is_not_finite_is_what_pytorch_gives_there(tmp_path: Path) -> None:
    source = "w = torch.zeros(2, requires_grad=True)\ntorch.hypot(w, w).sum().backward()\n"
    assert _messages(tmp_path, source) == [
        "at (0, 0) PyTorch 2.13 gives NaN as the gradient of torch.hypot(w, w): a finite gradient becomes NaN"
    ]


@pytest.mark.parametrize(
    ("version", "value", "is_named"), [("2.15.0", 0.0, True), ("2.13.1", 0.0, False), ("2.15.0", 0.5, False)]
)
def test_diff_of_two_versions_names_the_op_whose_definition_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, value: float, is_named: bool
) -> None:
    source = f"w = torch.tensor([{value}, 1.0], requires_grad=True)\nw.clamp(min=0.0).sum().backward()\n"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one = _run(tmp_path / "one", source)
    monkeypatch.setattr("gradviz.engine.table.kernels.let_through", lambda g, where: g * 0)
    other = _run(tmp_path / "other", source)
    monkeypatch.setattr(parting, "version_of", lambda trace: version if trace.path.parent.name == "other" else "2.13.0")
    backward = parting.diff(one, other).backward
    assert backward is not None
    told = "its definition changed at 0: 1 in PyTorch 2.13, 0 in PyTorch 2.15"
    assert backward.definition == (told if is_named else "")
