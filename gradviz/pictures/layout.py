"""Converts DOT text to SVG text with an available Graphviz.

There are two engines, both programs that read DOT and write SVG. `dot` is the Graphviz of the system. `embedded` is
`graphviz-pure`, a port of Graphviz that `pip` installs with gradviz. Both give the same picture. `dot` is used if it
is on PATH and works, otherwise `embedded`; GRADVIZ_LAYOUT selects an engine."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import graphviz

from gradviz.graph.model import DATA, LEAF
from gradviz.pictures import style
from gradviz.pictures.scene import Link, Scene, Thing
from gradviz.sets import grouped
from gradviz.words.escape import plain, quoted

_FAST = {"nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1", "splines": "line"}
_LONG = 30  # characters
_COLUMNS = 6  # of the things without a link
_LOOP_ROOM = "\u00a0" * 2  # separates the label of a loop at one box from the next loop
_CALL = re.compile(r" \(\d+\)")  # the number of a second or later call of a module


def dot_of(scene: Scene, fast: bool = False) -> str:
    """The scene as DOT text. With `fast`, the layout is faster and less careful."""
    return _Writer(scene, fast).source()


class _Writer:
    """Writes one scene.

    The forward graph goes down, and the backward graph goes up beside it: a `grad` edge is written in the reverse
    direction with `dir=back`, so that it does not stretch the layout. An op and its grad_fn are in one row, the grad_fn
    on the right: the backward graph is the mirror image of the forward graph."""

    def __init__(self, scene: Scene, fast: bool) -> None:
        self.scene = scene
        self.dot = graphviz.Digraph(
            "gradviz", graph_attr={**style.GRAPH, "rankdir": scene.rankdir, **(_FAST if fast else {})}
        )

    def source(self) -> str:
        """The complete DOT text."""
        self.dot.attr(label=quoted([*self.scene.caption, " "], end="\\l"))
        self.dot.attr("node", **style.NODE)
        self.dot.attr("edge", **style.EDGE)
        scopes: dict[str, list[Thing]] = {"": []}
        for thing in self.scene.things.values():
            scopes.setdefault(thing.scope, []).append(thing)
        for scope, members in scopes.items():
            if scope:
                self._add_cluster(self.dot, scope, scope.partition("/")[0], members)
            else:
                self._add_things(self.dot, members)
        for link in self.scene.links:
            self._add_link(link)
        for above, below in self._guides():
            self.dot.edge(_name(above), _name(below), **style.GUIDE)
        return self.dot.source

    def _guides(self) -> Iterator[tuple[str, str]]:
        """For each frame, an input from outside with each leaf that is used only in the frame; and the things without a
        link, each with one of the row below.

        Invisible edges between them keep frames below one another. Without these edges, a layer's weights could be
        placed beside the previous layer, and the network would run diagonally; and what is not linked in one row."""
        things = self.scene.things
        order = {name: number for number, name in enumerate(things)}
        entries: dict[str, str] = {}
        inside: dict[str, str] = {}
        elsewhere: set[str] = set()
        for link in self.scene.links:
            if link.classes[0] != DATA:
                continue
            frame, source = things[link.target].scope, things[link.source]
            if frame and f"{source.scope}/".startswith(f"{frame}/"):
                if {LEAF, "version"} & {*source.classes} and source.scope == frame:
                    inside[source.id] = frame
                continue
            elsewhere.add(source.id)
            if frame:
                entries[frame] = max(entries.get(frame, source.id), source.id, key=order.__getitem__)
        for leaf, frame in inside.items():
            if frame in entries and leaf not in elsewhere:
                yield entries[frame], leaf
        linked = {end for link in self.scene.links for end in (link.source, link.target)}
        alone = [thing.id for thing in things.values() if not (thing.scope or thing.pair or thing.id in linked)]
        yield from zip(alone, alone[_COLUMNS:], strict=False)

    # --- things, scope by scope

    def _add_cluster(self, outer: Any, scope: str, path: str, members: list[Thing]) -> None:
        """Add things inside the nested clusters of their scope. DOT joins clusters of the same name."""
        # outer.subgraph() would copy its lines
        cluster = graphviz.Digraph(graphviz.escape(f"cluster {path}"))
        name, kind = path.rpartition("/")[2], self.scene.types.get(_CALL.sub("", path), "")
        mark = " " if kind.startswith("×") else " · "
        title = f"{plain(name, 40)}{mark}{plain(kind, 30)}" if kind and kind != name else plain(name, 40)
        cluster.attr(label=quoted([title]), **{"class": "scope"}, **style.CLUSTER)
        if path == scope:
            self._add_things(cluster, members)
        else:
            step = scope[len(path) + 1 :].partition("/")[0]
            self._add_cluster(cluster, scope, f"{path}/{step}", members)
        outer.subgraph(cluster)

    def _add_things(self, dot: Any, members: list[Thing]) -> None:
        """Add things. An op is next to its grad_fn, and a leaf next to its AccumulateGrad."""
        here = {thing.id for thing in members}
        paired: set[str] = set()
        for thing in members:
            if thing.id in paired:
                continue
            if thing.pair in here and thing.pair not in paired:
                paired.add(thing.pair)
                pair = graphviz.Digraph()
                pair.attr(rank="same")
                self._add_thing(pair, thing)
                self._add_thing(pair, self.scene.things[thing.pair])
                self._add_tie(pair, thing)
                dot.subgraph(pair)
            else:
                self._add_thing(dot, thing)
                if thing.pair:
                    self._add_tie(self.dot, thing)

    def _add_thing(self, dot: Any, thing: Thing) -> None:
        lines = [_roomy(text) if role in style.BOLD or len(text) > _LONG else text for role, text in thing.lines]
        names = {"id": thing.id, "class": " ".join(thing.classes), "tooltip": quoted([thing.tooltip])}
        dot.node(_name(thing.id), label=quoted(lines), **names, **style.look(style.NODES, thing.classes))

    def _add_tie(self, dot: Any, thing: Thing) -> None:
        """Connect an op with its grad_fn, or a leaf with the AccumulateGrad that sets its .grad."""
        fills = "filled" in self.scene.things[thing.pair].classes
        look = _reversed_arrow(style.FILLS) if fills else style.TIE
        dot.edge(_name(thing.id), _name(thing.pair), **{"class": "tie", "weight": "5"}, **look)

    # --- links

    def _add_link(self, link: Link) -> None:
        look = style.look(style.EDGES, link.classes)
        names = {"id": link.id, "class": " ".join(link.classes), "tooltip": quoted([link.tooltip])}
        if link.label:
            room = _LOOP_ROOM if link.source == link.target else ""
            names["label"] = quoted([f" {text} {room}" for text in link.label])
        if link.backward:
            self.dot.edge(_name(link.target), _name(link.source), **names, **_reversed_arrow(look))
        else:
            self.dot.edge(_name(link.source), _name(link.target), **names, **look)


def _name(node: str) -> str:
    """The name of a node in DOT, where text after a colon would be the port of another node."""
    return node.replace(":", "_")


def _roomy(text: str) -> str:
    """Text with spaces on both sides: Graphviz measures the text as not bold, and underestimates digits."""
    room = "\u00a0" * (1 + len(text) // 16 + len(text) // 22)
    return f"{room}{text}{room}"


def _reversed_arrow(look: dict[str, str]) -> dict[str, str]:
    """The attributes of an edge that is written in the reverse direction."""
    return {"dir": "back", **{"arrowtail" if key == "arrowhead" else key: text for key, text in look.items()}}


_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_DRAW_LESS = "draw less of it (fold it, or slice around a node)"
_TOO_SLOW = f"Graphviz did not finish in {{:g}} s: {_DRAW_LESS}, or give it more time"
_MEND_DOT = "save it as .dot and look for an unclosed quote or bracket in it"
_PACKAGE = "graphviz-pure"  # also the name of its program


class LayoutError(RuntimeError):
    """The graph could not be laid out. The message is one line: the problem and a remedy."""


class GaveUp(LayoutError):
    """Graphviz was too slow, failed, or is not available. The graph has to be laid out in another way."""


class TooSlow(GaveUp):
    """Graphviz did not finish in time."""


class Engine(NamedTuple):
    """A layout engine, as shown by `gradviz doctor`. `version` is None if the engine cannot run; `serves` is
    whether `to_svg` uses it."""

    name: str
    version: str | None
    where: str
    serves: bool


def to_svg(dot_source: str, engine: str | None = None, timeout: float = 60.0) -> str:
    """Lay out `dot_source` and return an SVG document.

    `engine` is "dot" or "embedded". None means the value of GRADVIZ_LAYOUT; without it, `dot` if it is on PATH, and
    `embedded` if there is no `dot` or it fails. Raises LayoutError if the DOT text is malformed, and GaveUp if the
    layout takes more than `timeout` seconds, or if no engine works."""
    clean_source = _NOT_IN_XML.sub("\ufffd", dot_source)
    *others, last = _engines_to_try(engine)
    for other in others:
        try:
            return other.svg(clean_source, timeout)
        except TooSlow:
            raise
        except GaveUp:
            continue  # the next engine may work
    return last.svg(clean_source, timeout)


def engines() -> list[Engine]:
    """Both engines, with whether `to_svg` uses them. Raises LayoutError if GRADVIZ_LAYOUT names an engine that is not
    available."""
    to_try = _engines_to_try(None)
    states = [(engine, *engine.state()) for engine in _ENGINES]
    serving = next((engine for engine, version, _ in states if engine in to_try and version is not None), None)
    return [Engine(engine.name, version, where, engine is serving) for engine, version, where in states]


def _engines_to_try(asked: str | None) -> list[_Engine]:
    name = asked or os.environ.get("GRADVIZ_LAYOUT")
    if not name:
        return [_DOT, _EMBEDDED] if _DOT.find() else [_EMBEDDED]
    engine = next((engine for engine in _ENGINES if engine.name == name), None)
    if engine is None:
        raise LayoutError(f"there is no layout engine {name!r}: use dot or embedded (GRADVIZ_LAYOUT also accepts rows)")
    if engine.find() is None:
        raise LayoutError(engine.missing)
    return [engine]


# ---- The programs


class _Engine(NamedTuple):
    """An engine: its name, its title in a message, a function that finds its program, the message if there is no
    program, and advice on how to do without it."""

    name: str
    title: str
    find: Callable[[], str | None]
    missing: str
    without_it: str

    def svg(self, dot_source: str, timeout: float) -> str:
        """Lay out and draw. Raises as `to_svg` does."""
        program = self.find()
        if program is None:
            raise GaveUp(self.missing)
        try:
            status, svg, complaint = _run([program, "-Tsvg"], dot_source.encode(), timeout)
        except subprocess.TimeoutExpired:
            raise TooSlow(_TOO_SLOW.format(timeout)) from None
        except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is being finalized
            cause = getattr(error, "strerror", None) or error
            raise GaveUp(f"{program} does not start ({cause}): {self.without_it}") from error
        if status:
            raise self._failure(status, complaint.decode(errors="replace"))
        if b"<svg" not in svg:
            raise LayoutError("this DOT text has no graph: it needs `digraph { ... }`")
        return svg.decode()

    def _failure(self, status: int, complaint: str) -> LayoutError:
        if status < 0:
            ended = f"{self.title} was ended by {signal.Signals(-status).name}"
            return GaveUp(f"{ended}: {_DRAW_LESS}, or {self.without_it}")
        errors = [line for line in complaint.splitlines() if line.startswith("Error: ")]
        error = errors[0].removeprefix("Error: ").removeprefix("<stdin>: ") if errors else f"exit status {status}"
        failed = f"{self.title} failed ({error.strip()})"
        if "syntax error" in error:
            return LayoutError(f"{failed}: {_MEND_DOT}")
        return GaveUp(f"{failed}: {self.without_it}")

    def state(self) -> tuple[str | None, str]:
        """The engine's version and the path of its program; or None and the reason why it does not work."""
        try:
            svg = self.svg("digraph { a }", timeout=10)
        except LayoutError as error:
            return None, str(error)
        version = re.search(r"Generated by graphviz version (\S+)", svg)
        return (version[1] if version else "of unknown version"), self.find() or self.missing


def _run(command: list[str], source: bytes, timeout: float) -> tuple[int, bytes, bytes]:
    """Run a program on `source`. Returns its status, its stdout and its stderr.

    Files are used instead of pipes: with several pipes and a timeout, `subprocess` starts threads on Windows, which
    is impossible while the interpreter ends."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(source)
        stdin.seek(0)
        status = subprocess.run(command, stdin=stdin, stdout=stdout, stderr=stderr, timeout=timeout).returncode
        stdout.seek(0)
        stderr.seek(0)
        return status, stdout.read(), stderr.read()


def _embedded_program() -> str | None:
    """The path of graphviz-pure's program; None if there is none. Its package lists the path; if it was installed
    with `pip --target`, the program is in a folder beside the packages."""
    return next((str(path) for path in _embedded_places() if path.is_file()), shutil.which(_PACKAGE))


def _embedded_places() -> Iterator[Path]:
    names = (_PACKAGE, f"{_PACKAGE}.exe")
    try:
        files = metadata.files(_PACKAGE)
    except metadata.PackageNotFoundError:
        files = None
    yield from (Path(os.path.normpath(str(file.locate()))) for file in files or () if file.name in names)
    packages = Path(__file__).parents[2]
    folders = (packages / "bin", packages / "Scripts", sysconfig.get_path("scripts"), Path(sys.executable).parent)
    yield from (Path(folder, name) for folder in folders for name in names)


_DOT = _Engine(
    "dot",
    "dot",
    lambda: shutil.which("dot"),
    "there is no `dot` on PATH: install Graphviz, or set GRADVIZ_LAYOUT=embedded to do without it",
    "set GRADVIZ_LAYOUT=embedded to do without it",
)
_EMBEDDED = _Engine(
    "embedded",
    "the embedded Graphviz",
    _embedded_program,
    f"{_PACKAGE} is not installed: pip install {_PACKAGE}, or install Graphviz, so that there is a `dot` on PATH",
    "install Graphviz, so that there is a `dot` on PATH",
)
_ENGINES = (_DOT, _EMBEDDED)


# Lays out a scene as SVG, with the best method that is fast enough.
#
# Up to FULL things, Graphviz uses its full quality, and up to FAST its faster settings. For larger scenes, or if
# Graphviz does not finish, things are placed in rows by `svg_of`; the caption mentions this.

# Limits for the number of things, or a third of the number of links if that is larger
FULL, FAST = 2_000, 5_000
PATIENCE = 20.0  # seconds for Graphviz


def laid_out(scene: Scene, patience: float = PATIENCE) -> str:
    """The scene as an SVG document. Raises layout.LayoutError if GRADVIZ_LAYOUT names an engine that is not
    available."""
    if os.environ.get("GRADVIZ_LAYOUT") == "rows":
        return svg_of(scene)
    size = max(len(scene.things), len(scene.links) // 3)
    if size > FAST:
        return svg_of(_noted(scene, f"placed in rows: {len(scene.things):,} things are too many for Graphviz"))
    try:
        return to_svg(dot_of(scene, fast=size > FULL), timeout=patience)
    except GaveUp as error:
        return svg_of(_noted(scene, f"placed in rows: {str(error).partition(':')[0]}"))


def _noted(scene: Scene, note: str) -> Scene:
    return replace(scene, caption=[*scene.caption[:1], note, *scene.caption[1:]])


_FONT_SIZE, _LINE = 10.0, 12.0
_CAPTION_SIZE, _CAPTION_LINE = 11.0, 14.0
_PAD = 16.0
_DASHES = {"dashed": "5,2", "dotted": "1,5"}
_HEAD = 7.0  # length of an arrowhead


def svg_of(scene: Scene) -> str:
    """The scene as an SVG document."""
    sizes = {name: _size(thing) for name, thing in scene.things.items()}
    places, (width, height) = placed(scene, sizes)
    above = _CAPTION_LINE * len(scene.caption) + 2 * _PAD
    places = {name: (x + _PAD, y + above) for name, (x, y) in places.items()}
    width = max(width, *(_text_width(line, _CAPTION_SIZE) for line in scene.caption)) + 2 * _PAD
    return "\n".join(_document(scene, places, sizes, (width, height + above + _PAD)))


def _document(scene: Scene, places: dict[str, Place], sizes: dict[str, Size], whole: Size) -> Iterator[str]:
    width, height = whole
    yield '<?xml version="1.0" encoding="UTF-8" standalone="no"?>'
    yield (
        f'<svg width="{width:.0f}pt" height="{height:.0f}pt" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="{style.FONT}" font-size="{_FONT_SIZE:g}">'
    )
    yield '<g id="graph0" class="graph">\n<title>gradviz</title>'
    yield f'<polygon fill="white" points="0,0 0,{height:.0f} {width:.0f},{height:.0f} {width:.0f},0"/>'
    for number, line in enumerate(scene.caption):
        y = _PAD + _CAPTION_LINE * number + _CAPTION_SIZE
        yield f'<text x="{_PAD:g}" y="{y:g}" font-size="{_CAPTION_SIZE:g}" fill="{style.INK}">{escape(line)}</text>'
    for thing in scene.things.values():
        if thing.pair:
            yield _tie(thing, scene.things[thing.pair], places, sizes)
    yield from (_link(link, places, sizes) for link in scene.links if link.classes != ["hidden"])
    for name, thing in scene.things.items():
        if thing.classes != ["spacer"]:
            yield _thing(thing, places[name], sizes[name])
    yield "</g>\n</svg>\n"


# ---- Things


def _text_width(text: str, size: float = _FONT_SIZE) -> float:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text) if not text.isascii() else 0
    return size * (0.61 * len(text) + 0.4 * wide)


def _size(thing: Thing) -> Size:
    """The size of a thing in points: width, height."""
    widest = max((_text_width(text) * (1.1 if role in style.BOLD else 1) for role, text in thing.lines), default=0.0)
    width, height = widest + 20, _LINE * len(thing.lines) + 10
    return (width * 1.2, height * 1.3) if thing.classes[0] == "op" else (width, height)


def _thing(thing: Thing, place: Place, size: Size) -> str:
    look = {**style.NODE, **style.look(style.NODES, thing.classes)}
    (x, y), (width, height) = place, size
    paint = (
        f'fill="{look.get("fillcolor", "white").partition(":")[0]}" stroke="{look.get("color", style.INK)}" '
        f'stroke-width="{look.get("penwidth", "1")}"{_dashes(look.get("style", ""))}'
    )
    parts = [f'<g id="{thing.id}" class="node {" ".join(thing.classes)}">', f"<title>{escape(thing.tooltip)}</title>"]
    for inset in range(int(look.get("peripheries", "1"))):
        w, h = width - 6 * inset, height - 6 * inset
        if look["shape"] == "ellipse":
            parts.append(f'<ellipse {paint} cx="{x:.1f}" cy="{y:.1f}" rx="{w / 2:.1f}" ry="{h / 2:.1f}"/>')
        else:
            corner = ' rx="8"' if "rounded" in look.get("style", "") else ""
            at = f'x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}"'
            parts.append(f"<rect {paint} {at}{corner}/>")
    top = y - _LINE * len(thing.lines) / 2 + 0.78 * _LINE
    for number, (_, text) in enumerate(thing.lines):
        at = f'x="{x:.1f}" y="{top + _LINE * number:.1f}"'
        parts.append(f'<text text-anchor="middle" {at} fill="{look.get("fontcolor", style.INK)}">{escape(text)}</text>')
    return "\n".join([*parts, "</g>"])


def _dashes(words: str) -> str:
    return next((f' stroke-dasharray="{dashes}"' for word, dashes in _DASHES.items() if word in words), "")


# ---- Links


def _tie(thing: Thing, pair: Thing, places: dict[str, Place], sizes: dict[str, Size]) -> str:
    fills = "filled" in pair.classes
    look = style.FILLS if fills else style.TIE
    (x1, y1), (x2, y2) = places[thing.id], places[pair.id]
    x1 += math.copysign(sizes[thing.id][0] / 2, x2 - x1)
    x2 -= math.copysign(sizes[pair.id][0] / 2, x2 - places[thing.id][0])
    line = f'<path fill="none"{_stroke(look)} d="M{x2:.1f},{y2:.1f} L{x1:.1f},{y1:.1f}"/>'
    head = _head(look, (x1, y1), (x1 - x2, y1 - y2)) if fills else ""
    return f'<g class="edge tie">{line}{head}</g>'


def _link(link: Link, places: dict[str, Place], sizes: dict[str, Size]) -> str:
    look = {**style.EDGE, **style.look(style.EDGES, link.classes)}
    (x1, y1), (x2, y2) = places[link.source], places[link.target]
    half1, half2 = sizes[link.source][1] / 2, sizes[link.target][1] / 2
    # from the bottom of the upper thing to the top of the lower, or the reverse
    if abs(y2 - y1) > half1 + half2:
        down = math.copysign(1, y2 - y1)
        y1, y2 = y1 + down * half1, y2 - down * half2
        bend = (y2 - y1) * 0.4 if abs(y2 - y1) < 200 else down * 60
        path = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
        direction = (0.0, down)
    else:  # in one row
        side = math.copysign(1, x2 - x1) if x1 != x2 else 0.0
        x1, x2 = x1 + side * sizes[link.source][0] / 2, x2 - side * sizes[link.target][0] / 2
        path = f"M{x1:.1f},{y1:.1f} Q{(x1 + x2) / 2:.1f},{min(y1, y2) - half1 - 14:.1f} {x2:.1f},{y2:.1f}"
        direction = (side, 0.6) if side else (0.0, 1.0)
    parts = [
        f'<g id="{link.id}" class="edge {" ".join(link.classes)}">',
        f"<title>{escape(link.tooltip)}</title>",
        f'<path fill="none"{_stroke(look)} d="{path}"/>',
        _head(look, (x2, y2), direction),
    ]
    ink = look.get("fontcolor", style.INK)
    for number, text in enumerate(link.label):
        at = f'x="{(x1 + x2) / 2 + 6:.1f}" y="{(y1 + y2) / 2 + 11 * number:.1f}"'
        parts.append(f'<text {at} font-size="9" fill="{ink}">{escape(text)}</text>')
    return "\n".join([*parts, "</g>"])


def _stroke(look: dict[str, str]) -> str:
    width = f' stroke-width="{look.get("penwidth", "1")}"'
    return f" stroke={quoteattr(look['color'])}{width}{_dashes(look.get('style', ''))}"


_HOLLOW = ("empty", "onormal", "odot")


def _head(look: dict[str, str], tip: Place, direction: tuple[float, float]) -> str:
    """An arrowhead: a triangle, a bar or a dot, filled or hollow, with Graphviz's names."""
    kind = look.get("arrowhead", "normal")
    size = math.hypot(*direction) or 1.0
    dx, dy = direction[0] / size, direction[1] / size
    (x, y), colour = tip, look["color"]
    fill = "white" if kind in _HOLLOW else colour
    if kind == "odot":
        return f'<ellipse fill="{fill}" stroke="{colour}" cx="{x - 3 * dx:.1f}" cy="{y - 3 * dy:.1f}" rx="3" ry="3"/>'
    length, half = (2.0, 5.0) if kind == "tee" else (_HEAD, 3.0)
    back_x, back_y = x - length * dx, y - length * dy
    across = half * dy, -half * dx
    corners = [(x + across[0], y + across[1]), (x - across[0], y - across[1])] if kind == "tee" else [(x, y)]
    corners += [(back_x - across[0], back_y - across[1]), (back_x + across[0], back_y + across[1])]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return f'<polygon fill="{fill}" stroke="{colour}" points="{points}"/>'


# Places the things of a scene in rows, in nearly linear time: for scenes that are too large for Graphviz.
#
# A thing is below everything that leads to it, an op beside its grad_fn, and a leaf directly above its first use. The
# order within a row follows the positions of neighbours (Sugiyama, Tagawa and Toda 1981: barycentres, a few sweeps).

Size = tuple[float, float]
Place = tuple[float, float]

_GAP, _PAIR_GAP, _ROW_GAP = 22.0, 34.0, 34.0
_WIDEST = 6000.0  # points; a wider row is split
_SWEEPS = 6


@dataclass(slots=True)
class _Unit:
    """A thing, or two things side by side."""

    things: list[Thing]
    width: float = 0.0
    height: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    row: int = 0
    x: float = 0.0


def placed(scene: Scene, sizes: Mapping[str, Size]) -> tuple[dict[str, Place], Size]:
    """The centre of each thing, and the size of the whole, in points; y grows downward. `sizes` are the sizes
    of the things."""
    units, home = _units(scene, sizes)
    _connect(units, scene, home)
    _rank(units)
    rows = _rows(units)
    for sweep in range(_SWEEPS):
        _sweep(units, rows if sweep % 2 == 0 else rows[::-1], down=sweep % 2 == 0)
    left = min((unit.x - unit.width / 2 for unit in units), default=0.0)
    right = max((unit.x + unit.width / 2 for unit in units), default=0.0)
    places: dict[str, Place] = {}
    y = 0.0
    for row in rows:
        height = max(units[number].height for number in row)
        for number in row:
            unit = units[number]
            x = unit.x - unit.width / 2 - left
            for thing in unit.things:
                width = sizes[thing.id][0]
                places[thing.id] = x + width / 2, y + height / 2
                x += width + _PAIR_GAP
        y += height + _ROW_GAP
    return places, (right - left, max(0.0, y - _ROW_GAP))


def _units(scene: Scene, sizes: Mapping[str, Size]) -> tuple[list[_Unit], dict[str, int]]:
    units: list[_Unit] = []
    home: dict[str, int] = {}
    for thing in scene.things.values():
        if thing.id in home:
            continue
        things = [thing]
        if thing.pair and thing.pair not in home and thing.pair != thing.id:
            things.append(scene.things[thing.pair])
        unit = _Unit(things)
        unit.width = sum(sizes[one.id][0] for one in things) + _PAIR_GAP * (len(things) - 1)
        unit.height = max(sizes[one.id][1] for one in things)
        home.update((one.id, len(units)) for one in things)
        units.append(unit)
    return units, home


def _connect(units: list[_Unit], scene: Scene, home: Mapping[str, int]) -> None:
    """Record which units are above which. Links of saved tensors, and links that close a loop, are ignored, as in
    Graphviz's layout."""
    for link in scene.links:
        if link.classes[0] == "saved" or "again" in link.classes:
            continue
        ends = (link.target, link.source) if link.backward else (link.source, link.target)
        above, below = home[ends[0]], home[ends[1]]
        if above != below:
            units[above].below.append(below)
            units[below].above.append(above)


def _rank(units: list[_Unit]) -> None:
    """Put each unit into the first row below everything above it. In a cycle, one link is ignored."""
    order: list[int] = []
    waits = [len(unit.above) for unit in units]
    ready = [number for number, count in enumerate(waits) if not count]
    done = [False] * len(units)
    unbroken = 0
    while True:
        while ready:
            number = ready.pop()
            done[number] = True
            order.append(number)
            for below in units[number].below:
                units[below].row = max(units[below].row, units[number].row + 1)
                waits[below] -= 1
                if not waits[below] and not done[below]:
                    ready.append(below)
        while unbroken < len(units) and done[unbroken]:
            unbroken += 1
        if unbroken == len(units):
            break
        done[unbroken] = True
        ready.append(unbroken)
    _lower(units, order)


def _lower(units: list[_Unit], order: list[int]) -> None:
    """Put leaves, and units computed only from leaves, directly above their first use."""
    loose = [False] * len(units)
    for number in order:
        loose[number] = all(loose[other] for other in units[number].above)
    for number in reversed(order):
        unit = units[number]
        if loose[number] and unit.below:
            unit.row = max(unit.row, min(units[other].row for other in unit.below) - 1)


def _rows(units: list[_Unit]) -> list[list[int]]:
    """The units by row, from the top. A row that is too wide is split."""
    by_rank = grouped((unit.row, number) for number, unit in enumerate(units))
    rows: list[list[int]] = []
    for rank in sorted(by_rank):
        room = 0.0
        for number in by_rank[rank]:
            room -= units[number].width + _GAP
            if room < 0 or not rows:
                rows.append([])
                room = _WIDEST
            rows[-1].append(number)
    return [row for row in rows if row]


def _sweep(units: list[_Unit], rows: Iterable[list[int]], down: bool) -> None:
    """Place each row by the positions of its neighbours in the earlier rows."""
    for row in rows:
        wanted: list[tuple[float, int]] = []
        for number in row:
            unit = units[number]
            near = (unit.above or unit.below) if down else (unit.below or unit.above)
            wanted.append((sum(units[other].x for other in near) / len(near) if near else unit.x, number))
        wanted.sort()
        right, shift = float("-inf"), 0.0
        for x, number in wanted:
            unit = units[number]
            unit.x = max(x, right + _GAP + unit.width / 2)
            right = unit.x + unit.width / 2
            shift += unit.x - x
        shift /= len(wanted)
        for _, number in wanted:
            units[number].x -= shift
