"""Switches the watching of a thread's calls: they are watched from when its mode is pushed until it is taken out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradviz.sources.torch_recorder.forward import Forward
from gradviz.sources.torch_recorder.shared import Source, safely

_overrides: Any = torch.overrides


class Watching:
    """Switches the mode of a thread on and off."""

    def __init__(self, source: Source, forward: Forward) -> None:
        self.source, self.forward = source, forward

    def push(self, below: int | None = None) -> None:
        """Watch the calls of this thread. `below` is the number of the program's modes to leave below ours; None:
        all."""
        above = []
        while below is not None and torch._C._len_torch_function_stack() > below:
            above.append(_overrides._pop_mode())
        _overrides._push_mode(self.forward)
        for mode in reversed(above):
            _overrides._push_mode(mode)

    def take_out(self) -> int:
        """Stop watching the calls of this thread. Returns the number of modes that were below ours."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = _overrides._pop_mode()
            if mode is self.forward:
                break
            above.append(mode)
        below: int = torch._C._len_torch_function_stack()
        for mode in reversed(above):
            _overrides._push_mode(mode)
        return below

    def is_on(self) -> bool:
        """Whether the calls of this thread are watched."""
        count = torch._C._len_torch_function_stack()
        return any(torch._C._get_function_stack_at(at) is self.forward for at in reversed(range(count)))

    @safely
    def is_watched(self) -> bool:
        """Whether calls of this thread are recorded."""
        return self.source.listener is not None and self.is_on()

    @contextmanager
    def on(self) -> Iterator[None]:
        """A context in which the calls of this thread are watched, also inside a watched call, where watching is
        off."""
        thread = self.source.thread
        unseen = thread.unseen
        is_new = self._push_if_off()
        try:
            yield
        finally:
            if is_new:
                thread.unseen = unseen
                self._take_out_safely()

    @safely
    def _push_if_off(self) -> bool:
        if self.is_on():
            return False
        self.source.thread.unseen = False
        self.push()
        return True

    @safely
    def _take_out_safely(self) -> None:
        self.take_out()

    @safely
    def pause(self) -> bool:
        """Stop watching the calls of PyTorch until `go_on`. Returns whether they were watched."""
        if not self.is_on():
            return False
        self.source.thread.below = self.take_out()
        return True

    @safely
    def go_on(self) -> None:
        """Watch the calls again."""
        thread = self.source.thread
        if not (thread.unseen or self.is_on()) and self.source.listener is not None:
            self.push(thread.below)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which the calls of PyTorch are not watched."""
        was_on = self.pause()
        try:
            yield
        finally:
            if was_on:
                self.go_on()


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
