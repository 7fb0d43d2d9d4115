"""The report: findings, curves and the picture of a run on one HTML page, in one file without network access."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

import numpy as np

from gradviz.pictures.chart import COLOURS, Mark, Series, chart
from gradviz.words.escape import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of source from line `first` on; those from `marked` to `end` are the place itself."""

    first: int
    lines: tuple[str, ...]
    marked: int
    end: int


@dataclass(frozen=True, slots=True)
class Item:
    """A finding as the report shows it. `nodes` are the ids and names of the nodes of the picture that it is
    about."""

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


@dataclass(frozen=True, slots=True)
class Report:
    """What a report shows. `facts` are pairs of a label and a text; `picture` is an SVG document."""

    title: str
    facts: list[tuple[str, str]]
    items: list[Item]
    not_checked: list[tuple[str, str]]
    norms: list[Series]
    ratios: list[Series]
    more: str
    picture: str
    caption: str
    checked: int = 0
    notes: list[str] = field(default_factory=list)


def html(report: Report) -> str:
    """The report as an HTML document."""
    style = files("gradviz.pictures").joinpath("report.css").read_text(encoding="utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.title)} · gradviz report</title><style>{style}</style></head><body>",
        _header(report),
        "<main>",
        _findings(report),
        _curves(report),
        _picture(report),
        _not_checked(report),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _text(text: str) -> str:
    return escape(visible(text))


def _header(report: Report) -> str:
    facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>" for name, text in report.facts)
    links = "".join(
        f'<a href="#{name}">{name}</a>' for name in ("findings", "curves", "picture", "not-checked")
    )
    return f"<header><h1>{_text(report.title)}</h1><nav>{links}</nav><dl>{facts}</dl></header>"


def _findings(report: Report) -> str:
    items = "".join(map(_item, report.items))
    verdict = (
        f"<p class='quiet'>No findings: {report.checked} rules were checked.</p>" if not report.items else ""
    )
    return f'<section id="findings"><h2>Findings</h2>{verdict}{items}</section>'


def _item(item: Item) -> str:
    links = " ".join(f'<a href="#{_text(node)}">{_text(name)}</a>' for node, name in item.nodes)
    shown = f'<p class="see">in the picture: {links}</p>' if links else ""
    follows = "".join(f"<li>{_text(text)}</li>" for text in item.consequences)
    because = f"<ul><li class='quiet'>because of this:</li>{follows}</ul>" if follows else ""
    return (
        f'<article id="finding-{item.number}" class="{_text(item.severity)}">'
        f'<h3><span class="number">{item.number}</span> <span class="severity">{_text(item.severity)}</span> '
        f'{_text(item.rule)} <span class="place">{_text(item.place)}</span></h3>'
        f"<p>{_text(item.message)}</p>{_excerpt(item.excerpt)}"
        f'<p class="fix"><span>cure</span> <code>{_text(item.fix)}</code></p>'
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
    marks = [
        Mark(item.in_pass, str(item.number), f"#finding-{item.number}")
        for item in report.items
        if item.in_pass
    ]
    names = dict.fromkeys(one.name for one in (*report.norms, *report.ratios))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    parts = [
        _chart("Norm of each gradient, by pass", report.norms, colours, marks),
        _chart("Change of each parameter relative to its size, by step", report.ratios, colours, []),
    ]
    more = f"<p class='quiet'>{_text(report.more)}</p>" if report.more else ""
    return f'<section id="curves"><h2>Curves</h2>{"".join(parts)}{more}</section>'


def _chart(title: str, series: list[Series], colours: dict[str, str], marks: list[Mark]) -> str:
    if not series:
        return f"<h3>{title}</h3><p class='quiet'>The trace has no values for it.</p>"
    names = "".join(
        f'<li><b style="background:{colours[one.name]}"></b>{_text(one.name)}<span>{_last(one)}</span></li>'
        for one in series
    )
    drawn = chart(series, [colours[one.name] for one in series], marks)
    return f'<figure><h3>{title}</h3>{drawn}<ul class="legend">{names}</ul></figure>'


def _last(series: Series) -> str:
    value = float(series.values[-1])
    return f"{value:.3g}" if np.isfinite(value) else "not finite"


def _picture(report: Report) -> str:
    inner = report.picture[max(0, report.picture.find("<svg")) :]
    return (
        f'<section id="picture"><h2>Picture</h2><p class="quiet">{_text(report.caption)}</p>'
        f'<div class="paper" tabindex="0">{inner}</div></section>'
    )


def _not_checked(report: Report) -> str:
    rows = "".join(f"<li><b>{_text(rules)}</b>: {_text(reason)}</li>" for reason, rules in report.not_checked)
    told = f"{report.checked} rules were checked."
    return (
        f'<section id="not-checked"><h2>Not checked</h2><p class="quiet">{told}</p><ul>{rows}</ul></section>'
    )
