"""The programs of the gallery: each is drawn on a page, and none is accused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = sorted((Path(__file__).parent.parent / "examples/gallery").glob("*.py"))
LONGEST = 2500  # points, in the longer direction

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_fits_on_a_page_and_is_not_accused(program: Path, tmp_path: Path) -> None:
    def gradviz(*words: str) -> str:
        command = [sys.executable, "-m", "gradviz", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    gradviz("trace", "-o", "run.gradviz", str(program))
    assert re.search(r"^(no findings|\d+ notes?) ·", gradviz("check", "run.gradviz"), re.MULTILINE)
    gradviz("graph", "run.gradviz", "-o", "run.svg")
    sizes = re.findall(r'(?:width|height)="(\d+)pt"', (tmp_path / "run.svg").read_text())
    assert max(map(int, sizes)) <= LONGEST
