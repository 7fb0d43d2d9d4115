"""The rows of the table by their keys. `table/derivatives/` fills it."""

from __future__ import annotations

from gradviz.engine.core.op import Op

TABLE: dict[str, Op] = {}
