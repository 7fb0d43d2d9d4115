"""The pictures, pages and reports of thirteen training programs, with their sizes and times.

    python benchmarks/gallery.py [FOLDER]

records each program of examples/gallery, and writes its picture (PROGRAM.svg) and a page with a table (README.md) into
FOLDER, docs/gallery if none is given. It needs PyTorch."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples/gallery").glob("*.py"))
PAGE = """# Gallery

Training programs in the manner of today's practice, each as `gradviz graph` draws it without options. The programs are
in `examples/gallery`. `python benchmarks/gallery.py` makes this page; [what torchview and torchviz draw of
them](peers.md) is beside it.

{table}

Sizes of pictures are in points. Times are CPU seconds of the whole command, of a Python that has the byte code
of gradviz. {machine}

{pictures}
"""


def gradviz(folder: Path, *words: str) -> tuple[str, float]:
    """What a command prints, and the CPU seconds that it takes."""
    start = _children()
    command = [sys.executable, "-m", "gradviz", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr, _children() - start


def _children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row_of(program: Path, folder: Path, pictures: Path) -> list[str]:
    """A row of the table; draws the picture."""
    name = program.stem
    told, _ = gradviz(folder, "trace", str(program))
    found = re.search(r"recorded ([\d,]+) operations, ([\d,]+) backward", told)
    assert found is not None, told
    findings, _ = gradviz(folder, "check", f"{name}.gradviz")
    _, drawing = gradviz(folder, "graph", f"{name}.gradviz", "-o", str(pictures / f"{name}.svg"))
    _, paging = gradviz(folder, "graph", f"{name}.gradviz", "-o", "page.html")
    _, reporting = gradviz(folder, "report", f"{name}.gradviz", "-o", "report.html")
    width, height = re.findall(r'(?:width|height)="(\d+)pt"', (pictures / f"{name}.svg").read_text())[:2]
    sizes = [(folder / page).stat().st_size / 1e6 for page in ("page.html", "report.html")]
    return [
        f"[{name}]({name}.svg)",
        found[1],
        found[2],
        f"{width} × {height}, {drawing:.1f} s",
        f"{sizes[0]:.1f} MB, {paging:.1f} s",
        f"{sizes[1] * 1000:,.0f} kB, {reporting:.1f} s",
        next(line for line in findings.splitlines() if "rules checked" in line).partition(" · ")[0],
    ]


def main() -> None:
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of(program, Path(folder), pictures.resolve()) for program in PROGRAMS]
    head = ["program", "operations", "passes", "picture", "page", "report", "check"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|" + "-|" * len(head))
    shown = [f"## {p.stem}\n\n{_about(p)}\n\n![{p.stem}]({p.stem}.svg)" for p in PROGRAMS]
    text = PAGE.format(table="\n".join(lines), machine=machine(), pictures="\n\n".join(shown))
    (pictures / "README.md").write_text(text, encoding="utf-8")


def _about(program: Path) -> str:
    """The first sentence of a program."""
    return program.read_text(encoding="utf-8").split('"""')[1].strip()


if __name__ == "__main__":
    main()
