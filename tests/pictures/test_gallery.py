"""The programs of the gallery: each is drawn on a page, and none is accused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import gradviz
from gradviz.cli.drawing import Choice, draw
from tests.warm import python

pytest.importorskip("torch")

PROGRAMS = sorted((Path(__file__).parents[2] / "examples/gallery").glob("*.py"))
LONGEST = 2500  # points, in the longer direction

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_fits_on_a_page_and_is_not_accused(program: Path, tmp_path: Path) -> None:
    recorded, picture = tmp_path / "run.gradviz", tmp_path / "run.svg"
    command = [python(), "-m", "gradviz", "trace", "-q", "-o", str(recorded), str(program)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert gradviz.check(recorded).at_least("warning") == []
    with gradviz.open(recorded) as trace:
        draw([trace], picture, Choice())
    sizes = re.findall(r'(?:width|height)="(\d+)pt"', picture.read_text())
    assert max(map(int, sizes)) <= LONGEST


def test_the_table_of_the_gallery_has_the_sizes_of_its_pictures() -> None:
    folder = Path(__file__).parents[2] / "docs/gallery"
    told = re.findall(
        r"^\| \[(\w+)\]\(\1\.svg\) \|.*?\| (\d+) × (\d+), ", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert [name for name, *_ in told] == [program.stem for program in PROGRAMS]
    for name, width, height in told:
        drawn = re.findall(r'(?:width|height)="(\d+)pt"', (folder / f"{name}.svg").read_text())[:2]
        assert (name, drawn) == (name, [width, height])
