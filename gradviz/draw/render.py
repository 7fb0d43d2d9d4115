"""A graph into a file: the ending says what kind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from gradviz.draw import style
from gradviz.draw.dot import to_dot
from gradviz.draw.ladder import laid_out
from gradviz.draw.layout import LayoutError
from gradviz.draw.mermaid import to_mermaid
from gradviz.draw.png import to_png
from gradviz.draw.scene import Scene, scene_of
from gradviz.graph.model import Graph, to_json


class DrawError(ValueError):
    """A graph could not be drawn or written. The message is one line: what is wrong, and what to do."""


def save(graph: Graph, path: Path | str, theme: str = "light") -> None:
    """Write the graph into a file, of the kind that its ending says. The `theme`, light or dark, is that of .svg
    and .png. Raises DrawError."""
    path = Path(path)
    check_path(path)
    content = _WRITERS[path.suffix.lower()](graph, theme)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DrawError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def check_path(path: Path) -> None:
    """Raise DrawError where a graph cannot be written to a file of this name."""
    ending = path.suffix.lower()
    if ending in _LATER:
        raise DrawError(f"{ending} cannot be written yet: use .svg")
    if ending not in _WRITERS:
        known = " ".join(_WRITERS)
        raise DrawError(f"{path.name} has no ending that says what to write: use one of {known}")
    if ending == ".pdf" and shutil.which("dot") is None:
        raise DrawError("a .pdf needs Graphviz's `dot` on PATH, and there is none: use .svg")
    if path.is_dir():
        raise DrawError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise DrawError(f"cannot write {path}: there is no directory {path.parent}")


def svg(graph: Graph, theme: str = "light") -> str:
    """The graph as an SVG document. Raises DrawError where the layout engine that was asked for is not there."""
    scene = scene_of(graph)
    try:
        return style.themed(_style_text(laid_out(scene), scene), theme)
    except LayoutError as error:
        raise DrawError(str(error)) from error


_TAG = re.compile(r'<g id="([^"]+)" class="(node|edge|cluster|graph)\b|<text ')
_PAIRS = re.compile(r'(?:<!-- cluster_\w+ -->\n)?<g id="[^"]*" class="cluster pair">.*?</g>\n', re.DOTALL)


def _style_text(document: str, scene: Scene) -> str:
    """Give each line of a thing its role's class and look, which DOT has no words for, and leave out the clusters
    that only kept pairs together."""
    roles: list[str] = []

    def styled(match: re.Match[str]) -> str:
        if match[1] is not None:
            thing = scene.things.get(match[1]) if match[2] == "node" else None
            roles[:] = [] if thing is None else [role for role, _ in reversed(thing.lines)]
            return match[0]
        if not roles:
            return match[0]
        role = roles.pop()
        look = "; ".join(f"{name}: {text}" for name, text in style.LINES[role].items())
        return f'<text class="{role}" style="{look}" ' if look else f'<text class="{role}" '

    return _TAG.sub(styled, _PAIRS.sub("", document))


def _png(graph: Graph, theme: str) -> bytes:
    try:
        return to_png(svg(graph, theme))
    except DrawError:
        raise
    except ValueError as error:
        raise DrawError(str(error)) from error


def _pdf(graph: Graph, theme: str) -> bytes:
    dot = shutil.which("dot") or "dot"
    try:
        run = subprocess.run([dot, "-Tpdf"], input=to_dot(graph).encode(), capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrawError(f"{dot} could not make a PDF ({error}): use .svg") from error
    if run.returncode or not run.stdout:
        raise DrawError(f"{dot} could not make a PDF: use .svg")
    return run.stdout


_WRITERS: dict[str, Callable[[Graph, str], bytes]] = {
    ".svg": lambda graph, theme: svg(graph, theme).encode(),
    ".png": _png,
    ".pdf": _pdf,
    ".dot": lambda graph, _: to_dot(graph).encode(),
    ".mmd": lambda graph, _: to_mermaid(graph).encode(),
    ".json": lambda graph, _: json.dumps(to_json(graph), indent=1, ensure_ascii=False).encode(),
}
_LATER = (".html",)
