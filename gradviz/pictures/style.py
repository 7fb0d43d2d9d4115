"""The look of nodes and edges, as tables. Kinds differ in shape or line, not only in colour."""

import math
import re
from collections.abc import Iterable
from typing import Any

from gradviz.graph.groups import DATA_BOX, PLACE
from gradviz.graph.model import GRAD, GRAD_FN, LEAF, OP, TENSOR, Edge, Node
from gradviz.tracefile import Snapshot
from gradviz.words.numbers import has_odd

FONT = "DejaVu Sans"

INK, FAINT = "#212529", "#868e96"
BLUE, ORANGE, RED, PURPLE = "#1864ab", "#d9480f", "#c92a2a", "#862e9c"
AMBER = "#f08c00"  # what `gradviz check` found

GRAPH = {
    "bgcolor": "white",
    "rankdir": "TB",
    "fontname": FONT,
    "fontsize": "11",
    "fontcolor": INK,
    "labelloc": "t",
    "labeljust": "l",
    "nodesep": "0.3",
    "ranksep": "0.32",
    "pad": "0.1",
    "margin": "0",
    "splines": "spline",
}
NODE = {"fontname": FONT, "fontsize": "10", "fontcolor": INK, "margin": "0.13,0.06", "height": "0.3", "width": "0.4"}
EDGE = {"fontname": FONT, "fontsize": "9", "fontcolor": INK, "color": "#495057", "arrowsize": "0.65", "penwidth": "1.1"}
CLUSTER = {
    "style": "rounded,filled",
    "color": "#ced4da",
    "fillcolor": "#f8f9fa",
    "fontcolor": "#495057",
    "fontsize": "10",
    "margin": "8",
}

# Colour and width of a gradient, from a small fraction of the largest up to the largest; the larger, the
# darker and wider.
MAGNITUDES = (("#f59f4c", "1"), ("#f08030", "1.3"), ("#e8590c", "1.8"), ("#c24407", "2.4"), ("#9c3a06", "3"))

_DARK = {"fillcolor": "#495057", "color": "#495057", "fontcolor": "white"}
_FADED = {"style": "rounded,dashed,filled", "fillcolor": "white", "fontcolor": FAINT}
# Looks by class. If several match, later ones override earlier ones.
NODES: dict[str, dict[str, str]] = {
    "leaf": {"shape": "box", "style": "rounded,filled", "fillcolor": "#f1f3f5", "color": "#adb5bd"},
    "tensor": {"shape": "box", "style": "rounded,filled", "fillcolor": "white", "color": "#868e96"},
    "op": {"shape": "ellipse", "style": "filled", **_DARK, "margin": "0.05,0.03"},
    "grad_fn": {"shape": "box", "style": "filled", "fillcolor": "#fff4e6", "color": "#fd7e14", "fontcolor": "#862e00"},
    "group": {"shape": "box3d", "style": "filled", "fillcolor": "#e6fcf5", "color": "#087f5b", "margin": "0.14,0.07"},
    "group module": {"shape": "box", "style": "rounded,filled", "penwidth": "1.6"},
    "group data": {"shape": "box", "style": "rounded,filled", "fillcolor": "#f1f3f5", "color": "#adb5bd"},
    "group place": {"shape": "box", "style": "rounded,filled", **_DARK, "margin": "0.1,0.04"},
    "outside": {"shape": "box", "style": "rounded,dashed,filled", "fillcolor": "white"},
    "tensor requires-grad": {"color": "#4dabf7"},
    "leaf requires-grad": {"fillcolor": "#d0ebff", "color": BLUE, "penwidth": "2.2"},
    "version requires-grad": {"fillcolor": "#d0ebff", "color": BLUE},
    "retained": {"fillcolor": "#e7f5ff"},
    "shared": {"peripheries": "2"},
    "root": {"penwidth": "2.2"},
    "passive": {"fillcolor": "#dee2e6", "color": "#adb5bd", "fontcolor": "#495057"},
    "in-place": {"fontcolor": "white", "fillcolor": PURPLE, "color": PURPLE, "peripheries": "2"},
    "cut": {"fillcolor": "white", "color": RED, "fontcolor": RED, "penwidth": "1.6"},
    "astray": {
        "shape": "box",
        "style": "striped",
        "fillcolor": ":".join(["white", "#e9ecef"] * 7),
        "color": "#adb5bd",
        "fontcolor": "#495057",
        "margin": "0.13,0.05",
    },
    "frozen": _FADED,
    "unreached": {**_FADED, "color": "#4dabf7", "penwidth": "1.4"},
    "accumulate": {"fillcolor": "#ffe8cc", "penwidth": "1.6"},
    "idle": {"style": "filled,dashed", "fillcolor": "#fffaf5", "color": "#ffc078", "fontcolor": "#a0683c"},
    "dot": {
        "shape": "circle",
        "style": "filled",
        "fillcolor": "#adb5bd",
        "color": "#adb5bd",
        "width": "0.12",
        "height": "0.12",
    },
    "spacer": {"shape": "box", "style": "invis", "width": "0.01", "height": "0.6"},
    "gate": {"shape": "box", "style": "rounded,filled", "fillcolor": "white", "color": INK, "penwidth": "1.4"},
    "variable": {"shape": "box", "style": "rounded,filled", "fillcolor": "#d0ebff", "color": BLUE},
    "constant": {"fillcolor": "#f1f3f5", "color": "#adb5bd"},
    "on-wire": {"shape": "plaintext", "margin": "0.04,0"},
    "reference": {"style": "rounded,dashed,filled", "penwidth": "1", "margin": "0.08,0.03"},
    "error": {"style": "filled,bold", "color": RED, "fillcolor": "#fff5f5", "fontcolor": RED, "penwidth": "2.6"},
    "finding": {"color": AMBER, "penwidth": "3"},
}
TIE = {"color": "#adb5bd", "penwidth": "0.8", "dir": "none"}  # between an op and its grad_fn
EDGES: dict[str, dict[str, str]] = {
    "data": {},
    "grad": {"style": "dashed", "color": "#ffc078", "penwidth": "1", "arrowhead": "empty", "fontcolor": ORANGE},
    "flowed": {"color": "#e8590c", "penwidth": "2", "arrowhead": "normal"},
    **{f"m{level}": {"color": colour, "penwidth": width} for level, (colour, width) in enumerate(MAGNITUDES)},
    "zero": {"color": "#868e96", "fontcolor": FAINT, "penwidth": "1", "arrowhead": "onormal"},
    "odd": {"color": RED, "fontcolor": RED, "penwidth": "3", "style": "dashed,bold", "arrowhead": "normaldiamond"},
    "saved": {"style": "dotted", "color": "#9c36b5", "arrowhead": "vee", "arrowsize": "0.5", "constraint": "false"},
    "mutation": {"style": "bold", "color": PURPLE, "fontcolor": PURPLE, "arrowhead": "normalnormal", "penwidth": "1.6"},
    "view": {"style": "dashed", "color": "#868e96", "fontcolor": FAINT, "arrowhead": "odot", "penwidth": "1"},
    "aliases": {"arrowhead": "odot", "style": "dashed"},
    "tangent": {"color": ORANGE, "penwidth": "1.8"},
    "cut": {"style": "dashed", "color": "#868e96", "fontcolor": FAINT, "arrowhead": "tee"},
    "cut due": {"color": RED, "fontcolor": RED, "penwidth": "1.6"},
    "again": {"constraint": "false"},  # closes a loop
    "tie": TIE,
    "wire": {"fontcolor": ORANGE},  # of a picture as in a textbook
    "out": {"dir": "none"},  # from a gate to the values on its wire
    "hidden": {"style": "invis"},  # keeps the nodes of the legend in a column
    "straight": {"weight": "50", "constraint": "true"},  # keeps the lines of the legend vertical
}

GUIDE = {"style": "invis"}  # keeps a layer below its inputs
FILLS = {**EDGES["grad"], **EDGES["flowed"]}  # from an AccumulateGrad to the leaf whose .grad it sets

# The look of a line of text in the SVG, by its role.
LINES: dict[str, dict[str, str]] = {
    "name": {"font-weight": "bold"},
    "unnamed": {"fill": FAINT},
    "fact": {"fill": "#495057"},
    "value": {},
    "grad": {"fill": ORANGE},
    "unreached": {"fill": RED},
    "odd": {"fill": RED, "font-weight": "bold"},
    "error": {"fill": RED},
    "finding": {"fill": AMBER, "font-weight": "bold"},
    "apart": {"fill": AMBER},
    "args": {"fill-opacity": "0.75"},
    "reference": {},
}

BOLD = [role for role, look in LINES.items() if "font-weight" in look]

LEGEND = {
    "data": "─▸ data",
    "tangent": "━▸ data with a tangent",
    "flowed": "╌▸ gradient",
    "idle": "╌▹ next_functions",
    "saved": "┈▸ saved for backward",
    "mutation": "━▸ changed in place",
    "odd": "╍▸◆ NaN or inf",
    "aliases": "╌o shares memory",
    "astray": "▥ reaches no root",
}


# Colours of the light theme, and their counterparts in the dark theme.
DARK = {
    "white": "#1a1d21",
    "#212529": "#e9ecef",
    "#495057": "#ced4da",
    "#868e96": "#909aa3",
    "#adb5bd": "#6c757d",
    "#ced4da": "#495057",
    "#dee2e6": "#343a40",
    "#f8f9fa": "#22262b",
    "#f1f3f5": "#343a40",
    "#e9ecef": "#2b3035",
    "#d0ebff": "#10395a",
    "#1864ab": "#74c0fc",
    "#4dabf7": "#4dabf7",
    "#fff4e6": "#3b2a17",
    "#862e00": "#ffc078",
    "#ffe8cc": "#4d3216",
    "#fffaf5": "#26221e",
    "#a0683c": "#c29168",
    "#ffc078": "#a8703a",
    "#d9480f": "#ff922b",
    "#e8590c": "#ff922b",
    "#c92a2a": "#ff8787",
    "#fff5f5": "#3d1f1f",
    "#862e9c": "#e599f7",
    "#9c36b5": "#da77f2",
    "#e6fcf5": "#12352c",
    "#087f5b": "#38d9a9",
    "#e7f5ff": "#16324a",
    "#9c3a06": "#ffd8a8",
    "#c24407": "#ffa94d",
    "#f08030": "#b36a2a",
    "#f59f4c": "#8a5a2b",
    "#f08c00": "#fcc419",
}
THEMES: dict[str, dict[str, str]] = {"light": {}, "dark": DARK}
_PAINT = re.compile(r'(\b(?:fill|stroke)(?:="|: ))(white|#[0-9a-f]{6})\b')


def themed(svg: str, theme: str) -> str:
    """A picture in the colours of a theme. Text without its own colour gets the theme's text colour."""
    colours = THEMES[theme]
    if not colours:
        return svg
    svg = _PAINT.sub(lambda match: match[1] + colours.get(match[2], match[2]), svg)
    return svg.replace("<svg ", f'<svg fill="{colours[INK]}" ', 1)


def node_classes(node: Node, *marks: str) -> list[str]:
    """The classes of a node in the SVG: its kind, its flags and its marks. They determine its look."""
    is_place = node.box is not None and node.op == PLACE
    flags = {
        "requires-grad": bool(node.requires_grad),
        "root": node.root,
        "version": node.kind == TENSOR and bool(node.is_leaf and node.requires_grad),
        "retained": node.retained,
        "has-grad": node.has_grad,
        "frozen": node.kind == LEAF and node.parameter and not (node.buffer or node.requires_grad),
        "accumulate": node.kind == GRAD_FN and node.name == "AccumulateGrad",
        "filled": node.accumulated,
        "idle": node.kind == GRAD_FN and not node.ran,
        "passive": (node.kind == OP or is_place) and not node.grad_fn,
        "module": node.box is not None and node.op not in (PLACE, DATA_BOX),
        "data": node.op == DATA_BOX and node.box is not None,
        "place": is_place,
        "astray": node.astray,
        "error": bool(node.error),
        "finding": bool(node.finding or node.apart or node.held_apart),
    }
    return [node.kind, *(name for name, holds in flags.items() if holds), *marks]


def edge_classes(edge: Edge) -> list[str]:
    """The classes of an edge in the SVG: its kind and its flags."""
    flags = {
        "flowed": bool(edge.gradient),
        "odd": has_odd(edge.value),
        "cut": bool(edge.cut),
        "due": edge.due,
        "tangent": edge.tangent,
        "again": edge.again,
    }
    return [edge.kind, *(name for name, holds in flags.items() if holds)]


class Scale:
    """The sizes of the gradients of one picture, relative to the largest."""

    def __init__(self, snapshots: Iterable[Snapshot | None]) -> None:
        self.largest = max((size for s in snapshots if (size := _size(s)) is not None), default=0.0)

    def classes(self, edge: Edge) -> list[str]:
        """The class for the size of an edge's gradient: `zero`, or `m0` (small) to `m4` (the largest)."""
        size = _size(edge.value) if edge.kind == GRAD and edge.gradient else None
        if size is None:
            return []
        if size == 0:
            return ["zero"]
        steps = round(math.log10(self.largest) - math.log10(size))
        return [f"m{max(0, len(MAGNITUDES) - 1 - steps)}"]


def _size(snapshot: Snapshot | None) -> float | None:
    stats = snapshot.stats if snapshot is not None else None
    return None if stats is None or has_odd(snapshot) or not math.isfinite(stats.rms) else float(stats.rms)


def look(table: dict[str, dict[str, str]], classes: list[str]) -> dict[str, str]:
    """The attributes in a table for something with these classes."""
    key = (id(table), *classes)
    if key not in _looks:
        _looks[key] = {
            name: text
            for words, attributes in table.items()
            if all(word in classes for word in words.split())
            for name, text in attributes.items()
        }
    return _looks[key]


_looks: dict[tuple[Any, ...], dict[str, str]] = {}
