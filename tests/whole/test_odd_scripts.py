"""The script is never changed: odd programs do under gradviz what they do under `python`.

Each runs plain and recorded, at the same time, in directories of its own: as a fork of a Python that is in memory
where it does not look at how the interpreter begins and ends. What they print, how they end and what files they leave
has to be the same. `python -m tests.whole.test_odd_scripts [PYTHON]` prints all that differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.warm import python
from tests.whole.odd_scripts import DEBUG_DIFFERS, DEBUGGED, OWN_PYTHON, SCRIPTS, WITH_TORCH, Odd

ROOT = Path(__file__).parents[2]
TIMEOUT = 300
WAYS = {
    "trace": ["-m", "gradviz", "trace", "--engine", "numpy", "-o", "../trace.gradviz"],
    "debug": ["-m", "gradviz", "debug", "--engine", "numpy", "--no-nan", "--run", "--commands", "continue",
              "-o", "../debug.gradviz"],
    "torch": ["-m", "gradviz", "trace", "--engine", "torch", "-o", "../torch.gradviz"],
}  # fmt: skip
_DEBUGGED = {odd.name for odd in DEBUGGED} - DEBUG_DIFFERS.keys()


@dataclass(frozen=True)
class Seen:
    """What somebody outside sees of a program."""

    status: int | str
    out: str
    err: str
    files: dict[str, bytes | None]  # that it changed, None for one that is gone


def environment(python: str, more: dict[str, str]) -> dict[str, str]:
    """A plain environment, in which `python` is the interpreter."""
    return {
        "PATH": f"{Path(python).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "HOME": "/nowhere",
        **{name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
        **more,
    }


def run(odd: Odd, way: str, folder: Path, python: str = sys.executable) -> Seen:
    """Run a program `plain`, or in one of the ways of gradviz."""
    here = folder / way.ljust(5, "_")
    here.mkdir()
    if odd.text or odd.words[0] == "script.py":
        (here / "script.py").write_text(odd.source, encoding="utf-8")
    for name, content in odd.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    env = environment(python, odd.env)
    if odd.setup:
        subprocess.run(["sh", "-c", odd.setup], cwd=here, env=environment(python, {}), check=True)
    before = files_of(here)
    words = [os.fsencode(word) for word in (python, *WAYS.get(way, []), *odd.words)]
    started = subprocess.Popen(
        ["sh", "-c", odd.shell, "sh", *words], cwd=here, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = started.communicate(odd.stdin.encode(), timeout=TIMEOUT)
        status: int | str = started.returncode
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, 9)
        out, err = started.communicate()
        status = "hangs"
    changed = {name: content for name, content in files_of(here).items() if before.get(name) != content}
    gone = dict.fromkeys(before.keys() - files_of(here).keys())
    return Seen(status, shown(out, here), shown(without_ours(err), here), changed | gone)


def without_ours(err: bytes) -> bytes:
    """What is not gradviz's own."""
    return b"".join(line for line in err.splitlines(keepends=True) if not line.startswith(b"gradviz: "))


def shown(text: bytes, here: Path) -> str:
    """Output without what differs between two runs of one program: its directory, addresses, process ids."""
    plain = text.decode("utf-8", "backslashreplace").replace(str(here), "<here>")
    return re.sub(r"(pid=|0x|object refcount : )[0-9a-f]+|\btmp\w{8}\b", r"\1…", plain)


def files_of(here: Path) -> dict[str, bytes]:
    """The files that are there, and what is in them."""
    return {
        str(path.relative_to(here)): path.read_bytes()
        for path in sorted(here.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and "tmp" not in path.parent.name
    }


def ways_of(odd: Odd) -> list[str]:
    """In which ways of gradviz's a program is to do what it does under `python`."""
    if odd in WITH_TORCH:
        return ["torch"]
    return ["trace", "debug"] if odd.name in _DEBUGGED else ["trace"]


def is_for(odd: Odd, version: tuple[int, ...]) -> bool:
    return odd.since <= version < odd.before


SUPPORTED = [odd for odd in SCRIPTS if is_for(odd, sys.version_info)]


def check(odd: Odd, folder: Path) -> None:
    ways = ways_of(odd)
    program = sys.executable if odd.name in OWN_PYTHON else python(torch=odd in WITH_TORCH)
    with ThreadPoolExecutor(3) as pool:
        plain, *recorded = pool.map(lambda way: run(odd, way, folder, program), ("plain", *ways))
    for way, seen in zip(ways, recorded, strict=True):
        assert compared(seen, way) == plain


@pytest.mark.slow
@pytest.mark.parametrize("odd", SUPPORTED, ids=lambda odd: odd.name)
def test_a_program_does_what_it_does_under_python(odd: Odd, tmp_path: Path) -> None:
    check(odd, tmp_path)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("odd", WITH_TORCH, ids=lambda odd: odd.name)
def test_a_program_of_pytorchs_does_what_it_does_under_python(odd: Odd, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    check(odd, tmp_path)


def compared(seen: Seen, way: str) -> Seen:
    """What is to be the same. The debugger shows on stderr where an error was raised before Python does, and what it
    sees at the end."""
    if way != "debug":
        return seen
    err = seen.err.partition("the script has ended (")[0]
    _, stopped, after = err.partition("> continue\n")
    return replace(seen, err=after if stopped else err)


def main(python: str, names: list[str]) -> None:
    """Print what differs."""
    told = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"]).split()
    version = tuple(map(int, told))
    has_torch = not subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
    every = [*SCRIPTS, *(WITH_TORCH if has_torch else [])]
    chosen = [odd for odd in every if (not names or odd.name in names) and is_for(odd, version)]
    count = 0

    def all_ways(odd: Odd) -> tuple[Odd, list[Seen]]:
        with TemporaryDirectory() as folder:
            return odd, [run(odd, way, Path(folder), python) for way in ("plain", *ways_of(odd))]

    with ThreadPoolExecutor(3) as pool:
        for odd, (plain, *recorded) in pool.map(all_ways, chosen):
            for way, seen in zip(ways_of(odd), recorded, strict=True):
                if compared(seen, way) == plain:
                    continue
                count += 1
                print(f"--- {odd.name}: {way}", flush=True)
                for part in ("status", "out", "err", "files"):
                    a, b = getattr(plain, part), getattr(seen, part)
                    if a != b:
                        print(f"    {part}: {str(a)[-700:]!r}\n      → {str(b)[-700:]!r}")
    print(f"{len(chosen)} programs, {count} differences")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.executable, sys.argv[2:])
