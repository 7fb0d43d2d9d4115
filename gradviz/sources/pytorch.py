"""Begins to record PyTorch when the program imports it, or at once if it is already imported.

Nothing here imports PyTorch, so that a program without PyTorch need not wait for it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

from gradviz.events.kinds import OpRan
from gradviz.events.listener import Listener
from gradviz.sources.on_import import OnImport
from gradviz.sources.torch_needs import TESTED, missing
from gradviz.sources.tracebacks import fault
from gradviz.tracefile import Recorder

NAME = "torch"


def is_pytorchs(spec: ModuleSpec | None) -> bool:
    """Whether a module named `torch` is PyTorch and not the user's own module."""
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return any(os.path.isfile(os.path.join(place, "_tensor.py")) for place in places)


def _spec() -> ModuleSpec | None:
    """The spec of PyTorch, even if a module in the current directory hides it: the script may be in another
    directory."""
    module = sys.modules.get(NAME)
    spec = find_spec(NAME) if module is None else getattr(module, "__spec__", None)
    if is_pytorchs(spec):
        return spec
    hidden = PathFinder.find_spec(NAME, sys.path[1:])
    return hidden if is_pytorchs(hidden) else None


def is_installed() -> bool:
    """Whether PyTorch can be imported."""
    return _spec() is not None


def own_directories() -> list[str]:
    """The directories of PyTorch's own code."""
    spec = _spec()
    places = spec.submodule_search_locations if spec is not None else None
    return [place + os.sep for place in places or ()]


def is_of(name: str, thing: Any) -> bool:
    """Whether something is an instance of PyTorch's class of that name: `Tensor`, `nn.Module`. PyTorch need not be
    loaded."""
    part_of_torch: Any = sys.modules.get(NAME)
    for part in name.split("."):
        part_of_torch = getattr(part_of_torch, part, None)
    return isinstance(part_of_torch, type) and isinstance(thing, part_of_torch)


class Attachment:
    """Records PyTorch for `listener` from `begin` to `end`, with the `settings` of `TorchRecorder`. `began` is called
    when recording begins, `failed` with a line of text if PyTorch cannot be recorded, or no longer. With `keeps_calls`
    the calls can be run again (`forward_of`). `replayed` is the recorder of a run whose calls can be made again."""

    def __init__(
        self,
        listener: Listener,
        began: Callable[[], None],
        failed: Callable[[str], None],
        keeps_calls: bool,
        replayed: Recorder | None,
        **settings: bool,
    ) -> None:
        self.listener, self.began, self.failed = listener, began, failed
        self.keeps_calls, self.replayed, self.settings = keeps_calls, replayed, settings
        self.calls: Any = None
        self.waiting = OnImport(NAME, self._start)
        self.recorder: Any = None

    def begin(self) -> None:
        """Record as soon as PyTorch is imported."""
        self.waiting.begin()

    def end(self) -> None:
        """Stop recording."""
        self.waiting.end()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            try:
                recorder.end()
            except Exception as error:
                self.failed(f"PyTorch may still be watched, by {fault(error)}")

    def rank(self) -> dict[str, str]:
        """The rank of this process and the number of ranks, if it has called a collective or averaged gradients."""
        return self.recorder.collectives.rank if self.recorder is not None else {}

    def left_out(self) -> int:
        """The number of values that were left out so far because there was no device memory for them."""
        return (self.recorder.left_out() if self.recorder is not None else None) or 0

    def abandon(self) -> None:
        """Emit no more events."""
        self.waiting.end()
        if self.recorder is not None:
            self.recorder.abandon()

    def forward_of(self, op: OpRan) -> Any:
        """The function that an op computed, of its inputs. Raises LookupError if its call was not kept."""
        if self.calls is None:
            raise LookupError("this node cannot be checked: the calls of PyTorch were not kept")
        inputs = list(dict.fromkeys(tensor for tensor in op.inputs if tensor))
        return self.calls.forward_of(op.op, op.outputs, inputs)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which this thread emits no events."""
        if self.recorder is None:
            yield
            return
        with self.recorder.source.quiet():
            yield

    def _start(self) -> None:
        """Begin to record the imported PyTorch. If that fails, the program runs on unrecorded."""
        try:
            import torch

            if not is_pytorchs(torch.__spec__):
                return
            lacks = missing(torch)
            if not lacks:
                self._begin()
                return
            reason = f"has no {lacks}, without which it cannot be recorded"
        except Exception as error:
            reason = f"cannot be recorded, by {fault(error)}"
        version = getattr(sys.modules.get(NAME), "__version__", "")
        self.failed(f"PyTorch {version} {reason} (tested with PyTorch {TESTED})")

    def _begin(self) -> None:
        from gradviz.sources.torch_recorder.recording import TorchRecorder

        recorder = TorchRecorder(self.listener, self.failed, **self.settings)
        if self.keeps_calls:
            from gradviz.sources.torch_recorder.replayable import Calls

            self.calls = recorder.keep_calls(Calls(recorder.source.identity))
        if self.replayed is not None:
            from gradviz.sources.torch_recorder.replayable import Replayable

            Replayable(recorder.source, self.replayed).follow(recorder.forward)
        recorder.begin()
        self.recorder = recorder
        self.began()
