"""The table of what PyTorch gives where there is no derivative, and its page."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gradviz.engine as engine
from tests.versions import points as script

TABLE = json.loads(script.TABLE.read_text(encoding="utf-8"))


def test_the_engine_follows_a_version_of_the_table() -> None:
    assert engine.__torch_version__ in TABLE["versions"]


def test_the_page_is_what_the_script_prints() -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(TABLE)


def test_the_table_is_written_as_the_script_writes_it() -> None:
    assert script.TABLE.read_text(encoding="utf-8") == script.written(TABLE)


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
