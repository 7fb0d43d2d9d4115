"""A chart of curves as SVG, over passes or steps; and the small charts of a table."""

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
    "#4dabf7",
    "#ffa94d",
    "#69db7c",
    "#da77f2",
    "#ff8787",
    "#3bc9db",
    "#dab280",
    "#9775fa",
    "#adb5bd",
    "#f783ac",
)
MOST = 10  # the most curves in one chart of one run, which differ by colour
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 520, 220, 56, 28, 22, 30  # right: half a number of passes
_MOST_POINTS = 400  # the most points of a curve; a longer curve has the least and the largest of each stretch
_SMALL = 110, 20  # width and height of the charts of a table
_LABELS = 6
_MOST_NUMBERS = 9, 5  # the most steps from one number of a pass to the next; of wide numbers
_WIDE = 10_000
_LARGEST_DECADE = sys.float_info.max_10_exp
_LARGEST = sys.float_info.max / 100  # the largest value on a linear scale


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


def chart(series: list[Series], colours: list[str], marks: list[Mark], linear: bool = False) -> str:
    """The curves as an SVG element that is as wide as its container, each in its colour. The scale is logarithmic, or
    `linear`."""
    values = np.concatenate([one.values for one in series])
    places = np.concatenate([one.at for one in series])
    frame = _Frame(float(places.min()), float(places.max()), *_extent(values, linear), linear)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="chart">',
        *frame.grid(),
        *(frame.curve(one, colour) for one, colour in zip(series, colours, strict=True)),
        *(frame.mark(mark) for mark in marks),  # above the curves: they are links
        "</svg>",
    ]
    return "\n".join(parts)


def is_clearer_linear(series: list[Series]) -> bool:
    """Whether some values are negative, or all are within a factor of ten."""
    values = np.concatenate([one.values for one in series])
    known = values[np.isfinite(values)]
    return len(known) > 0 and bool(known.min() < 0 or known.max() < 10 * known.min())


def small_chart(series: Series) -> str:
    """One curve without axes, logarithmic, for a cell of a table."""
    width, height = _SMALL
    low, high = _extent(series.values, False)
    at, values = _thinned(series)
    known = np.isfinite(values) & (values > 0)
    at, values = at[known].astype(float), np.log10(values[known])
    if not len(at):
        return ""
    span = max(float(series.at.max() - series.at.min()), 1.0)
    xs = 2 + (at - series.at.min()) / span * (width - 4)
    ys = height - 2 - (values - low) / (high - low) * (height - 4)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    line = (
        f'<polyline points="{points}"/>'
        if len(at) > 1
        else f'<circle cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="2"/>'
    )
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" class="small">{line}</svg>'


def bars(counts: np.ndarray, low: float, high: float) -> str:
    """A histogram from `low` to `high`, with a line at 0 if that lies between them."""
    width, height = _SMALL
    tallest = max(int(counts.max()), 1)
    step = width / len(counts)
    shown = "".join(
        f'<rect x="{place * step:.1f}" y="{height * (1 - count / tallest):.1f}" width="{step - 0.4:.1f}" '
        f'height="{height * count / tallest:.1f}"/>'
        for place, count in enumerate(counts.tolist())
        if count
    )
    zero = width * -low / (high - low)
    line = f'<line x1="{zero:.1f}" x2="{zero:.1f}" y2="{height}"/>' if low < 0 < high else ""
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" class="bars">{line}{shown}</svg>'


def _extent(values: np.ndarray, linear: bool) -> tuple[float, float]:
    """The least and the largest value on a scale, with a margin; as logarithms unless it is linear."""
    known = values[np.isfinite(values) & (linear | (values > 0))]
    known = np.clip(known, -_LARGEST, _LARGEST) if linear else np.log10(known)
    low, high = (float(known.min()), float(known.max())) if len(known) else (-1.0, 1.0)
    least = 0.05 * max(abs(low), abs(high)) or 0.1
    margin = max(0.05 * (high - low), least if linear else 0.1)
    return low - margin, high + margin


def _thinned(series: Series) -> tuple[np.ndarray, np.ndarray]:
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


@dataclass(frozen=True, slots=True)
class _Frame:
    """The scales: the first and last place, and the least and largest value, as decimal logarithms unless the scale
    is linear."""

    first: float
    last: float
    low: float
    high: float
    linear: bool

    def x(self, place: float) -> float:
        share = (place - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if value <= 0 and not self.linear:
            return _HEIGHT - _BOTTOM
        height = value if self.linear else float(np.log10(value))
        return _HEIGHT - _BOTTOM - (height - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        """Lines at round values, and the numbers of passes or steps."""
        parts = []
        for value in self._round_values() if self.linear else self._values():
            y, text = self.y(value), f"{value:.6g}"
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(_label(_LEFT - 6, y + 4, text, "end"))
        parts += [
            _label(self.x(place), _HEIGHT - 8, f"{place:,}", "middle")
            for place in _numbers(round(self.first), round(self.last))
        ]
        return parts

    def _values(self) -> list[float]:
        """Powers of ten; values between them too if there are few."""
        decades = range(int(np.floor(self.low)), min(int(np.ceil(self.high)), _LARGEST_DECADE) + 1)
        every = max(1, -(-len(decades) // _LABELS))
        steps = (1, 2, 5) if self.high - self.low < 2 else (1,)
        values = [step * 10.0**decade for decade in decades if decade % every == 0 for step in steps]
        return [value for value in values if self.low <= np.log10(value) <= self.high]

    def _round_values(self) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / _LABELS
        decade = 10.0 ** np.floor(np.log10(rough))
        step = next(float(decade * factor) for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)
        first, last = int(np.ceil(self.low / step)), int(np.floor(self.high / step))
        return [number * step for number in range(first, last + 1)]

    def curve(self, series: Series, colour: str) -> str:
        """The stretches of finite values as lines, the other stretches as marks at the upper edge."""
        at, values = _thinned(series)
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


def _numbers(first: int, last: int) -> list[int]:
    """The first and the last pass or step, and round numbers between them that are not too near to these."""
    most = _MOST_NUMBERS[last >= _WIDE]
    step = next(
        factor * 10**decade
        for decade in range(_LARGEST_DECADE)
        for factor in (1, 2, 5)
        if last - first <= most * factor * 10**decade
    )
    between = range(-(-(first + 1) // step) * step, last, step)
    return sorted(
        {first, last} | {number for number in between if min(number - first, last - number) >= 0.8 * step}
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
