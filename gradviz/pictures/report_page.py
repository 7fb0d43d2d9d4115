"""The report: findings, curves and the picture of a run on one HTML page, in one file without network access."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from gradviz.query.curves import Binned, Histogram, NamedCurve
from gradviz.sets import distinct
from gradviz.words.escape import visible

COLOURS = (  # the pale ones last
    "#1c7ed6 #e8590c #2b8a3e #ae3ec9 #c92a2a #0c8599 #a6611a #5f3dc4 #868e96 #d6336c"
    " #4dabf7 #ffa94d #69db7c #da77f2 #ff8787 #3bc9db #dab280 #9775fa #adb5bd #f783ac"
).split()
MOST = 10  # the most curves in one chart of one run, which differ by colour
_MOST_POINTS = 400  # the most points of a curve; a longer curve has the least and the largest of each stretch


def is_clearer_linear(series: list[NamedCurve]) -> bool:
    """Whether some values are negative, or all are within a factor of ten."""
    values = np.concatenate([one.values for one in series])
    known = values[np.isfinite(values)]
    return len(known) > 0 and bool(known.min() < 0 or known.max() < 10 * known.min())


def _thinned(series: NamedCurve) -> tuple[np.ndarray, np.ndarray]:
    """The points of a curve. A long curve has the least and the largest finite point of each stretch, and a point
    that is not finite for each stretch that has any."""
    count = len(series.at)
    if count <= _MOST_POINTS:
        return series.at, series.values
    step = -(-2 * count // _MOST_POINTS)
    starts = np.arange(0, count, step)
    chosen = []
    for start in starts.tolist():
        part = series.values[start : start + step]
        finite = np.isfinite(part)
        if finite.any():
            chosen += [start + int(np.where(finite, part, np.inf).argmin())]
            chosen += [start + int(np.where(finite, part, -np.inf).argmax())]
        if not finite.all():
            chosen.append(start + int(finite.argmin()))
    places = distinct(chosen)
    return series.at[places], series.values[places]


_MOST_COLUMNS = 6  # the most passes that have a column of their own in the table of distributions
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src '{}'; base-uri 'none'; form-action 'none'"
_CONTROLS = """<div id="controls" hidden><label>names <input id="filter" type="search" placeholder="all"></label>
<label>mean over <select id="mean"><option>1<option>5<option>20<option>100</select></label>
<label>scale <select id="scale"><option value="fitting">as it fits<option>logarithmic<option>linear</select></label>
<span class="quiet">drag to enlarge a stretch in all charts</span> <button id="whole" hidden>show all</button></div>
<noscript><p class="quiet">The curves are drawn by a script, which is turned off here.</p></noscript>"""


class Excerpt(NamedTuple):
    """Lines of source from line `first` on; the lines from `marked` to `end` are the place itself."""

    first: int
    lines: tuple[str, ...]
    marked: int
    end: int


class Item(NamedTuple):
    """A finding as the report shows it. `nodes` are the ids and names of the picture's nodes that it is about; in a
    report of several runs, `where` names the runs that have it."""

    number: int
    severity: str
    rule: str
    place: str
    message: str
    fix: str
    command: str
    in_pass: int
    excerpt: Excerpt | None
    consequences: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    where: str = ""
    replayed: str = ""


class Drawn(NamedTuple):
    """A chart with its title, and a sentence under it. `marks` is whether findings are marked in it."""

    title: str
    series: list[NamedCurve]
    note: str = ""
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A module in the table of the model: texts, and its curves of gradient and change (None: not known). `costs` are
    the texts of the report's `costs`, empty if nothing was measured."""

    depth: int
    name: str
    type: str
    count: int
    shapes: str
    parameters: str
    ops: str
    gradient: NamedCurve | None
    change: NamedCurve | None
    costs: tuple[str, ...] = ()


class Line(NamedTuple):
    """The cost of a line of the program: its place, its source, its share of the total time, the op that took most of
    its time, and a text for each column."""

    place: str
    source: str
    share: float
    most: str
    costs: tuple[str, ...]


class Costs(NamedTuple):
    """The costs of ops: a sentence about all of them, the columns of lines and of modules, and the most expensive
    lines, with a note about the others."""

    total: str
    columns: tuple[str, ...]
    of_modules: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str


class Run(NamedTuple):
    """One of several runs: its name, its facts, and whether it has curves."""

    name: str
    facts: tuple[str, ...]
    is_drawn: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of a report. `facts` are pairs of a label and a text; `picture` is an SVG document. A report of
    several runs has `runs`, called `rank` in one run, whose facts have the labels `columns`, and neither rows nor a
    picture."""

    title: str
    facts: list[tuple[str, str]]
    items: list[Item]
    charts: list[Drawn]
    rows: list[Row] = field(default_factory=list)
    total: str = ""
    spreads: list[Binned] = field(default_factory=list)
    of_spreads: str = ""
    not_checked: list[tuple[str, str]] = field(default_factory=list)
    picture: str = ""
    caption: str = ""
    checked: int = 0
    columns: tuple[str, ...] = ()
    runs: list[Run] = field(default_factory=list)
    runs_called: str = "run"
    costs: Costs | None = None
    saved: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()  # sentences, each with a table


def html(report: Report) -> str:
    """The report as an HTML document."""
    here = files("gradviz.pictures")
    style, script = (here.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    script = "{\n" + script + "}\n"
    allowed = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(allowed)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.title)} · gradviz report</title><style>{style}</style></head><body>",
        _header(report),
        "<main>",
        *(text for _, text in _sections(report)),
        f"</main><script>{script}</script></body></html>",
    ]
    return "\n".join(parts)


def _sections(report: Report) -> list[tuple[str, str]]:
    """The name and the text of each part of the page."""
    items = "".join(map(_item, report.items))
    none = "" if items else f"No findings: {report.checked} rules were checked."
    sections = [
        (f"{report.runs_called}s", _runs(report)),
        ("findings", _section("findings", none, items)),
        ("curves", _curves(report)),
        ("model", _model(report)),
        ("profile", _profile(report)),
        ("saved-for-backward", _saved(report)),
        ("distributions", _distributions(report)),
        ("picture", _picture(report)),
        ("not-checked", _not_checked(report)),
    ]
    return [(name, text) for name, text in sections if text]


def _text(text: str) -> str:
    return escape(visible(text))


def _header(report: Report) -> str:
    facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>" for name, text in report.facts)
    links = "".join(f'<a href="#{name}">{name.replace("-", " ")}</a>' for name, _ in _sections(report))
    box = f"<dl>{facts}</dl>" if facts else ""
    return f"<header><h1>{_text(report.title)}</h1><nav>{links}</nav>{box}</header>"


def _runs(report: Report) -> str:
    if not report.runs:
        return ""
    colours = _colours(report)
    rows = (
        f'<th scope="row"><b style="background:{colours.get(run.name, "transparent")}"></b>{_text(run.name)}</th>'
        + "".join(f"<td>{_text(fact)}</td>" for fact in run.facts)
        for run in report.runs
    )
    table = _table([report.runs_called, *report.columns], rows, "runs")
    drawn = sum(run.is_drawn for run in report.runs)
    note = f"<p>Of {len(report.runs)} {report.runs_called}s, the {drawn} with a colour have curves.</p>"
    return _section(f"{report.runs_called}s", "", table, note if drawn < len(report.runs) else "")


def _section(name: str, about: str, *parts: str) -> str:
    """A part of the page with its heading, a sentence about it, and its text."""
    said = f'<p class="quiet">{_text(about)}</p>' if about else ""
    heading = name.replace("-", " ").capitalize()
    return f'<section id="{name}"><h2>{heading}</h2>{said}{"".join(parts)}</section>'


def _table(heads: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """A table from its heads and the cells of its rows."""
    head = "".join(f"<th>{_text(text)}</th>" for text in heads)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _item(item: Item) -> str:
    links = " ".join(f'<a href="#{_text(node)}">{_text(name)}</a>' for node, name in item.nodes)
    shown = f'<p class="see">in the picture: {links}</p>' if links else ""
    gives = f'<p class="see">{_text(item.replayed)}</p>' if item.replayed else ""
    follows = "".join(f"<li>{_text(text)}</li>" for text in item.consequences)
    where = f"<p class='see'>in {_text(item.where)}</p>" if item.where else ""
    because = f"<ul><li class='quiet'>because of this:</li>{follows}</ul>" if follows else ""
    return (
        f'<article id="finding-{item.number}" class="{_text(item.severity)}">'
        f'<h3><span class="number">{item.number}</span> <span class="severity">{_text(item.severity)}</span> '
        f'{_text(item.rule)} <span class="place">{_text(item.place)}</span></h3>'
        f"{where}<p>{_text(item.message)}</p>{_excerpt(item.excerpt)}"
        f'<p class="fix"><span>cure</span> <code>{_text(item.fix)}</code></p>{gives}'
        f'<p class="see"><code>{_text(item.command)}</code></p>{shown}{because}</article>'
    )


def _excerpt(excerpt: Excerpt | None) -> str:
    if excerpt is None:
        return ""
    rows = [
        f'<span class="{"here" if excerpt.marked <= number <= excerpt.end else "line"}">'
        f"<i>{number}</i>{_text(line)}</span>"
        for number, line in enumerate(excerpt.lines, excerpt.first)
    ]
    return f"<pre>{''.join(rows)}</pre>"


def _curves(report: Report) -> str:
    marks = [(item.in_pass, str(item.number), f"#finding-{item.number}") for item in report.items if item.in_pass]
    colours = _colours(report)
    drawn_first = sorted(report.charts, key=lambda one: not one.series)
    parts = "".join(_chart(one, colours, marks if one.marks else []) for one in drawn_first)
    return _section("curves", "", _CONTROLS, f'<div class="charts">{parts}</div>')


def _colours(report: Report) -> dict[str, str]:
    """The colour of each curve by its name, the same in all charts and, unless two names meet, in all reports."""
    names = dict.fromkeys(run.name for run in report.runs if run.is_drawn)
    charts = sorted(report.charts, key=lambda one: -len(one.series))
    names |= dict.fromkeys(series.name for one in charts for series in one.series)
    colours: dict[str, str] = {}
    for name in names:
        first = zlib.crc32(name.encode()) % MOST
        ordered = COLOURS[first:MOST] + COLOURS[:first] + COLOURS[MOST:]
        colours[name] = next((colour for colour in ordered if colour not in colours.values()), ordered[0])
    return colours


def _chart(one: Drawn, colours: dict[str, str], marks: list[tuple[int, str, str]]) -> str:
    note = f"<p class='quiet'>{_text(one.note)}</p>" if one.note else ""
    if not one.series:
        return f"<figure><h3>{_text(one.title)}</h3>{note}</figure>"
    names = "".join(
        f'<li><b style="background:{colours[series.name]}"></b>{_text(series.name)}<span>{_last(series)}</span></li>'
        for series in one.series
    )
    curves = escape(json.dumps(chart_data(one, colours, marks), separators=(",", ":")))
    plot = f'<div class="plot" data-curves="{curves}"></div>'
    return f'<figure><h3>{_text(one.title)}</h3>{plot}<ul class="legend">{names}</ul>{note}</figure>'


def chart_data(one: Drawn, colours: dict[str, str], marks: list[tuple[int, str, str]]) -> dict[str, Any]:
    """What the script of a report draws a chart from. A value that is not finite is None."""
    return {
        "axis": one.title.rpartition(" ")[2],
        "linear": is_clearer_linear(one.series),
        "marks": marks,
        "series": [
            {"name": visible(series.name), "colour": colours[series.name], **_points(series)} for series in one.series
        ],
    }


def _points(series: NamedCurve) -> dict[str, list[Any]]:
    at, values = _thinned(series)
    known = [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
    return {"at": at.tolist(), "values": known}


def _model(report: Report) -> str:
    if not report.rows:
        return ""
    has_changes = any(row.change is not None for row in report.rows)
    heads = ["module", "class", "parameters", "elements", "ops"]
    heads += report.costs.of_modules if report.costs is not None else []
    heads += ["gradient norm, by pass", *["relative change, by step"][:has_changes]]
    return _section("model", report.total, _table(heads, (_row(row, has_changes) for row in report.rows)))


def _distributions(report: Report) -> str:
    if not report.spreads:
        return ""
    passes = sorted({number for one in report.spreads for number in one.histograms})
    is_aligned = len(passes) <= _MOST_COLUMNS
    most = len(passes) if is_aligned else max(len(one.histograms) for one in report.spreads)
    has_last = any(one.last is not None for one in report.spreads)
    rows = []
    for one in report.spreads:
        numbers = passes if is_aligned else [*one.histograms, *[0] * (most - len(one.histograms))]
        cells = "".join(_spread(f"{number:,}", one.histograms.get(number)) for number in numbers)
        cells += _spread(f"after {one.last[0]:,}", one.last[1]) if one.last else "<td></td>" if has_last else ""
        rows.append(f'<th scope="row">{_text(one.name)}</th><td>{_text(one.what)}</td>{cells}')
    table = _table(["of", "elements", *["pass"] * most, *["last"][:has_last]], rows)
    return _section("distributions", report.of_spreads, table)


def _spread(label: str, histogram: Histogram | None) -> str:
    """The cell of a histogram at a pass; an empty cell if there is none."""
    if histogram is None:
        return "<td></td>"
    low, high, counts = histogram
    ends = f"<div><span>{low:.3g}</span> <span>{high:.3g}</span></div>"
    bars = escape(json.dumps([low, high, counts.tolist()]))
    return f'<td class="spread"><b>{label}</b><i data-bars="{bars}"></i>{ends}</td>'


def _profile(report: Report) -> str:
    """The table of lines by their cost."""
    if report.costs is None:
        return ""
    rows = (
        f'<th scope="row">{_text(line.place)}</th><td><code>{_text(line.source)}</code></td>'
        f'<td class="share"><i style="width:{60 * line.share:.1f}px"></i>{100 * line.share:.1f}%</td>'
        + "".join(f'<td class="count">{_text(cost)}</td>' for cost in line.costs)
        + f"<td>{_text(line.most)}</td>"
        for line in report.costs.lines
    )
    table = _table(("line", "source", "of all time", *report.costs.columns, "mostly"), rows)
    return _section("profile", report.costs.total, table, f'<p class="quiet">{_text(report.costs.note)}</p>')


def _saved(report: Report) -> str:
    parts = []
    for about, heads, rows in report.saved:
        cells = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows)
        parts.append(f'<p class="quiet">{_text(about)}</p>{_table(heads, cells)}')
    return _section("saved-for-backward", "", *parts) if parts else ""


def _row(row: Row, has_changes: bool) -> str:
    times = f" <span>×{row.count}</span>" if row.count > 1 else ""
    cells = [
        f'<th scope="row" style="padding-left:{8 + 14 * row.depth}px">{_text(row.name)}{times}</th>',
        f"<td>{_text(row.type)}</td><td>{_text(row.shapes)}</td>",
        f'<td class="count">{_text(row.parameters)}</td><td class="count">{_text(row.ops)}</td>',
        *(f'<td class="count">{_text(cost)}</td>' for cost in row.costs),
        *(_cell(series) for series in (row.gradient, row.change)[: 1 + has_changes]),
    ]
    return "".join(cells)


def _cell(series: NamedCurve | None) -> str:
    if series is None:
        return "<td></td>"
    return (
        f'<td class="curve"><i data-curve="{escape(json.dumps(_points(series)))}"></i><span>{_last(series)}</span></td>'
    )


def _last(series: NamedCurve) -> str:
    value = float(series.values[-1])
    return f"{value:.3g}" if np.isfinite(value) else "not finite"


def _picture(report: Report) -> str:
    if not report.picture:
        return ""
    inner = report.picture[max(0, report.picture.find("<svg")) :]
    return _section("picture", report.caption, f'<div class="paper" tabindex="0">{inner}</div>')


def _not_checked(report: Report) -> str:
    if not report.not_checked and report.runs:
        return ""
    rows = "".join(f"<li><b>{_text(rules)}</b>: {_text(reason)}</li>" for reason, rules in report.not_checked)
    return _section("not-checked", f"{report.checked} rules were checked.", f"<ul>{rows}</ul>")
