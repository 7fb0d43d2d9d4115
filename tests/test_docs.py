"""The documentation's commands run as written, in the order written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
INSTALLS = re.compile(r"^pip install [^&]*(&& )?")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The commands of a page, without the installation that this environment has behind it."""
    lines = [
        line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")
    ]
    return [command for line in lines if (command := INSTALLS.sub("", line)) not in ("", "pytest")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory as a reader of the documentation has it: the examples, a trace, a lesson."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "lesson.py").write_text((ROOT / "examples/leaves.py").read_text().replace("gradviz as ", ""))
    run("gradviz trace examples/quickstart.py", tmp_path)
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    if words[0] == "gradviz":
        words[:1] = [sys.executable, "-m", "gradviz"]
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, folder: Path) -> None:
    for command in commands(page):
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_piece_of_python_in_a_page_runs(page: Path, folder: Path) -> None:
    for block in blocks(page, "python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_readme_shows_what_the_commands_print(folder: Path) -> None:
    told, stepped = blocks(ROOT / "README.md", "text")
    trace, step = commands(ROOT / "README.md")[:2]
    assert run(trace, folder).stderr == told
    assert run(step, folder).stdout.startswith(stepped.rstrip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_pictures_are_those_that_gradviz_draws_now(folder: Path) -> None:
    for picture in sorted((ROOT / "docs/images").glob("*.svg")):
        drawn = (
            f"trace examples/{picture.stem}.py --graph" if picture.stem != "legend" else "graph --legend -o"
        )
        done = run(f"gradviz {drawn} {picture.name}", folder)
        assert done.returncode == 0
        assert texts(folder / picture.name) == texts(picture), f"draw it again: {picture.name}"


def test_every_kind_of_thing_and_line_in_the_legend_is_explained(folder: Path) -> None:
    explained = (ROOT / "docs/reading-the-graph.md").read_text()
    for words in (
        "retains",
        "frozen",
        "written over",
        "in place",
        "cuts",
        "saved tensor",
        "NaN or inf",
        "group",
    ):
        assert words in explained.replace("**", "").lower() or words in explained.replace("**", "")
    keys = re.findall(
        r'^  \["(.+?)", "(.+?)"\],$', (ROOT / "gradviz/draw/page/main.js").read_text(), re.MULTILINE
    )
    page = (ROOT / "docs/page.md").read_text()
    assert len(keys) == 16
    for _, what in keys:
        assert what.removeprefix("chart of ") in page, what


def texts(svg: Path) -> list[str]:
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text()))
