"""What the views of a page hold, which are compressed in its file."""

from __future__ import annotations

import base64
import re
import zlib

_VIEW = re.compile(r'<script type="application/octet-stream" id="view-\d+">(.*?)</script>')


def views_of(page: str) -> list[str]:
    """The views of a page, as JSON."""
    return [zlib.decompress(base64.b64decode(text)).decode() for text in _VIEW.findall(page)]
