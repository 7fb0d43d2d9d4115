"""How nodes and edges look, as tables. Each kind differs by its shape or line too, not by colour alone."""

from __future__ import annotations

import re

from gradviz.draw.text import has_odd
from gradviz.graph.model import Edge, Node

FONT = "DejaVu Sans"

INK, FAINT = "#212529", "#868e96"
BLUE, ORANGE, RED, PURPLE = "#1864ab", "#d9480f", "#c92a2a", "#862e9c"

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
    "pad": "0.2",
    "margin": "0",
    "splines": "spline",
}
NODE = {
    "fontname": FONT,
    "fontsize": "10",
    "fontcolor": INK,
    "margin": "0.13,0.06",
    "height": "0.3",
    "width": "0.4",
}
EDGE = {"fontname": FONT, "fontsize": "9", "color": "#495057", "arrowsize": "0.65", "penwidth": "1.1"}
CLUSTER = {
    "style": "rounded,filled",
    "color": "#ced4da",
    "fillcolor": "#f8f9fa",
    "fontcolor": "#495057",
    "fontsize": "10",
    "margin": "10",
}

# Looks by class; where several match, the later wins.
NODES: dict[str, dict[str, str]] = {
    "leaf": {"shape": "box", "style": "rounded,filled", "fillcolor": "#f1f3f5", "color": "#adb5bd"},
    "tensor": {"shape": "box", "style": "rounded,filled", "fillcolor": "white", "color": "#868e96"},
    "op": {
        "shape": "ellipse",
        "style": "filled",
        "fillcolor": "#495057",
        "color": "#495057",
        "fontcolor": "white",
        "margin": "0.05,0.03",
    },
    "grad_fn": {
        "shape": "box",
        "style": "filled",
        "fillcolor": "#fff4e6",
        "color": "#fd7e14",
        "fontcolor": "#862e00",
    },
    "group": {
        "shape": "box3d",
        "style": "filled",
        "fillcolor": "#e6fcf5",
        "color": "#087f5b",
        "margin": "0.16,0.1",
    },
    "tensor requires-grad": {"color": "#4dabf7"},
    "leaf requires-grad": {"fillcolor": "#d0ebff", "color": BLUE, "penwidth": "2.2"},
    "root": {"penwidth": "2.2"},
    "cut": {"fillcolor": "white", "color": RED, "fontcolor": RED, "penwidth": "1.6"},
    "accumulate": {"fillcolor": "#ffe8cc", "penwidth": "1.6"},
    "idle": {"style": "filled,dashed", "fillcolor": "#fffaf5", "color": "#ffc078", "fontcolor": "#a0683c"},
    "reference": {"style": "rounded,dashed,filled", "penwidth": "1", "margin": "0.08,0.03"},
    "error": {
        "style": "filled,bold",
        "color": RED,
        "fillcolor": "#fff5f5",
        "fontcolor": RED,
        "penwidth": "2.6",
    },
}
EDGES: dict[str, dict[str, str]] = {
    "data": {},
    "grad": {
        "style": "dashed",
        "color": "#ffc078",
        "penwidth": "1",
        "arrowhead": "empty",
        "fontcolor": ORANGE,
    },
    "flowed": {"color": "#e8590c", "penwidth": "2", "arrowhead": "normal"},
    "odd": {
        "color": RED,
        "fontcolor": RED,
        "penwidth": "3",
        "style": "dashed,bold",
        "arrowhead": "normaldiamond",
    },
    "saved": {
        "style": "dotted",
        "color": "#9c36b5",
        "arrowhead": "vee",
        "arrowsize": "0.5",
        "constraint": "false",
    },
    "mutation": {
        "style": "bold",
        "color": PURPLE,
        "fontcolor": PURPLE,
        "arrowhead": "normalnormal",
        "penwidth": "1.6",
    },
    "view": {"style": "dashed", "color": "#868e96", "fontcolor": FAINT, "arrowhead": "odot", "penwidth": "1"},
    "cut": {"style": "dashed", "color": RED, "fontcolor": RED, "penwidth": "1.6", "arrowhead": "tee"},
}

TIE = {"color": "#ced4da", "penwidth": "0.8", "dir": "none"}  # an op and its grad_fn

# What a line of a node's text is, and how the SVG shows it.
LINES: dict[str, dict[str, str]] = {
    "name": {"font-weight": "bold"},
    "unnamed": {"fill": FAINT},
    "fact": {"fill": "#495057"},
    "value": {},
    "grad": {"fill": ORANGE},
    "odd": {"fill": RED, "font-weight": "bold"},
    "error": {"fill": RED},
    "args": {"fill-opacity": "0.75"},
}

BOLD = [role for role, look in LINES.items() if "font-weight" in look]

LEGEND = {
    "data": "─▸ data",
    "flowed": "╌▸ gradient",
    "idle": "╌▹ next_functions",
    "saved": "┈▸ saved for backward",
    "mutation": "━▸ written over",
    "odd": "╍▸◆ NaN or inf",
}


# What each colour of the light theme is in the dark one.
DARK = {
    "white": "#1a1d21",
    "#212529": "#e9ecef",
    "#495057": "#ced4da",
    "#868e96": "#909aa3",
    "#adb5bd": "#6c757d",
    "#ced4da": "#495057",
    "#f8f9fa": "#22262b",
    "#f1f3f5": "#343a40",
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
}
THEMES: dict[str, dict[str, str]] = {"light": {}, "dark": DARK}
_PAINT = re.compile(r'(\b(?:fill|stroke)(?:="|: ))(white|#[0-9a-f]{6})\b')


def themed(svg: str, theme: str) -> str:
    """A picture in the colours of a theme; texts without a colour of their own get the theme's ink."""
    colours = THEMES[theme]
    if not colours:
        return svg
    svg = _PAINT.sub(lambda match: match[1] + colours.get(match[2], match[2]), svg)
    return svg.replace("<svg ", f'<svg fill="{colours[INK]}" ', 1)


def node_classes(node: Node, cut: bool) -> list[str]:
    """A node's kind and flags: its classes in the SVG, which its look goes by."""
    flags = {
        "requires-grad": bool(node.requires_grad),
        "root": node.root,
        "retained": node.retained,
        "has-grad": node.has_grad,
        "cut": cut,
        "accumulate": node.kind == "grad_fn" and node.name == "AccumulateGrad",
        "idle": node.kind == "grad_fn" and not node.ran,
        "error": bool(node.error),
    }
    return [node.kind, *(name for name, holds in flags.items() if holds)]


def edge_classes(edge: Edge) -> list[str]:
    """An edge's kind and flags."""
    flags = {"flowed": bool(edge.gradient), "odd": has_odd(edge.value), "cut": bool(edge.cut)}
    return [edge.kind, *(name for name, holds in flags.items() if holds)]


def look(table: dict[str, dict[str, str]], classes: list[str]) -> dict[str, str]:
    """The attributes that a table gives to something of these classes."""
    key = (id(table), *classes)
    if key not in _looks:
        _looks[key] = {
            name: text
            for words, attributes in table.items()
            if all(word in classes for word in words.split())
            for name, text in attributes.items()
        }
    return _looks[key]


_looks: dict[tuple, dict[str, str]] = {}
