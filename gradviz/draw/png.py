"""SVG text in, PNG bytes out, with fonts of our own, so that there is text on a machine without any."""

from __future__ import annotations

import math
import re
from pathlib import Path

_FONTS = [str(file) for file in sorted(Path(__file__).with_name("fonts").glob("*.ttf"))]

_CRISP, _LEGIBLE = 2.0, 1.0  # pixels per point
MOST_PIXELS = 32_000_000  # a million takes 0.1 s and 8 MB; where memory ends, resvg ends the process


class PictureTooLarge(ValueError):
    """The picture has too many pixels. The message is one line: its size, the limit, and what to do."""


def to_png(svg: str, scale: float | None = None) -> bytes:
    """Draw `svg` as a PNG with `scale` pixels per point. By itself it takes 2, or for a large picture 1 to 2.

    Raises PictureTooLarge before it draws anything, and ValueError when `svg` is not an SVG of a stated size.
    """
    import resvg_py  # here, so that only a PNG needs it

    width, height = _size(svg)
    if scale is None:
        scale = _scale_for(width, height)
    if not scale > 0:
        raise ValueError(f"the scale has to be more than 0, and it is {scale}")
    if width * scale * height * scale > MOST_PIXELS:
        raise PictureTooLarge(
            f"a PNG of {width * scale:,.0f} × {height * scale:,.0f} pixels is too large (at most "
            f"{MOST_PIXELS:,}): save it as .svg, or draw less of it (fold it, or slice around a node)"
        )
    return resvg_py.svg_to_bytes(
        svg_string=svg,
        zoom=scale,
        dpi=72,  # then a point is a pixel
        font_files=_FONTS,  # and the fonts of the system, for the scripts that ours do not know
        font_family="DejaVu Sans",
        serif_family="DejaVu Sans",
        sans_serif_family="DejaVu Sans",
        monospace_family="DejaVu Sans Mono",
    )


def _size(svg: str) -> tuple[float, float]:
    """Width and height of `svg` in points: what it states, else those of its viewBox."""
    tag = re.search(r"<svg\b[^>]*>", svg)
    if tag is None:
        raise ValueError("this is not an SVG document: there is no <svg> in it")
    width = re.search(r'\swidth="([\d.]+)(?:pt|px)?"', tag[0])
    height = re.search(r'\sheight="([\d.]+)(?:pt|px)?"', tag[0])
    if width and height:
        return _nonzero(width[1], height[1])
    box = re.search(r'\sviewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', tag[0])
    if box and not re.search(r"\s(width|height)=", tag[0]):
        return _nonzero(box[1], box[2])
    raise ValueError("this SVG does not say how large it is: it needs a width and a height in pt or px")


def _nonzero(width: str, height: str) -> tuple[float, float]:
    if not float(width) * float(height):
        raise ValueError(f"this SVG has no area: it is {width} × {height}")
    return float(width), float(height)


def _scale_for(width: float, height: float) -> float:
    """The scale at which text is crisp, or the largest that fits, as long as text is legible."""
    fits = math.sqrt(0.99 * MOST_PIXELS / (width * height))
    return max(_LEGIBLE, min(_CRISP, fits))
