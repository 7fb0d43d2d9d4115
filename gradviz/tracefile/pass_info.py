"""What the tables of a trace say of a run: its passes, its errors, which ops ran at which sites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PassInfo(NamedTuple):
    """One backward pass: its first and last event (None: it did not end), how many nodes ran, and a digest that
    passes of the same structure share, "" where no node was told."""

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
        """Whether nodes of it were told, or may have been: it did not end."""
        return self.digest != ""


class ErrorInfo(NamedTuple):
    """An exception that left a backward pass, or ended the program (node 0)."""

    event: int
    type: str
    message: str
    node: int
    site: int


class SiteOps(NamedTuple):
    """What ran at each site: distinct pairs (site << 32 | op), with `contents.SCOPE` for the op where a scope was
    entered, and the last op of each site."""

    pairs: np.ndarray
    last: dict[int, int]
