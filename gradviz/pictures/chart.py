"""A chart of curves as SVG: logarithmic values over passes or steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape

import numpy as np

from gradviz.sets import distinct
from gradviz.words.escape import visible

COLOURS = (
    "#1c7ed6",
    "#e8590c",
    "#2b8a3e",
    "#ae3ec9",
    "#c92a2a",
    "#0c8599",
    "#a6611a",
    "#5f3dc4",
    "#868e96",
    "#d6336c",
)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 240, 56, 12, 22, 30
_MOST_POINTS = 400  # of a curve
_LABELS = 6
_LARGEST_DECADE = sys.float_info.max_10_exp


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name, and its points. A value that is not finite is drawn as a mark at the upper edge."""

    name: str
    at: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a pass or step, with a link."""

    at: int
    label: str
    link: str


def chart(series: list[Series], colours: list[str], marks: list[Mark]) -> str:
    """The curves as an SVG element that is as wide as its container, each in the colour beside it."""
    values = np.concatenate([one.values for one in series])
    places = np.concatenate([one.at for one in series])
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (np.log10(known.min()), np.log10(known.max())) if len(known) else (-1.0, 1.0)
    margin = max(0.05 * (high - low), 0.1)
    frame = _Frame(float(places.min()), float(places.max()), float(low - margin), float(high + margin))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="chart">',
        *frame.grid(),
        *(frame.mark(mark) for mark in marks),
        *(frame.curve(one, colour) for one, colour in zip(series, colours, strict=True)),
        "</svg>",
    ]
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The scales: the first and last place, the least and largest decimal logarithm."""

    first: float
    last: float
    low: float
    high: float

    def x(self, place: float) -> float:
        share = (place - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if value <= 0:
            return _HEIGHT - _BOTTOM
        share = (np.log10(value) - self.low) / (self.high - self.low)
        return float(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM))

    def grid(self) -> list[str]:
        """Lines at powers of ten, between them too if there are few, and the numbers of passes or steps."""
        found = []
        for value in self._values():
            y, text = self.y(value), f"{value:.6g}"
            found.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            found.append(_label(_LEFT - 6, y + 4, text, "end"))
        places = np.linspace(self.first, self.last, _LABELS).round()
        found += [
            _label(self.x(place), _HEIGHT - 8, f"{place:,}", "middle")
            for place in distinct(places).astype(int).tolist()
        ]
        return found

    def _values(self) -> list[float]:
        decades = range(int(np.floor(self.low)), min(int(np.ceil(self.high)), _LARGEST_DECADE) + 1)
        every = max(1, -(-len(decades) // _LABELS))
        steps = (1, 2, 5) if self.high - self.low < 2 else (1,)
        values = [step * 10.0**decade for decade in decades if decade % every == 0 for step in steps]
        return [value for value in values if self.low <= np.log10(value) <= self.high]

    def curve(self, series: Series, colour: str) -> str:
        """The stretches of finite values as lines, those of others at the upper edge."""
        step = -(-len(series.at) // _MOST_POINTS)
        at, values = series.at[::step], series.values[::step]
        finite = np.isfinite(values)
        bounds = np.flatnonzero(np.diff(finite.astype(int))) + 1
        parts = []
        for places, points in zip(np.split(at, bounds), np.split(values, bounds), strict=True):
            xs = [self.x(place) for place in places.tolist()]
            parts.append(self._line(xs, points.tolist(), colour) if np.isfinite(points[0]) else _odd(xs))
        return f"<g><title>{escape(visible(series.name))}</title>{''.join(parts)}</g>"

    def _line(self, xs: list[float], values: list[float], colour: str) -> str:
        ys = [self.y(value) for value in values]
        if len(xs) == 1:
            return f'<circle cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="2.5" fill="{colour}"/>'
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}"/>'

    def mark(self, mark: Mark) -> str:
        x = self.x(min(max(mark.at, self.first), self.last))
        return (
            f'<a href="{escape(mark.link)}"><rect x="{x - 9:.1f}" width="18" height="{_HEIGHT - _BOTTOM}" '
            f'fill="transparent"/><line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" '
            f'y2="{_HEIGHT - _BOTTOM}"/><text class="mark" x="{x:.1f}" y="12" text-anchor="middle">'
            f"{escape(mark.label)}</text></a>"
        )


def _odd(xs: list[float]) -> str:
    """A mark where a curve stops being finite, and a line along the upper edge while it is not."""
    x, end = xs[0], xs[-1]
    return (
        f'<line class="odd" x1="{x:.1f}" x2="{end:.1f}" y1="{_TOP}" y2="{_TOP}"/>'
        f'<path class="odd" d="M{x - 4:.1f} {_TOP - 6}h8l-4 7z"><title>not finite</title></path>'
    )


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
