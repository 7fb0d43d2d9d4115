"""The HTML page: graphs that can be searched, folded and replayed, in one file without network access.

The parts of the page are files in this directory; `html` combines them with the data of a trace into one file. Data
from a trace is inserted as JSON in which `<`, `>` and `&` are escaped; the data of each pass is compressed. The page
displays data only as text."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from gradviz.diagnose.finding import Finding, place_of
from gradviz.diagnose.marked import pass_of
from gradviz.errors import GradvizError
from gradviz.graph.build import GraphError
from gradviz.graph.fold import folded
from gradviz.graph.model import GRAD_FN, OP, Graph
from gradviz.graph.slices import SliceError
from gradviz.page.other_values import only_rows
from gradviz.page.page_texts import in_language, texts_of_scripts, with_line
from gradviz.page.pass_curves import PassSummaries, norms
from gradviz.page.reasons import PageLesson, firsts, lesson_data, places
from gradviz.page.views import Shared, Sources, view
from gradviz.pictures.render import DrawError, svg
from gradviz.pictures.textbook import MOST, textbook
from gradviz.query import Query
from gradviz.query.flow import reach
from gradviz.query.passes import each_left_out
from gradviz.tracefile import PassInfo, Trace
from gradviz.words import Words
from gradviz.words.escape import plain

MOST_BOOKS = 6  # the most pictures of one page: each is laid out by Graphviz
_DOZEN = 12  # the most operations of a picture that a lesson opens with


_NO_BOOK: dict[str, Any] = {"book": "", "bookTimes": {}}


def book(trace: Trace, graph: Graph, language: str) -> dict[str, Any]:
    """The textbook picture of a graph as an SVG document, in a language, with the events since which its parts are
    there; empty if the graph is too large for it, or cannot be laid out here."""
    if not 0 < graph.counts().get(GRAD_FN, 0) <= 2 * MOST:
        return _NO_BOOK
    words = Words(trace)
    words.speak(language)
    try:
        scene = textbook(words, graph)
        which = words.say("pass {number} of {count}", number=graph.pass_number, count=graph.passes)
        caption = [line.replace(f"pass {graph.pass_number} of {graph.passes}", which) for line in scene.caption]
        # the page's area for pictures is not a wide strip
        drawn = svg(replace(scene, caption=caption, rankdir="TB"))
    except GradvizError:
        return _NO_BOOK
    return {"book": drawn, "bookTimes": scene.times}


def is_small(graph: Graph) -> bool:
    """Whether a lesson draws a graph as a textbook picture: it has some operations, at most a dozen."""
    return graph.counts().get(GRAD_FN, 0) > 0 and graph.counts().get(OP, 0) <= _DOZEN


# Pan and zoom, as released (vendor/LICENSE). The order matters: each file uses those before it.
LIBRARIES = "d3-dispatch d3-selection d3-timer d3-color d3-interpolate d3-ease d3-drag d3-transition d3-zoom".split()

# The order matters: a script may use those before it.
SCRIPTS = (
    "state values layout ranks drawing edge_labels zoom overview layers panel source replay search chart"
    " link findings signs book lesson frame paper main"
).split()

# The scripts of pages that can compute a pass again: the computing scripts have their own scope; the last shows the
# result.
COMPUTING = ("op_kinds", "op_rows", "computed_pass")
TRYING = "other_values"
_DECLARED = re.compile(r"^(?:const|function) (\w+)(?:.*\n)(?:(?!const |function ).*\n)*", re.MULTILINE)
_COMMENT = re.compile(r'^ *//.*\n| +// [^"`\n]*$', re.MULTILINE)
_NAME = re.compile(r"\w+")
_QUOTED = re.compile(r"""("(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`)""")
# Spaces that mean nothing. Those beside + and − stay where two would meet: `a - -b` is not `a--b`.
_SPACES = re.compile(r" *([=<>!?:&|,;{}()\[\]%*/]+) *|(?<![+-]) *([+-]) *(?![ +-])")
_LAST_SIGN = re.compile(r"[,;](?=\n[\])}])")
_ONE_PARAMETER = re.compile(r"(?<!\w)\((\w+)\)=>")

# compression level: 6 takes half as long again for a twentieth less, 4 a quarter less for a tenth more
_LEVEL = 5
MOST_NODES = 300_000  # of the pass that is shown first; a larger one has its blocks closed
MOST_IN_ALL = 40_000  # nodes and events in all passes; passes beyond that are left out
# the same, if a pass has at most SMALL_PASS of them: packed together, they take a third
MOST_OF_SMALL = 120_000
SMALL_PASS = 200
MOST_PASSES = 600
_PACKED = 8  # the most passes that are compressed together
_MOST_PACKED = 2_000  # their nodes and events: unpacking them takes no time that is felt

Build = Callable[[int | None], Graph]


def html(
    trace: Trace,
    build: Build,
    number: int | None = None,
    lesson: PageLesson | None = None,
    findings: Sequence[tuple[int, Finding]] = (),
    query: Query | None = None,
    doing: Callable[[str], None] = lambda text: None,
) -> str:
    """The page of a trace. `build` makes the graph of a pass by its number (None: the pass to show first); a `lesson`
    asks its questions on the page; `findings`, with their numbers, are listed, with links to their places; `query` is
    the query that `build` uses, if any, whose tables are reused; `doing` is called with each step. If the first graph
    is too large for a browser, the page has its blocks closed, and no other pass. Raises DrawError if the trace has no
    events."""
    if not trace.count:
        raise DrawError(f"{trace.path} has no events: there is nothing to replay")
    trace.read_in_blocks()
    first, words = build(number), Words(trace, query)
    language = "en" if lesson is None else lesson.language
    words.speak(language)
    first = _titled(first, words)
    in_blocks = len(first.nodes) > MOST_NODES
    if in_blocks:
        first = _in_blocks(first)
    first_events = firsts(words)
    shared = Shared(words, set(first_events.values()))
    summaries = PassSummaries(words)

    def shown(graph: Graph, drawn: dict[str, Any]) -> dict[str, Any]:
        backward_pass = trace.find_pass(graph.pass_number or 0)
        return {**view(graph, backward_pass, shared), **drawn, "summary": summaries.of(backward_pass)}

    views = [shown(first, _NO_BOOK if in_blocks else book(trace, first, language))]
    size = len(first.nodes) + len(views[0]["steps"])
    room = 0 if in_blocks else (MOST_OF_SMALL if size <= SMALL_PASS else MOST_IN_ALL) - size
    sizes = {_structure(trace, first.pass_number): len(first.nodes)}
    order = _order(trace, first.pass_number)
    for turn, other in enumerate(order, 2):
        doing(f"pass {turn:,} of at most {min(len(order) + 1, MOST_PASSES):,}")
        structure = _structure(trace, other)
        if room <= sizes.get(structure, 0) or len(views) >= MOST_PASSES:
            break  # there is no room: its graph need not be built
        try:
            graph = _titled(build(other), words)
        except (GraphError, SliceError):
            continue  # that pass has no part of the requested slice
        sizes[structure] = len(graph.nodes)
        room -= len(graph.nodes)
        if room > 0:
            views.append(shown(graph, book(trace, graph, language) if len(views) < MOST_BOOKS else _NO_BOOK))
            room -= len(views[-1]["steps"])
    data = {
        "script": plain(_script(trace), 80),
        "trace": plain(trace.path.name, 80),
        "events": trace.count,
        "passes": [_pass(backward_pass, words) for backward_pass in trace.passes],
        "held": [one["pass"] for one in views],
        "missing": each_left_out(trace),
        "packed": list(map(len, _packed(views))),
        "shown": 0,
        "lesson": None if lesson is None else lesson_data(lesson, views, is_small(first)),
        "firsts": places(first_events, views),
        "findings": [_listed(number, finding, trace, shared.sources) for number, finding in findings],
        "values": trace.has_values,
        "norms": norms(trace, words.called),
        "backward": [[one.first, trace.count - 1 if one.last is None else one.last] for one in trace.passes],
        "sites": shared.sources.sites,
        "files": shared.sources.data(),
    }
    return _written(data, views, language)


def _script(trace: Trace) -> str:
    """The name of the program; of one of several ranks, with its rank."""
    rank = trace.meta.get("rank", "")
    name = Path(trace.meta.get("script", "")).name
    return f"{name} · rank {rank}" if rank and name else name


def _in_blocks(graph: Graph) -> Graph:
    """A graph whose blocks are closed, as a picture has it, with a note that says so."""
    blocks = folded(graph)
    note = (
        f"too large for a page ({len(graph.nodes):,} nodes): its blocks are closed; "
        "gradviz graph --unfold NAME opens one"
    )
    return replace(blocks, notes=[*graph.notes, note])


def _trying(here: Traversable, views: Sequence[dict[str, Any]]) -> list[str]:
    """The scripts that compute a pass again with other values and show the result, with only the rows of the used
    ops. Empty if no pass can be computed."""
    if all("reason" in one["again"] for one in views):
        return []
    used = {call["op"] for one in views for call in one["again"].get("calls", ())}
    return [computing(used), in_short(here.joinpath(f"{TRYING}.js").read_text(encoding="utf-8"))]


def in_short(script: str) -> str:
    """A script without its comments and without the spaces and signs that mean nothing: most pages have it. The script
    has no regular expressions."""
    lines = map(str.strip, _COMMENT.sub("", script).splitlines())
    parts = _QUOTED.split("".join(f"{line}\n" for line in lines if line))
    parts[::2] = [_ONE_PARAMETER.sub(r"\1=>", _SPACES.sub(r"\1\2", part)) for part in parts[::2]]
    return _LAST_SIGN.sub("", "".join(parts))


def computing(ops: Collection[str]) -> str:
    """The script that computes passes of these ops: only their rows, and the functions which those use."""
    here = files(__name__)
    texts = [here.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in COMPUTING]
    code = _COMMENT.sub("", only_rows("".join(texts), ops))
    parts = {found[1]: found[0] for found in _DECLARED.finditer(code)}
    asked = ("computedPass", "recordedLeaves", "isReproduced")
    needed = set(reach(asked, lambda name: parts.keys() & set(_NAME.findall(parts[name]))))
    kept = in_short("".join(text for name, text in parts.items() if name in needed))
    return f"const passAgain = (() => {{\n{kept}return {{ {', '.join(asked)} }};\n}})();"


def _listed(number: int, finding: Finding, trace: Trace, sources: Sources) -> dict[str, Any]:
    """A finding as the page lists it. The first of its nodes and tensors that a picture has is selected."""
    event = finding.events[0] if finding.events else None
    ids = [f"n{finding.node}"] * bool(finding.node) + [f"op{event}"] * (event is not None)
    texts = {"severity": finding.severity, "rule": finding.rule, "place": place_of(finding)}
    return {
        "number": number,
        **{name: plain(text, 80) for name, text in texts.items()},
        "message": plain(finding.message, 400),
        "fix": plain(finding.fix, 200),
        "replayed": plain(finding.replayed, 400),
        "pass": pass_of(finding, trace) or None,
        "event": event,
        "ids": ids,
        "tensors": finding.tensors,
        "at": None if finding.site is None else sources.place(finding.site.place),
    }


def _structure(trace: Trace, number: int | None) -> str | int | None:
    """A key that passes of the same structure share; the number of a pass whose structure is not known."""
    backward_pass = trace.find_pass(number or 0)
    return (backward_pass.digest if backward_pass is not None else "") or number


def _order(trace: Trace, shown: int | None) -> list[int]:
    """The numbers of the other passes by importance: the first and the last, then ever finer steps between. If some
    passes were recorded in detail they are of these: of others there is hardly anything to see."""
    passes = [one for one in trace.passes if one.is_in_detail] or trace.passes
    count = len(passes)
    order: dict[int, None] = {}
    if shown is not None and count:
        step = count
        order.update(dict.fromkeys((0, count - 1)))
        while step > 1:
            step = -(-step // 2)
            order.update(dict.fromkeys(range(0, count, step)))
    numbers = [passes[position].number for position in order]
    return [number for number in numbers if number != shown]


def _titled(graph: Graph, words: Words) -> Graph:
    """A graph with its title, `line 12: z.backward()`, in the language of the page."""
    return replace(graph, title=with_line(graph.title, r"^line ([0-9]+)", words))


def _pass(backward_pass: PassInfo, words: Words) -> list[Any]:
    """A pass: its number, and the line where it began."""
    site, text = words.trace.sites.get(backward_pass.site), words.query.places.line_text(backward_pass.site)
    if site is None:
        return [backward_pass.number, ""]
    line = words.say("line {line}", line=site.place.line)
    return [backward_pass.number, plain(f"{line}: {text}" if text else line, 60)]


def _written(data: dict[str, Any], views: list[dict[str, Any]], language: str) -> str:
    here = files(__name__)
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    scripts = [here.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    parts = [*scripts[:-1], *_trying(here, views), scripts[-1]]
    script = libraries() + "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'{_hash(style)}'",
        "script-src": f"'{_hash(script)}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    filled = {
        "POLICY": "; ".join(f"{what} {source}" for what, source in allowed.items()),
        "TITLE": escape(f"{data['script'] or data['trace']} · gradviz"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _json({**data, "texts": texts_of_scripts(parts, language)}),
        "VIEWS": "\n".join(
            f'<script type="application/octet-stream" id="views-{number}">{_compressed(pack)}</script>'
            for number, pack in enumerate(_packed(views))
        ),
    }
    parts = in_language(here.joinpath("page.html").read_text(encoding="utf-8"), language).split("@@")
    return "".join(part if position % 2 == 0 else filled[part] for position, part in enumerate(parts))


def libraries() -> str:
    """The libraries with their licences, which always accompany them."""
    vendor = files(__name__).joinpath("vendor")
    parts = [vendor.joinpath(f"{name}.min.js").read_text(encoding="utf-8") for name in LIBRARIES]
    return "/*\n" + vendor.joinpath("LICENSE").read_text(encoding="utf-8") + "*/\n" + "".join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(views: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """The views in packs that are compressed together. The first view is alone: the page opens with it. Small passes of
    a loop are much alike: eight together take 5 kB each where one alone takes 9."""
    packs: list[list[dict[str, Any]]] = [[views[0]]]
    room = 0
    for one in views[1:]:
        size = len(one["nodes"]) + len(one["steps"])
        if size > room or len(packs[-1]) == _PACKED:
            packs.append([])
            room = _MOST_PACKED
        packs[-1].append(one)
        room -= size
    return list(packs)


def _compressed(views: Sequence[dict[str, Any]]) -> str:
    """Views as JSON, compressed (zlib) and in base64. The page decompresses a view when it shows it. Parts of one name
    lie behind one another: zlib sees only 32 kB back."""
    data = {name: [view[name] for view in views] for name in views[0]}
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def _json(data: Any) -> str:
    """Data as JSON that cannot end the HTML element that contains it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
