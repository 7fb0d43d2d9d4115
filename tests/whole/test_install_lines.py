"""The distribution is `gradviz-recorder`; the index has another project called `gradviz`, which no line may install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRANGER = re.compile(r"\b(?:pip|pipx|uv|uv tool) install (?:-\S+ |\S+ )*?[\"']?gradviz(?:\[|[\s\"'`)]|$)")
TEXTS = sorted(
    path
    for pattern in ("*.md", "*.toml", "docs/**/*.md", "gradviz/**/*.py", "examples/**/*.py", "tests/**/*.py", ".ci/*")
    for path in ROOT.glob(pattern)
    if path != Path(__file__) and path.is_file()
)


@pytest.mark.parametrize(
    ("line", "is_strange"),
    [
        ("pip install gradviz", True),
        ("pip install -U gradviz[torch]", True),
        ('python -m pip install "gradviz[torch]"', True),
        ('pip install ".[torch]"', False),
        ("pip install . && gradviz trace examples/quickstart.py", False),
        ("pip uninstall gradviz, and in the checkout pip install --force-reinstall .", False),
    ],
)
def test_the_pattern_knows_a_line_that_installs_the_other_project(line: str, is_strange: bool) -> None:
    assert bool(STRANGER.search(line.partition("&&")[0])) == is_strange


@pytest.mark.slow
def test_no_line_installs_the_other_project() -> None:
    assert len(TEXTS) > 300
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if STRANGER.search(line.partition("&&")[0])
    ]
    assert lines == []


def test_the_distribution_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "gradviz-recorder"
    assert project["scripts"] == {"gradviz": "gradviz.cli.command_process:run"}
