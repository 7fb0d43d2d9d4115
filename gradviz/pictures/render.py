"""Writes a graph to a file, in the format of the file's ending."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gradviz.errors import GradvizError
from gradviz.graph.model import Graph, to_json
from gradviz.pictures import style
from gradviz.pictures.dot import dot_of
from gradviz.pictures.ladder import laid_out
from gradviz.pictures.layout import LayoutError
from gradviz.pictures.legend import legend
from gradviz.pictures.mermaid import to_mermaid
from gradviz.pictures.pdf import to_pdf
from gradviz.pictures.png import note_on, to_png
from gradviz.pictures.scene import Scene, scene_of
from gradviz.words.escape import json_text

PAGE = ".html"  # made from a trace, not from a graph: see gradviz.page


class DrawError(GradvizError):
    """A graph could not be drawn or written. The message is one line: the problem and a remedy."""


def save(graph: Graph | Scene, path: Path | str, theme: str = "light", rankdir: str = "TB") -> str:
    """Write the graph to a file, in the format of the ending. The `theme`, light or dark, applies to .svg, .png and
    .pdf, and `rankdir` to these and .dot: TB from top to bottom, LR from left to right. Returns a note about the
    file, which is usually empty. Raises DrawError."""
    path = Path(path)
    check_path(path)
    ending = path.suffix.lower()
    if ending == PAGE:
        raise DrawError("a page needs a trace: `gradviz graph TRACE -o FILE.html` writes it")
    if isinstance(graph, Scene):
        if ending in _WRITERS:
            raise DrawError(
                f"a textbook's picture cannot be written as {ending}: use one of {' '.join(_PAINTERS)}"
            )
        return _save_drawn(graph, path, theme)
    if ending in _WRITERS:
        write(path, _WRITERS[ending](graph).encode())
        return ""
    return _save_drawn(replace(scene_of(graph), rankdir=rankdir), path, theme)


def _save_drawn(scene: Scene, path: Path, theme: str) -> str:
    drawing = _drawn(scene, path.suffix.lower(), theme)
    write(path, drawing.content)
    return drawing.note


def write(path: Path, content: bytes) -> None:
    """Write a file. Raises DrawError."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DrawError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def save_legend(path: Path | str, theme: str = "light") -> None:
    """Draw the legend into a file. Raises DrawError."""
    path = Path(path)
    check_path(path)
    ending = path.suffix.lower()
    if ending not in _PAINTERS:
        raise DrawError(f"a legend cannot be written as {ending}: use one of {' '.join(_PAINTERS)}")
    _save_drawn(legend(), path, theme)


def check_path(path: Path) -> None:
    """Raise DrawError if a graph cannot be written to a file with this name."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DrawError(f"{path.name} has no known ending: use one of {' '.join(ENDINGS)}")
    if ending == ".pdf" and find_spec("fpdf") is None:
        raise DrawError("a .pdf needs fpdf2: pip install fpdf2, or save it as .svg or .png")
    if path.is_dir():
        raise DrawError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise DrawError(f"cannot write {path}: there is no directory {path.parent}")


def svg(graph: Graph | Scene, theme: str = "light") -> str:
    """The graph as an SVG document. Raises DrawError if the requested layout engine is not available."""
    return _svg(graph if isinstance(graph, Scene) else scene_of(graph), theme)


class _Drawing(NamedTuple):
    """The content of a file, and a note about it."""

    content: bytes
    note: str = ""


def _png(scene: Scene, theme: str) -> _Drawing:
    document = _svg(scene, theme)
    return _Drawing(to_png(document), note_on(document))


def _drawn(scene: Scene, ending: str, theme: str) -> _Drawing:
    try:
        return _PAINTERS[ending](scene, theme)
    except DrawError:
        raise
    except ValueError as error:
        raise DrawError(str(error)) from error
    except ImportError as error:
        raise DrawError(f"a {ending} cannot be made here ({error}): save it as .svg") from error


def _svg(scene: Scene, theme: str) -> str:
    try:
        return style.themed(_style_text(laid_out(scene), scene), theme)
    except LayoutError as error:
        raise DrawError(str(error)) from error


_TAG = re.compile(r'<g id="([^"]+)" class="(node|edge|cluster|graph)\b|<text ')


def _style_text(document: str, scene: Scene) -> str:
    """Give each line of text the class and look of its role, which DOT cannot express."""
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

    return _TAG.sub(styled, document)


_PAINTERS: dict[str, Callable[[Scene, str], _Drawing]] = {
    ".svg": lambda scene, theme: _Drawing(_svg(scene, theme).encode()),
    ".png": _png,
    ".pdf": lambda scene, theme: _Drawing(to_pdf(_svg(scene, theme))),
    ".dot": lambda scene, _: _Drawing(dot_of(scene).encode()),
}
SCENES = (*_PAINTERS,)  # the endings of the formats that a scene can be written in
_WRITERS: dict[str, Callable[[Graph], str]] = {
    ".mmd": to_mermaid,
    ".json": lambda graph: json_text(to_json(graph), 1),
}
ENDINGS = (*_PAINTERS, *_WRITERS, PAGE)
