"""The replacements of PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradviz.sources.torch_recorder.shared import Source, safely


class Replaced:
    """Replaces functions, and restores them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # for each: the owner, the name, the old value, the replacement
        self.replaced: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Replace the attribute `name` of `owner` by `new`."""
        before = vars(owner).get(name)
        setattr(owner, name, new)
        self.replaced.append((owner, name, before, vars(owner)[name]))

    def put_back(self) -> list[tuple[Any, str, Any]]:
        """Restore the old values; returns the replacements. An attribute that was replaced again since stays: the
        newer function may call ours, which then only hands the call on."""
        taken_out = []
        while self.replaced:
            owner, name, before, ours = self.replaced.pop()
            if vars(owner).get(name) is not ours:
                continue
            taken_out.append((owner, name, ours))
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return taken_out

    @contextmanager
    def put_back_for_now(self) -> Iterator[None]:
        """A context in which the old values are restored."""
        taken_out = self._put_back()
        try:
            yield
        finally:
            self._put_again(taken_out or ())

    @safely
    def _put_back(self) -> list[tuple[Any, str, Any]]:
        return self.put_back()

    @safely
    def _put_again(self, ours: Sequence[tuple[Any, str, Any]]) -> None:
        for owner, name, new in reversed(ours):
            self.put(owner, name, new)
