"""Writes a scene, placed in rows, as an SVG document with the same elements, ids, classes and texts as Graphviz's."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from gradviz.pictures import style
from gradviz.pictures.row_layout import Place, Size, placed
from gradviz.pictures.scene import Link, Scene, Thing

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
    for link in scene.links:
        if link.classes != ["hidden"]:
            yield _link(link, places, sizes)
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
    widest = max(
        (_text_width(text) * (1.1 if role in style.BOLD else 1) for role, text in thing.lines), default=0.0
    )
    width, height = widest + 20, _LINE * len(thing.lines) + 10
    return (width * 1.2, height * 1.3) if thing.classes[0] == "op" else (width, height)


def _thing(thing: Thing, place: Place, size: Size) -> str:
    look = {**style.NODE, **style.look(style.NODES, thing.classes)}
    (x, y), (width, height) = place, size
    paint = (
        f'fill="{look.get("fillcolor", "white")}" stroke="{look.get("color", style.INK)}" '
        f'stroke-width="{look.get("penwidth", "1")}"{_dashes(look.get("style", ""))}'
    )
    parts = [
        f'<g id="{thing.id}" class="node {" ".join(thing.classes)}">',
        f"<title>{escape(thing.tooltip)}</title>",
    ]
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
        parts.append(
            f'<text text-anchor="middle" {at} fill="{look.get("fontcolor", style.INK)}">{escape(text)}</text>'
        )
    return "\n".join([*parts, "</g>"])


def _dashes(words: str) -> str:
    for word, dashes in _DASHES.items():
        if word in words:
            return f' stroke-dasharray="{dashes}"'
    return ""


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
    if kind == "tee":
        corners = [(x + across[0], y + across[1]), (x - across[0], y - across[1])]
    else:
        corners = [(x, y)]
    corners += [(back_x - across[0], back_y - across[1]), (back_x + across[0], back_y + across[1])]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return f'<polygon fill="{fill}" stroke="{colour}" points="{points}"/>'
