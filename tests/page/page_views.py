"""What the views of a page hold, which are compressed in its file."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

_PACK = re.compile(r'<script type="application/octet-stream" id="views-\d+">(.*?)</script>')


def views_of(page: str) -> list[str]:
    """The views of a page, as JSON."""
    return [json.dumps(view, ensure_ascii=True, separators=(",", ":")) for view in parsed_views(page)]


def parsed_views(page: str) -> list[dict[str, Any]]:
    """The views of a page."""
    packs = [json.loads(zlib.decompress(base64.b64decode(text))) for text in _PACK.findall(page)]
    return [dict(zip(pack, values, strict=True)) for pack in packs for values in zip(*pack.values(), strict=True)]
