"""How many small faults in gradviz's own code the tests find.

    python benchmarks/mutants.py [--count 200] [--seed 0] [--room query] [PYTEST ARGUMENTS]

Each mutant is one change of the code: another comparison, another number, a condition that is turned round, or a
statement that is left out. It is made in a copy of the repository, and the tests of its room run there (`tests/ROOM`),
with `--everything` or other arguments if they are given. A mutant is killed if a test fails or the tests take too long.
Prints each survivor with its line, and the shares by room. The same seed makes the same mutants of the same code."""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 600  # seconds, for the tests of a mutant
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


def is_killed(mutant: Mutant, copy: Path, arguments: list[str]) -> bool:
    """Whether a test of the room of a mutant fails, or takes too long, in a copy of the repository."""
    room = mutant.file.parts[1]
    tests = f"tests/{room}" if (ROOT / "tests" / room).is_dir() else "tests/whole"
    original = (copy / mutant.file).read_bytes()
    (copy / mutant.file).write_bytes(mutant.source())
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", tests, *arguments]
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        return subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=TIMEOUT).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        (copy / mutant.file).write_bytes(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", default="")
    options, arguments = parser.parse_known_args()
    files = [file.relative_to(ROOT) for file in sorted((ROOT / "gradviz" / options.room).rglob("*.py"))]
    every = [mutant for file in files if file.parts[1] != "__main__.py" for mutant in mutants_of(file)]
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    killed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "*.gradviz"))
        for mutant in chosen:
            room = mutant.file.parts[1]
            tried[room] += 1
            if is_killed(mutant, copy, arguments):
                killed[room] += 1
            else:
                print(f"survived: {mutant}", flush=True)
    for room, count in sorted(tried.items()):
        print(f"{room}: {killed[room]} of {count} killed")
    print(f"{killed.total()} of {tried.total()} mutants killed")


if __name__ == "__main__":
    main()
