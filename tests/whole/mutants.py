"""How many small faults in gradviz's own code the tests find.

    python -m tests.whole.mutants [ROOM] [--count 200] [--seed 0] [--only 3 17] [--seconds 600] [PYTEST ARGUMENTS]

Each mutant is one change of the code: another comparison, another number, a condition that is turned round, or a
statement that is left out. ROOM is a folder or a file of the package. A mutant is made in a copy of the repository, and
the tests of its room run there (`tests/ROOM`), or the files that are given, with other arguments of pytest that are. It
is killed if a test fails or the tests take too long. Prints each with its number and line, and the shares by room. The
same seed makes the same mutants of the same code, of which `--only` tries some again."""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
          ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file, and the text from one offset in bytes to another that becomes other text."""

    file: Path
    line: int
    begin: int
    end: int
    text: str

    def source(self) -> bytes:
        """The whole file with the change."""
        content = (ROOT / self.file).read_bytes()
        return content[: self.begin] + self.text.encode() + content[self.end :]

    def __str__(self) -> str:
        old = (ROOT / self.file).read_bytes()[self.begin : self.end].decode()
        return f"{self.file}:{self.line}: {' '.join(old.split())[:60]}  →  {self.text[:60]}"


def mutants_of(file: Path) -> list[Mutant]:
    """All mutants of one file."""
    content = (ROOT / file).read_bytes()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(node: ast.expr | ast.stmt, text: str) -> Mutant:
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return Mutant(file, node.lineno, begin, end, text)

    found = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OTHERS:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            found.append(mutant(node, f"({left} {OTHERS[type(node.ops[0])]} {right})"))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            found.append(mutant(node, str(node.value + 1)))
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            found.append(mutant(node.test, f"(not ({ast.unparse(node.test)}))"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found.append(mutant(node, "pass"))
    return found


def python_of(copy: Path, folder: Path) -> Path:
    """A Python of its own that finds the copy and the packages that are installed here, as all that it starts does."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    installed = [place for place in sys.path if place.endswith("site-packages")]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "of_the_mutant.pth").write_text("\n".join([str(copy), *installed]))
    return folder / "bin" / "python"


def is_killed(mutant: Mutant, copy: Path, python: Path, seconds: int, arguments: list[str]) -> bool:
    """Whether a test of the room of a mutant fails, or the tests take too many seconds, in a copy of the repository."""
    room = mutant.file.parts[1]
    tests = [] if any(word.startswith("tests/") for word in arguments) else ["tests/whole"]
    if tests and (ROOT / "tests" / room).is_dir():
        tests = [f"tests/{room}"]
    command = [str(python), "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests, *arguments]
    subprocess.run([*command, "--collect-only"], cwd=copy, stdout=subprocess.DEVNULL, check=True)
    original = (copy / mutant.file).read_bytes()
    (copy / mutant.file).write_bytes(mutant.source())
    started = subprocess.Popen(command, cwd=copy, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        return started.wait(seconds) != 0
    except subprocess.TimeoutExpired:
        started.terminate()
        started.wait()
        return True
    finally:
        (copy / mutant.file).write_bytes(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of the mutants that are tried")
    parser.add_argument("--seconds", type=int, default=600, help="that the tests of a mutant may take")
    parser.add_argument("room", nargs="?", default="")
    options, arguments = parser.parse_known_args()
    place = ROOT / "gradviz" / options.room
    files = [file.relative_to(ROOT) for file in sorted(place.rglob("*.py")) or [place]]
    every = [mutant for file in files if file.parts[1] != "__main__.py" for mutant in mutants_of(file)]
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    killed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "*.gradviz"))
        python = python_of(copy, Path(folder) / "environment")
        for number, mutant in enumerate(chosen):
            if options.only and number not in options.only:
                continue
            room = mutant.file.parts[1]
            tried[room] += 1
            is_found = is_killed(mutant, copy, python, options.seconds, arguments)
            killed[room] += is_found
            print(f"{'killed' if is_found else 'SURVIVED'}: {number}: {mutant}", flush=True)
    for room, count in sorted(tried.items()):
        print(f"{room}: {killed[room]} of {count} killed")
    print(f"{killed.total()} of {tried.total()} mutants killed")


if __name__ == "__main__":
    main()
