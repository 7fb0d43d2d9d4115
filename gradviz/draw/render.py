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
from gradviz.draw.layout import LayoutError, to_svg
from gradviz.draw.lines import lines_of
from gradviz.draw.mermaid import to_mermaid
from gradviz.draw.png import to_png
from gradviz.graph.model import Graph, to_json

MOST_NODES = 5000  # in a picture
PAGE = ".html"  # is made of a trace, not of a graph alone: see gradviz.draw.page


class DrawError(ValueError):
    """A graph could not be drawn or written. The message is one line: what is wrong, and what to do."""


def save(graph: Graph, path: Path | str, theme: str = "light") -> None:
    """Write the graph into a file, of the kind that its ending says. The `theme`, light or dark, is that of .svg
    and .png. Raises DrawError."""
    path = Path(path)
    check_path(path)
    if path.suffix.lower() == PAGE:
        raise DrawError("a page is made of a trace: `gradviz graph TRACE -o FILE.html` writes it")
    content = _WRITERS[path.suffix.lower()](graph, theme)
    write(path, content)


def write(path: Path, content: bytes) -> None:
    """Write a file. Raises DrawError."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DrawError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def check_path(path: Path) -> None:
    """Raise DrawError where a graph cannot be written to a file of this name."""
    ending = path.suffix.lower()
    if ending not in (*_WRITERS, PAGE):
        known = " ".join((*_WRITERS, PAGE))
        raise DrawError(f"{path.name} has no ending that says what to write: use one of {known}")
    if ending == ".pdf" and shutil.which("dot") is None:
        raise DrawError("a .pdf needs Graphviz's `dot` on PATH, and there is none: use .svg")
    if path.is_dir():
        raise DrawError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise DrawError(f"cannot write {path}: there is no directory {path.parent}")


def svg(graph: Graph, theme: str = "light") -> str:
    """The graph as an SVG document. Raises DrawError where it is too large or cannot be laid out."""
    try:
        return style.themed(_style_text(to_svg(_drawable(graph)), graph), theme)
    except LayoutError as error:
        raise DrawError(str(error)) from error


def _drawable(graph: Graph) -> str:
    if len(graph.nodes) > MOST_NODES:
        raise DrawError(
            f"a picture of {len(graph.nodes):,} nodes would be too large (at most {MOST_NODES:,}): draw one pass "
            "of it (--pass N), only its --show forward or backward, or save it as .json or .dot"
        )
    return to_dot(graph)


_TAG = re.compile(r'<g id="([^"]+)" class="(node|edge|cluster|graph)\b|<text ')


def _style_text(document: str, graph: Graph) -> str:
    """Give each line of a node its role's class and look, which DOT has no words for."""
    roles: list[str] = []

    def styled(match: re.Match[str]) -> str:
        if match[1] is not None:
            node = graph.nodes.get(match[1]) if match[2] == "node" else None
            roles[:] = [] if node is None else [role for role, _ in reversed(lines_of(node, graph.show))]
            return match[0]
        if not roles:
            return match[0]
        role = roles.pop()
        look = "; ".join(f"{name}: {text}" for name, text in style.LINES[role].items())
        return f'<text class="{role}" style="{look}" ' if look else f'<text class="{role}" '

    return _TAG.sub(styled, document)


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
        run = subprocess.run(
            [dot, "-Tpdf"], input=_drawable(graph).encode(), capture_output=True, timeout=120
        )
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
