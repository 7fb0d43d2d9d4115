"""Converts SVG text to PDF bytes, with `fpdf2` and bundled fonts."""

from __future__ import annotations

import logging
import re
from importlib.resources import files

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

    logging.getLogger("fpdf.svg").setLevel(logging.ERROR)  # it logs each element that it omits
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    plain = _LINKS.sub(r"<\1g>", _TITLES.sub("", svg)).replace('"transparent"', '"none"')
    try:
        picture = SVGObject(plain)
    except ParseError as error:
        raise ValueError(f"the picture is not well-formed: {error}") from error
    page = FPDF(unit="pt")
    for style, name in _FACES.items():
        page.add_font(FAMILY, style, str(files("gradviz.pictures.fonts").joinpath(name)))
    page.set_font(FAMILY, size=10)
    page.set_margin(0)
    width, height = picture.width, picture.height
    if not (isinstance(width, float) and isinstance(height, float)):
        raise ValueError("the picture has no size")
    page.add_page(format=(width, height))
    picture.draw_to_page(page)
    return bytes(page.output())
