"""What is switched on: grad mode, the listener, forward mode.

The fast path of an op asks one question, `state.special`: is anything switched on in any thread? If so it looks at
the details. The details are per thread where they are per thread in PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol
from weakref import WeakValueDictionary, ref

from gradviz.engine.basics.turns import new_turn
from gradviz.events.counted_leaves import CountedPasses
from gradviz.events.counters import (
    next_node_number,
    next_optimizer_number,
    next_pass_number,
    next_scope_number,
    next_tensor_number,
)
from gradviz.events.listener import Listener
from gradviz.events.living import LivingGraphs

__all__ = [
    "enable_grad", "heard_by", "hears", "inference_mode", "is_grad_enabled", "listen", "next_node_number",
    "next_optimizer_number", "next_pass_number", "next_scope_number", "next_tensor_number", "no_grad", "note_special",
    "set_grad_enabled", "set_grad_mode", "state", "unheard",
]  # fmt: skip


class _ThreadModes(threading.local):
    grad_enabled = True
    inference = False
    backward_depth = 0
    saved_tensors_hooks: tuple = ()  # pairs of hooks; the last pair is in use
    hooks_disabled: str | None = None  # the message of the error where hooks are used
    running: Any = None  # the watched pass that is running
    held_nodes: list | None = None  # nodes whose saved tensors are packed when the in-place operation ends
    held_ops: list | None = None  # ops of the in-place operation that is running, which is told as one op


class ForwardMode(Protocol):
    """What ops know of forward mode while a dual level is open. It is built on ops, so it registers itself here."""

    def push(self, op: Any, inputs: Any, outputs: Any, args: tuple) -> list[tuple[Any, Any]]:
        """Give the outputs of an op their tangents. Returns the pairs of output and tangent."""

    def restore(self, output: Any, node: Any, nr: int = 0) -> None:
        """Give `output`, a new tensor for the nr-th output that a node saved, the tangent that the output had."""


class Counted(CountedPasses):
    """The passes of which the listener has histograms; the followed leaves, by their numbers, as long as they live; and
    the outermost modules that hold leaves, by their identity."""

    def __init__(self) -> None:
        super().__init__()
        self.living: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.modules: dict[int, ref[Any]] = {}


class State:
    """The global state. `special` is the number of `reasons` to leave the fast path of ops. `listener` hears of
    events; None: nobody does."""

    __slots__ = (
        "anomaly",
        "check_nan",
        "counted",
        "dual_level",
        "first_number",
        "forward_mode",
        "listener",
        "living",
        "modes",
        "name_the_rest",
        "nameless",
        "only_listener",
        "reasons",
        "renumbered",
        "special",
        "unheard",
        "watched",
    )

    def __init__(self) -> None:
        self.special = 0
        self.reasons: set[str | int] = set()
        self.anomaly = False  # passes check what each node returns
        self.check_nan = True
        self.listener: Listener | None = None
        # Parameters that no module was told to hold, by their numbers.
        self.nameless: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.name_the_rest: Callable[[Any], None] | None = None  # names them; modules, which can, register it
        self.living = LivingGraphs()  # of the passes that the listener hears of
        self.counted = Counted()
        self.unheard: Any = None  # UnheardGraphs, once the listener has heard of a pass
        self.only_listener: Listener | None = None  # the listener, if nothing else is special
        self.first_number = 1  # the listener has not heard of tensors with a lower number
        self.renumbered: list[tuple[Any, int | None]] | None = None  # inside `heard_by`: what they had before
        self.dual_level = 0
        self.forward_mode: ForwardMode | None = None  # while a dual level is open
        self.watched = False  # the program can observe the order of a pass: it has hooks or custom Functions
        self.modes = _ThreadModes()


state = State()
_lock = new_turn()
_ONLY_LISTENER = {"listener"}


def note_special(reason: str | int, holds: bool) -> None:
    """Add or remove a reason to leave the fast path.

    Ctrl-C can interrupt this function. The next call repairs what is missing."""
    with _lock:
        (state.reasons.add if holds else state.reasons.discard)(reason)
        state.special = len(state.reasons)
        state.only_listener = state.listener if state.reasons == _ONLY_LISTENER else None


def hears(listener: Listener) -> bool:
    """Whether a listener hears of what happens between passes: not while it rests, as before a pass that is left
    out."""
    return listener.detailed or not listener.rests


def listen(listener: Listener | None) -> Listener | None:
    """Tell `listener` of all events from now on; None stops it. Returns the listener before."""
    previous = state.listener
    state.first_number = next_tensor_number()
    state.listener = listener
    state.living, state.nameless = LivingGraphs(), WeakValueDictionary()
    state.counted, state.unheard = Counted(), None
    note_special("listener", listener is not None)
    return previous


@contextmanager
def unheard() -> Iterator[None]:
    """Tell the listener of nothing inside; it hears of what happens afterwards as if nothing had been."""
    listener = state.listener
    state.listener = None
    note_special("listener", False)
    try:
        yield
    finally:
        state.listener = listener
        note_special("listener", listener is not None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell `listener` of what happens inside, and nobody else. Afterwards all is as if nothing had been: tensors that
    got a number inside have the one that they had before."""
    before = (
        state.listener, state.first_number, state.living, state.nameless, state.renumbered, state.counted,
        state.unheard,
    )  # fmt: skip
    listen(listener)
    numbered = state.renumbered = []
    try:
        yield
    finally:
        for tensor, number in reversed(numbered):
            _give_back(tensor, number)
        (
            state.listener, state.first_number, state.living, state.nameless, state.renumbered, state.counted,
            state.unheard,
        ) = before  # fmt: skip
        note_special("listener", state.listener is not None)


def _give_back(tensor: Any, number: int | None) -> None:
    if number is None:
        del tensor._number
    else:
        tensor._number = number


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
        note_special(get_ident(), True)  # first: after Ctrl-C in between ops must not miss the mode
        modes.grad_enabled = False


class _GradMode:
    """A context manager and decorator that sets grad mode, as in PyTorch. `@no_grad` works without brackets."""

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
    """Ops inside record no graph. `inference_mode(False)` is a normal region inside an inference mode region."""

    outer = False

    def __init__(self, mode: Any = True) -> None:
        self.enabled = mode is False  # without brackets `mode` is the decorated function

    def __enter__(self) -> None:
        super().__enter__()
        self.outer, state.modes.inference = state.modes.inference, not self.enabled

    def __exit__(self, *args: object) -> None:
        state.modes.inference = self.outer
        super().__exit__(*args)


class set_grad_enabled:
    """Set grad mode at once. As a context manager, set it back at the end."""

    def __init__(self, mode: bool) -> None:
        self.previous = is_grad_enabled()
        set_grad_mode(bool(mode))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        set_grad_mode(self.previous)
