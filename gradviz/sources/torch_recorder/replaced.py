"""What stands in the place of PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradviz.sources.torch_recorder.shared import Source, safely


class Replaced:
    """Puts functions in the place of others, and these back."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.replaced: list[tuple[Any, str, Any, Any]] = []  # what stood there, and what stands there now

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Put `new` in the place that `owner` has under a name."""
        before = vars(owner).get(name)
        setattr(owner, name, new)
        self.replaced.append((owner, name, before, vars(owner)[name]))

    def put_back(self) -> list[tuple[Any, str, Any]]:
        """Put back what stood there; returns what took its place. What somebody else has put there since stays: it may
        call ours, which then only hands the call on."""
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
        """What stood there before stands there inside."""
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
