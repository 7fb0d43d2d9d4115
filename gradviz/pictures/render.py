"""Writes a graph to a file, in the format of the file's ending."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from unicodedata import east_asian_width

from gradviz.errors import GradvizError
from gradviz.graph.model import DATA, GRAD, MUTATION, SAVED, VIEW, Edge, Graph, Node, to_json
from gradviz.pictures import style
from gradviz.pictures.layout import LayoutError, dot_of, laid_out
from gradviz.pictures.node_text import called_cut, lines_of
from gradviz.pictures.scene import Link, Scene, Thing, about, scene_of
from gradviz.words.escape import as_mermaid, json_text

# Writes a graph as Mermaid text, which code hosts draw in a README or a comment.

MOST_EDGES = 500  # Mermaid's own limit (maxEdges)
MOST_TEXT = 50_000  # characters; Mermaid's own limit (maxTextSize)

_SHAPES = {
    "leaf": ('(["', '"])'),
    "tensor": ('("', '")'),
    "op": ('{{"', '"}}'),
    "grad_fn": ('["', '"]'),
    "group": ('[["', '"]]'),
    "outside": ('["', '"]'),
}
_ARROWS = {DATA: "-->", GRAD: "-.->", SAVED: "-.-o", MUTATION: "==>", VIEW: "-.-"}
_CLASSES = (
    "classDef leaf fill:#d0ebff,stroke:#1864ab,color:#212529",
    "classDef tensor fill:#ffffff,stroke:#868e96,color:#212529",
    "classDef op fill:#495057,stroke:#495057,color:#ffffff",
    "classDef grad_fn fill:#fff4e6,stroke:#fd7e14,color:#862e00",
    "classDef group fill:#e6fcf5,stroke:#087f5b,color:#212529",
    "classDef outside fill:#ffffff,stroke:#f08c00,color:#212529",
)


def to_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart. A graph above Mermaid's limits is cut, and a node mentions it."""
    head = [f"%% {line.replace('%', '')}" for line in about(graph)]
    lines = [*head, "flowchart TB", *(f"  {text}" for text in _CLASSES)]
    room = MOST_TEXT - sum(len(line) + 1 for line in lines) - 200
    said: set[str] = set()
    drawn = 0
    for edge in graph.edges:
        ends = [graph.nodes[name] for name in (edge.source, edge.target) if name not in said]
        new = [*(_node(node, graph.show) for node in ends), _edge(edge)]
        room -= sum(len(text) + 1 for text in new)
        if room < 0 or drawn == MOST_EDGES:
            break
        said.update(node.id for node in ends)
        lines += new
        drawn += 1
    if drawn < len(graph.edges):
        left = len(graph.edges) - drawn
        lines.append(f'  more["{left:,} more edges are left out: code hosts do not draw more"]:::group')
    else:
        lines += [_node(node, graph.show) for node in graph.nodes.values() if node.id not in said]
    return "\n".join(lines) + "\n"


def _node(node: Node, show: str) -> str:
    opens, closes = _SHAPES[node.kind]
    label = "<br/>".join(as_mermaid(text) for _, text in lines_of(node, show))
    return f"  {node.id}{opens}{label}{closes}:::{node.kind}"


def _edge(edge: Edge) -> str:
    label = f"|{as_mermaid(called_cut(edge.cut))}|" if edge.cut else ""
    return f"  {edge.source} {_ARROWS[edge.kind]}{label} {edge.target}"


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
            raise DrawError(f"a textbook's picture cannot be written as {ending}: use one of {' '.join(_PAINTERS)}")
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
    return _Drawing(to_png(document), note_on(document) or _without_font(document))


def _pdf(scene: Scene, theme: str) -> _Drawing:
    document = _svg(scene, theme)
    wide = _wide_letters(document)
    return _Drawing(to_pdf(document), f"a PDF has no letters for {wide[:1]}: .svg and .png have them" if wide else "")


def _wide_letters(text: str) -> str:
    """The Chinese, Japanese and Korean letters in a text: gradviz's own fonts have none of them."""
    return "".join(letter for letter in text if east_asian_width(letter) in "WF")


_NO_LETTER = "\U000f0000"  # for private use: it is drawn as what no font has


def _without_font(document: str) -> str:
    """A note that this machine has no font for letters of the picture; empty if it draws them."""
    wide = _wide_letters(document)[:1]
    one = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15">{}</text></svg>'
    if not wide or to_png(one.format(wide)) != to_png(one.format(_NO_LETTER)):
        return ""
    return f"no font here has {wide}: save it as .svg, or install a font, as the package fonts-noto-cjk"


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


_STRIPE = re.compile(r'stroke="[^"]*" stroke-width="0.5"')  # the outline of one
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

    return _TAG.sub(styled, _STRIPE.sub('stroke="none"', document))


_PAINTERS: dict[str, Callable[[Scene, str], _Drawing]] = {
    ".svg": lambda scene, theme: _Drawing(_svg(scene, theme).encode()),
    ".png": _png,
    ".pdf": _pdf,
    ".dot": lambda scene, _: _Drawing(dot_of(scene).encode()),
}
SCENES = (*_PAINTERS,)  # the endings of the formats that a scene can be written in
_WRITERS: dict[str, Callable[[Graph], str]] = {".mmd": to_mermaid, ".json": lambda graph: json_text(to_json(graph), 1)}
ENDINGS = (*_PAINTERS, *_WRITERS, PAGE)


# Converts SVG text to PNG bytes, with gradviz's own fonts, so that text is drawn on machines without fonts.

_FONTS = [str(file) for file in sorted(Path(__file__).with_name("fonts").glob("*.ttf"))]

_CRISP, _LEGIBLE = 2.0, 1.0  # pixels per point
MOST_PIXELS = 32_000_000  # a million pixels take 0.1 s and 8 MB; without memory, resvg aborts the process


class PictureTooLarge(ValueError):
    """The picture has too many pixels. The message is one line: its size, the limit, and a remedy."""


def to_png(svg: str, scale: float | None = None) -> bytes:
    """Draw `svg` as a PNG with `scale` pixels per point. The default is 2, or for a large picture the largest scale
    that fits into `MOST_PIXELS`.

    Raises PictureTooLarge before it draws anything if the given scale is too large, and ValueError if `svg` is not an
    SVG document with a size."""
    import resvg_py  # imported here, because only PNG needs it

    width, height = _size(svg)
    if scale is None:
        scale = _scale_for(width, height)
    if not scale > 0:
        raise ValueError(f"the scale has to be above 0, but it is {scale}")
    if width * scale * height * scale > MOST_PIXELS:
        raise PictureTooLarge(
            f"a PNG of {width * scale:,.0f} × {height * scale:,.0f} pixels is too large (at most "
            f"{MOST_PIXELS:,}): save it as .svg, or draw less of it (fold it, or slice around a node)"
        )
    return resvg_py.svg_to_bytes(
        svg_string=svg,
        zoom=scale,
        dpi=72,  # so that a point is a pixel
        font_files=_FONTS,  # plus the fonts of the system, for scripts that these fonts lack
        font_family="DejaVu Sans",
        serif_family="DejaVu Sans",
        sans_serif_family="DejaVu Sans",
        monospace_family="DejaVu Sans Mono",
    )


def note_on(svg: str) -> str:
    """A note that the text in the PNG of `svg` is small; empty if it is legible."""
    scale = _scale_for(*_size(svg))
    if scale >= _LEGIBLE:
        return ""
    return f"drawn at {scale:.0%} of its size, since a PNG has at most {MOST_PIXELS:,} pixels: .svg stays legible"


def _size(svg: str) -> tuple[float, float]:
    """The width and height of `svg` in points: from its attributes, otherwise from its viewBox."""
    tag = re.search(r"<svg\b[^>]*>", svg)
    if tag is None:
        raise ValueError("this is not an SVG document: it has no <svg>")
    width = re.search(r'\swidth="([\d.]+)(?:pt|px)?"', tag[0])
    height = re.search(r'\sheight="([\d.]+)(?:pt|px)?"', tag[0])
    if width and height:
        return _nonzero(width[1], height[1])
    box = re.search(r'\sviewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', tag[0])
    if box and not re.search(r"\s(width|height)=", tag[0]):
        return _nonzero(box[1], box[2])
    raise ValueError("this SVG has no size: it needs a width and a height in pt or px")


def _nonzero(width: str, height: str) -> tuple[float, float]:
    if not float(width) * float(height):
        raise ValueError(f"this SVG has no area: it is {width} × {height}")
    return float(width), float(height)


def _scale_for(width: float, height: float) -> float:
    """The scale at which text is sharp; for large pictures the largest scale that fits."""
    return min(_CRISP, math.sqrt(0.99 * MOST_PIXELS / (width * height)))


# Converts SVG text to PDF bytes, with `fpdf2` and bundled fonts.

FAMILY = "DejaVu Sans"
_FACES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf"}
# The parts that a PDF does not need: titles (the tooltips), and the links that carry them.
_TITLES = re.compile(r"<title>.*?</title>", re.DOTALL)
_LINKS = re.compile(r"<(/?)a\b[^>]*>")


def to_pdf(svg: str) -> bytes:
    """Make a PDF of one page in the size of the picture. Text stays text. Raises ValueError if `svg` is not SVG."""
    from xml.etree.ElementTree import ParseError

    from fpdf import FPDF
    from fpdf.svg import SVGObject

    logging.getLogger("fpdf").setLevel(logging.ERROR)  # it logs each element that it omits, and each missing letter
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    plain = _LINKS.sub(r"<\1g>", _TITLES.sub("", svg)).replace('"transparent"', '"none"')
    try:
        picture = SVGObject(plain)
    except ParseError as error:
        raise ValueError(f"the picture is not well-formed: {error}") from error
    page = FPDF(unit="pt")
    for face, name in _FACES.items():
        page.add_font(FAMILY, face, str(files("gradviz.pictures.fonts").joinpath(name)))
    page.set_font(FAMILY, size=10)
    page.set_margin(0)
    width, height = picture.width, picture.height
    if not (isinstance(width, float) and isinstance(height, float)):
        raise ValueError("the picture has no size")
    page.add_page(format=(width, height))
    picture.draw_to_page(page)
    return bytes(page.output())


_Row = tuple[str, str, str]  # classes, name, meaning

_TENSORS: tuple[_Row, ...] = (
    ("leaf requires-grad has-grad", "leaf", "requires grad: backward sets its .grad"),
    ("leaf requires-grad has-grad shared", "shared leaf", "several ops read it: its gradients add up"),
    ("leaf", "leaf", "does not require grad: data"),
    ("leaf frozen", "frozen parameter", "does not require grad"),
    ("leaf requires-grad unreached", "leaf, never reached", "requires grad, but this pass gave it no gradient"),
    ("tensor requires-grad version", "leaf", "the same leaf after an update in place"),
    ("tensor requires-grad", "non-leaf", "computed from a tensor that requires grad"),
    ("tensor requires-grad retained has-grad", "non-leaf", "retains its gradient"),
    ("tensor requires-grad root", "root", "backward() began here"),
    ("tensor", "tensor", "not computed from a tensor that requires grad"),
    ("leaf requires-grad reference", "w", "drawn again, near its use"),
)
_OPS: tuple[_Row, ...] = (
    ("op", "op", "of the forward pass"),
    ("op passive", "op", "its inputs do not require grad"),
    ("op astray", "op", "no root was computed from it"),
    ("op in-place", "op_", "changed its input in place"),
    ("op cut", "detach", "a gradient was due, and stops at it"),
    ("grad_fn", "MulBackward0", "grad_fn: a node of the backward graph"),
    ("grad_fn root", "AddBackward0", "the root of the pass"),
    ("grad_fn accumulate filled", "AccumulateGrad", "adds to a leaf's .grad"),
    ("grad_fn idle", "LogBackward0", "did not run in this pass"),
    ("grad_fn error", "DivBackward0", "an error was raised here"),
    ("op finding", "log", "gradviz check found something here"),
    ("gate", "all_reduce · 2 ranks", "the gradient went through it, between ranks"),
    ("group", "layers ×12", "folded: a repetition, a chain of ops"),
    ("group module", "cell · GRUCell ×12", "a module, called so many times"),
    ("group place", "tanh ×12", "a place in the program, that ran so many times"),
)
_LINES: tuple[tuple[str, str], ...] = (
    ("data", "data"),
    ("data aliases", "data, in shared memory (a view)"),
    ("mutation", "changed in place"),
    ("saved", "saved for backward"),
    ("data cut", "no gradient goes back: detached"),
    ("data cut due", "a gradient was due, and stops here"),
    ("tie", "an operation and its grad_fn"),
)
_GRADIENTS: tuple[tuple[str, str], ...] = (
    ("grad flowed m4", "gradient, among the largest"),
    ("grad flowed m3", "a tenth of it"),
    ("grad flowed m2", "a hundredth"),
    ("grad flowed m1", "a thousandth"),
    ("grad flowed m0", "less"),
    ("grad flowed zero", "all zeros"),
    ("grad flowed odd", "NaN or inf in it"),
    ("grad", "next_functions: no gradient"),
)


def legend() -> Scene:
    """A scene with one example of everything, and its meaning."""
    scene = Scene(["legend: every kind of node and line"])
    _add_column(scene, "tensors", _TENSORS)
    _add_column(scene, "operations and nodes", _OPS)
    _add_chain(scene, "lines", _LINES)
    _add_chain(scene, "gradients: larger is wider", _GRADIENTS)
    return scene


def _add_column(scene: Scene, title: str, rows: tuple[_Row, ...]) -> None:
    _add_spacer(scene, title)
    above = ""
    for classes, name, meaning in rows:
        thing = Thing(f"l{len(scene.things)}", classes.split(), [("name", name), ("args", meaning)], name, title)
        scene.things[thing.id] = thing
        if above:
            scene.links.append(_link(scene, above, thing.id, "hidden", []))
        above = thing.id


def _add_chain(scene: Scene, title: str, rows: tuple[tuple[str, str], ...]) -> None:
    _add_spacer(scene, title)
    above = ""
    for classes, meaning in (("", ""), *rows):
        thing = Thing(f"l{len(scene.things)}", ["dot"], [], meaning, title)
        scene.things[thing.id] = thing
        if above:
            scene.links.append(_link(scene, above, thing.id, f"{classes} straight", [meaning]))
        above = thing.id


def _add_spacer(scene: Scene, title: str) -> None:
    """Make all frames begin at the same height."""
    name = f"l{len(scene.things)}"
    scene.things[name] = Thing(name, ["spacer"], [], "", title)


def _link(scene: Scene, source: str, target: str, classes: str, label: list[str]) -> Link:
    return Link(f"e{len(scene.links)}", source, target, classes.split(), label, "".join(label))
