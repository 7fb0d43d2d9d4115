"""The rows of the tables of a trace about its run: its passes, its errors, the ops that ran at each site."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PassInfo(NamedTuple):
    """One backward pass: its first and last event (None: it did not end), the number of nodes that ran, and a digest
    that passes of the same structure share, "" if no node was recorded."""

    number: int
    first: int
    last: int | None
    thread: int
    site: int
    nodes: int | None
    digest: str | None
    recorded: int

    @property
    def is_in_detail(self) -> bool:
        """Whether nodes of it were recorded, or may have been: it did not end."""
        return self.digest != ""


class ErrorInfo(NamedTuple):
    """An exception that left a backward pass, or ended the program (node 0)."""

    event: int
    type: str
    message: str
    node: int
    site: int


class SiteOps(NamedTuple):
    """The ops that ran at each site: distinct pairs (site << 32 | op), with `contents.SCOPE` for the op if a scope was
    entered there, and the last op of each site."""

    pairs: np.ndarray
    last: dict[int, int]
