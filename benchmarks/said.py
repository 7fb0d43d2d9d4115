"""What gradviz says about every program of the repository, as text that two versions of the code can be compared by.

    python benchmarks/said.py record FOLDER     run each program once, on each engine that can; keep the traces
    python benchmarks/said.py say FOLDER OUT    what is said about each trace, one file a trace
    python benchmarks/said.py compare OUT OTHER  how many files differ, by section, and the first differences

A change of `query/`, `diagnose/`, `graph/`, `words/` or a view leaves what is said about the same traces as it was, or
its commit shows the difference. A change of `sources/` or `tracefile/` records anew first. The programs: the zoo,
its training programs, the examples, and the programs of the study notes in tests/programs.
"""

from __future__ import annotations

import difflib
import json
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
_SECONDS = 120  # for a program
_WORKERS = 2
_FOLDERS = ("examples", "examples/faults", "examples/torch", "tests/programs", "tests/zoo/training")
_SHOWN_DIFFERENCES = 12
_STEPS = "first; next; next; next; leaves; last; back; where; graph; until nan; why"


def programs() -> Iterator[tuple[str, str, str]]:
    """Name, engine and text of each program."""
    from tests.zoo_programs import ALL

    for program in ALL:
        name = re.sub(r"\W+", "-", f"{program.name} {program.state}")
        for engine in ("torch",) if program.needs_torch else ("numpy", "torch"):
            yield name, engine, program.text
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            engine = "numpy" if "gradviz.engine" in text else "torch"
            yield f"{folder.replace('/', '-')}-{path.stem}", engine, text


def record(folder: Path) -> None:
    """Record each program into FOLDER/NAME.ENGINE/run.gradviz, in processes of their own."""
    work = [(folder / f"{name}.{engine}", engine, text) for name, engine, text in programs()]
    with multiprocessing.get_context("fork").Pool(_WORKERS, _load_pytorch) as pool:
        for place, status in pool.imap_unordered(_recorded, work, chunksize=1):
            if status not in (0, 1):
                print(f"{place.name}: status {status}")


def _load_pytorch() -> None:
    """Load PyTorch once in each worker, not in the process of each program."""
    import torch

    torch.set_num_threads(1)


def _recorded(work: tuple[Path, str, str]) -> tuple[Path, int]:
    place, engine, text = work
    place.mkdir(parents=True, exist_ok=True)
    (place / "program.py").write_text(text, encoding="utf-8")
    child = os.fork()
    if child == 0:
        from gradviz.sources.script import Target, run

        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(place)
        warnings.simplefilter("ignore")
        signal.alarm(_SECONDS)
        outcome = run(Target("program.py", False, []), Path("run.gradviz"), engine=engine)
        os._exit(min(outcome.status, 100))
    return place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def say(folder: Path, out: Path) -> None:
    """Write what is said about each trace of FOLDER into OUT/NAME.ENGINE.txt."""
    out.mkdir(parents=True, exist_ok=True)
    places = sorted(path.parent for path in folder.glob("*/run.gradviz"))
    with multiprocessing.get_context("fork").Pool(_WORKERS, maxtasksperchild=100) as pool:
        for _ in pool.imap_unordered(_said, [(place, out) for place in places], chunksize=4):
            pass


def _said(work: tuple[Path, Path]) -> None:
    place, out = work
    os.chdir(place)
    parts = [f"## {title}\n{_caught(section)}\n" for title, section in _SECTIONS.items()]
    (out / f"{place.name}.txt").write_text("\n".join(parts), encoding="utf-8")


def _caught(section: Callable[[], str]) -> str:
    """What a section says; the exception if it fails."""
    warnings.simplefilter("ignore")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        try:
            return section()
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def _command(*arguments: str) -> Callable[[], str]:
    def section() -> str:
        from tests.invoked import invoked

        result = invoked(arguments)
        return f"{result.stdout}{result.stderr}exit {result.exit_code}"

    return section


def _picture() -> str:
    said = _command("graph", "run.gradviz", "-o", "picture.dot")()
    picture = Path("picture.dot")
    text = picture.read_text(encoding="utf-8") if picture.exists() else ""
    picture.unlink(missing_ok=True)
    return f"{text}{said}"


def _cures() -> str:
    """The patch of each finding's cure."""
    import gradviz

    return "\n".join(
        f"{finding.rule}:{finding.line}\n{finding.patch.diff if finding.patch is not None else 'advice'}"
        for finding in gradviz.check("run.gradviz")
    )


def _why() -> str:
    """`why` of the first three leaves."""
    leaves = json.loads(_command("info", "run.gradviz", "--json")().rpartition("exit ")[0])["leaves"]
    return "\n".join(_command("why", "run.gradviz", leaf["name"])() for leaf in leaves[:3])


_SECTIONS: dict[str, Callable[[], str]] = {
    "check": _command("check", "run.gradviz", "--format", "json"),
    "check as text": _command("check", "run.gradviz"),
    "cures": _cures,
    "info": _command("info", "run.gradviz"),
    "picture": _picture,
    "why": _why,
    "step": _command("step", "run.gradviz", "--commands", _STEPS),
}


def compare(out: Path, other: Path) -> int:
    """Print how many files differ in each section, and the first differences; 1 if there are any."""
    differing: Counter[str] = Counter()
    shown = 0
    names = sorted({path.name for folder in (out, other) for path in folder.glob("*.txt")})
    for name in names:
        before, after = (_sections(folder / name) for folder in (out, other))
        for title in before.keys() | after.keys():
            if before.get(title) == after.get(title):
                continue
            differing[title] += 1
            if shown < _SHOWN_DIFFERENCES:
                shown += 1
                print(f"--- {name}: {title}")
                lines = difflib.unified_diff(
                    before.get(title, "").splitlines(), after.get(title, "").splitlines(), lineterm="", n=0
                )
                print("\n".join(line[:300] for line in list(lines)[2:14]))
    print(f"{len(names)} traces; differing: {dict(differing) or 'none'}")
    return int(bool(differing))


def _sections(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    _, *parts = re.split(r"^## (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def main() -> None:
    command, *folders = sys.argv[1:]
    commands = {"record": record, "say": say, "compare": compare}
    sys.exit(commands[command](*(Path(folder).resolve() for folder in folders)))


if __name__ == "__main__":
    main()
