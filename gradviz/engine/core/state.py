"""What is switched on: grad mode, the listener, forward mode.

An op's fast path asks one question, `state.special`: is anything in any thread other than ordinary? Only then
does it look at the particulars, which are per thread where they are in PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from gradviz.events.listener import Listener
from gradviz.events.numbers import (
    next_node_number,
    next_optimizer_number,
    next_pass_number,
    next_scope_number,
    next_tensor_number,
)

__all__ = [
    "enable_grad", "inference_mode", "is_grad_enabled", "listen", "next_node_number", "next_optimizer_number",
    "next_pass_number", "next_scope_number", "next_tensor_number", "no_grad", "note_special",
    "set_grad_enabled", "set_grad_mode", "state",
]  # fmt: skip


class _ThreadModes(threading.local):
    grad_enabled = True
    backward_depth = 0
    saved_tensors_hooks: tuple = ()  # pairs; the last is in force
    hooks_disabled: str | None = None  # what is said of an attempt to use hooks
    running: Any = None  # the pass that somebody watches, while it runs
    held_nodes: list | None = None  # whose saved tensors are packed when an operation in place is over
    held_ops: list | None = None  # those of an operation in place, which is told as one when it is over


class ForwardMode(Protocol):
    """Who pushes tangents while a dual level is open. Ops know it as this, because it is built on ops."""

    def push(self, op: Any, inputs: Any, outputs: Any, args: tuple) -> list[tuple[Any, Any]]:
        """Give an op's outputs their tangents. Returns the pairs of output and tangent."""

    def restore(self, output: Any, node: Any, nr: int = 0) -> None:
        """Give the nr-th output of a node, saved, which is a tensor anew, the tangent that it had."""


class State:
    """`special` counts the `reasons` for leaving an op's fast path; `listener` is whom to tell, or None."""

    __slots__ = (
        "anomaly",
        "check_nan",
        "dual_level",
        "first_number",
        "forward_mode",
        "listener",
        "modes",
        "only_listener",
        "reasons",
        "special",
        "watched",
    )

    def __init__(self) -> None:
        self.special = 0
        self.reasons: set[str | int] = set()
        self.anomaly = False  # passes look at what every node returns
        self.check_nan = True
        self.listener: Listener | None = None
        self.only_listener: Listener | None = None  # the listener, when nothing else is special
        self.first_number = 1  # tensors of a lower number the listener has not heard of
        self.dual_level = 0
        self.forward_mode: ForwardMode | None = None  # while a dual level is open
        self.watched = False  # user code has been given a way to see the order of a pass: hooks, Functions
        self.modes = _ThreadModes()


state = State()
_lock = threading.Lock()
_ONLY_LISTENER = {"listener"}


def note_special(reason: str | int, holds: bool) -> None:
    """Note a reason for leaving the fast path, or that it holds no longer. What Ctrl-C keeps this from saying, the
    next call says."""
    with _lock:
        (state.reasons.add if holds else state.reasons.discard)(reason)
        state.special = len(state.reasons)
        state.only_listener = state.listener if state.reasons == _ONLY_LISTENER else None


def listen(listener: Listener | None) -> Listener | None:
    """Tell `listener` every event from now on (None: nobody); returns whom was told before."""
    previous = state.listener
    state.first_number = next_tensor_number()
    state.listener = listener
    note_special("listener", listener is not None)
    return previous


def is_grad_enabled() -> bool:
    """Whether ops of this thread record a graph."""
    return state.modes.grad_enabled


def set_grad_mode(enabled: bool) -> None:
    """Set this thread's grad mode."""
    modes = state.modes
    if modes.grad_enabled == enabled:
        return
    if enabled:
        modes.grad_enabled = True
        note_special(get_ident(), False)
    else:
        note_special(get_ident(), True)  # before it is so: Ctrl-C between the two must not hide it from ops
        modes.grad_enabled = False


class _GradMode:
    """Context manager and decorator that sets grad mode, as in PyTorch; `no_grad` works without brackets."""

    enabled: bool
    previous: bool

    def __new__(cls, function: Callable | None = None, **_: Any) -> Any:
        self = super().__new__(cls)
        return self if function is None or isinstance(function, bool) else cls()(function)

    def __enter__(self) -> None:
        self.previous = is_grad_enabled()
        set_grad_mode(self.enabled)

    def __exit__(self, *_: object) -> None:
        set_grad_mode(self.previous)

    def _again(self) -> _GradMode:
        again = object.__new__(type(self))
        again.enabled = self.enabled
        return again

    def __call__(self, function: Callable) -> Callable:
        import functools

        @functools.wraps(function)
        def in_mode(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return in_mode


class no_grad(_GradMode):
    """Ops inside record no graph."""

    enabled = False


class enable_grad(_GradMode):
    """Ops inside record a graph, even inside `no_grad`."""

    enabled = True


class inference_mode(_GradMode):
    """Ops inside record no graph; `inference_mode(False)` is a normal region inside one that is."""

    def __init__(self, mode: Any = True) -> None:
        self.enabled = mode is False  # where it decorates without brackets, `mode` is the function


class set_grad_enabled:
    """Set grad mode at once, and set it back where it is used as a context manager."""

    def __init__(self, mode: bool) -> None:
        self.previous = is_grad_enabled()
        set_grad_mode(bool(mode))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        set_grad_mode(self.previous)
