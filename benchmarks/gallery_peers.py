"""The gallery's programs as torchview and torchviz draw them: the sizes and times of their pictures, or why there is
none.

    python benchmarks/gallery_peers.py [FOLDER]

writes docs/gallery/peers.md. The programs run as they are until their first backward(): torchviz is given the tensor
that it was called on, torchview the first module with parameters that was called, with the arguments of that call. The
pictures themselves go into FOLDER, if one is given. It needs PyTorch, torchview, torchviz and the system's `dot`."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples/gallery").glob("*.py"))
TOOLS = ("torchview", "torchviz")
LIMIT = 120  # seconds that a program and its picture may take
PAGE = """# The gallery beside torchview and torchviz

The [programs of the gallery](README.md), drawn by three tools: gradviz from a trace of the program as it is; torchviz
from the tensor of the first backward(), whose graph it shows node by node; torchview from the first module that has
parameters and the arguments of its call, with its defaults, which shows that module's forward, without a loss and
without gradients. `python benchmarks/gallery_peers.py` makes this page.

{table}

Sizes are in points. Times are CPU seconds with `dot`: of the whole command by gradviz, of a Python that has its byte
code, and without the start of the process and the program's own time by the others. {machine}
"""


def by_torchviz(root: Any, call: Any, path: Path) -> None:
    """Draw what a tensor was computed from."""
    dot = importlib.import_module("torchviz").make_dot(root)
    dot.render(outfile=str(path), cleanup=True)


def by_torchview(root: Any, call: Any, path: Path) -> None:
    """Draw a module's call."""
    module, args, kwargs = call
    torchview = importlib.import_module("torchview")
    drawn = torchview.draw_graph(module, input_data=args, device="cpu", save_graph=False, **kwargs)
    drawn.visual_graph.render(outfile=str(path), cleanup=True)


def draw_within(tool: str, program: Path, path: Path) -> None:
    """Run a program until its first backward, draw, print the CPU seconds, and end the process."""
    import torch

    calls: list[Any] = []
    call_module, backward = torch.nn.Module.__call__, torch.Tensor.backward

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not calls and torch.is_grad_enabled() and any(True for _ in module.parameters()):
            calls.append((module, args, kwargs))
        return call_module(module, *args, **kwargs)

    def drawn(root: Any, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__call__, torch.Tensor.backward = call_module, backward  # type: ignore[method-assign]
        importlib.import_module(tool)
        start = _cpu()
        {"torchview": by_torchview, "torchviz": by_torchviz}[tool](root, calls[0], path)
        print(json.dumps({"seconds": _cpu() - start}), flush=True)
        os._exit(0)

    torch.nn.Module.__call__, torch.Tensor.backward = called, drawn  # type: ignore[method-assign,assignment]
    sys.argv = [str(program)]
    runpy.run_path(str(program), run_name="__main__")


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def cell(tool: str, program: Path, folder: Path) -> str:
    """What a tool makes of a program: `264 × 846, 1.0 s`, or why nothing."""
    path = folder / f"{program.stem}-{tool}.svg"
    command = [sys.executable, __file__, tool, str(program), str(path.resolve())]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"not done in {LIMIT} s"
    if done.returncode or not path.exists():
        lines = [line for line in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return f"fails: {lines[-1].partition(':')[0] if lines else 'no picture'}"
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return f"{size_of(path)}, {seconds:.2f} s"


def size_of(path: Path) -> str:
    """The width and the height of a picture, in points."""
    width, height = re.findall(r'(?:width|height)="(\d+)', path.read_text(encoding="utf-8"))[:2]
    return f"{int(width):,} × {int(height):,}"


def own(program: Path, folder: Path) -> str:
    """What gradviz makes of a program."""
    from gallery import gradviz

    gradviz(folder, "trace", "-q", str(program))
    _, seconds = gradviz(folder, "graph", f"{program.stem}.gradviz", "-o", f"{program.stem}.svg")
    return f"{size_of(folder / f'{program.stem}.svg')}, {seconds:.1f} s"


def main() -> None:
    from common import machine

    with tempfile.TemporaryDirectory() as place:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            [program.stem, own(program, folder), *(cell(tool, program, folder) for tool in TOOLS)]
            for program in PROGRAMS
        ]
    versions = [f"{tool} {importlib.import_module('importlib.metadata').version(tool)}" for tool in TOOLS]
    lines = [f"| {' | '.join(cells)} |" for cells in (["program", "gradviz", *versions], *rows)]
    lines.insert(1, "|" + "-|" * (2 + len(TOOLS)))
    text = PAGE.format(table="\n".join(lines), machine=machine())
    (ROOT / "docs/gallery/peers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        draw_within(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
