"""A type checker knows the public API: it accepts what the docs show, and refuses each mistake. Its page is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api_reference import PAGE, page

SAMPLES = Path(__file__).parents[1] / "typing_samples"
# Half of mypy's time went to PyTorch's own types, which basedpyright reads: in mypy's eyes a tensor is Any.
SETTINGS = SAMPLES / "mypy.ini"
CHECKERS = {
    "mypy": ("-m", "mypy", "--strict", "--allow-untyped-calls", "--config-file", str(SETTINGS), "--no-error-summary"),
    "basedpyright": ("-m", "basedpyright", "--level", "error"),
}


Errors = dict[str, dict[int, str]]


@pytest.fixture(scope="module", params=CHECKERS)
def errors(request: pytest.FixtureRequest) -> Errors:
    """What a type checker refuses in each sample, by line. It reads the library once for all."""
    checker = request.param
    pytest.importorskip("torch")
    pytest.importorskip(checker, reason=f"{checker} is not installed: pip install -e '.[lint]'")
    samples = ["right.py", "wrong.py"]
    command = [sys.executable, *CHECKERS[checker], *(str(SAMPLES / sample) for sample in samples)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SAMPLES, timeout=300)
    found: Errors = {sample: {} for sample in samples}
    for sample, line, told in re.findall(r"(\w+\.py):(\d+)(?::\d+)?(?: -|:) error: (.*)", done.stdout):
        found[sample][int(line)] = told
    assert any(found.values()) == bool(done.returncode), done.stdout + done.stderr
    return found


@pytest.mark.slow
def test_what_the_docs_show_is_accepted(errors: Errors) -> None:
    assert errors["right.py"] == {}


@pytest.mark.slow
def test_each_mistake_is_refused(errors: Errors) -> None:
    lines = (SAMPLES / "wrong.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# refused" in line}
    assert len(marked) > 10
    assert errors["wrong.py"].keys() == marked


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_each_block_of_python_in_the_documentation_has_types(tmp_path: Path) -> None:
    """Those of the README are strict. In the docs, `.grad` is read as in a lesson, without asking for None first."""
    pytest.importorskip("mypy", reason="mypy is not installed: pip install -e '.[lint]'")
    root = SAMPLES.parents[1]
    pages = sorted(page for page in root.glob("docs/**/*.md") if not {"changes", "rules"} & {*page.parts})  # excerpts
    lenient = "# mypy: no-strict-optional, allow-untyped-defs\n"
    texts = {f"readme_{number}": block for number, block in enumerate(blocks(root / "README.md"))}
    of_pages = [block for page in pages for block in blocks(page)]
    assert texts
    assert of_pages
    texts |= {f"docs_{number}": f"{block}\n{lenient}" for number, block in enumerate(of_pages)}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, *CHECKERS["mypy"], *map(str, sorted(tmp_path.glob("*.py")))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SAMPLES, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_the_api_is_made_from_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.api_reference writes it"
