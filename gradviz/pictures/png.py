"""Converts SVG text to PNG bytes, with gradviz's own fonts, so that text is drawn on machines without fonts."""

from __future__ import annotations

import math
import re
from pathlib import Path

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
