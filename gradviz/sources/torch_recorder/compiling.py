"""Code whose ops are not emitted one by one: `torch.compile`, where a call of a compiled function is one op, and only
the program is compiled, not our code; and CUDA graphs. While a stream is captured, we run nothing on a device. The
tensors that a captured region and its replays write to are emitted as written by them."""

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gradviz.sources.torch_needs import optional
from gradviz.sources.torch_recorder.fetching import FETCHER
from gradviz.sources.torch_recorder.shared import OURS, Source, safely

CAPTURED = "captured"
REPLAYED = "replay"


class Captures:
    """The captures of a recording."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.before: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        # by graph: the tensors that its region wrote over
        self.written: weakref.WeakKeyDictionary[Any, list[weakref.ref[torch.Tensor]]]
        self.written = weakref.WeakKeyDictionary()

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The replacements of the methods of `torch.cuda.CUDAGraph`."""
        graph = torch.cuda.CUDAGraph
        return {
            "capture_begin": self._beginning(graph.capture_begin),
            "capture_end": self._ending(graph.capture_end),
            "replay": self._replaying(graph.replay),
        }

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            source = self.source
            if not source.is_off:
                self._note_versions(graph)
            FETCHER.leave_alone()
            if graph in self.before:
                source.thread.muted = True
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._go_on(graph)
                raise

        return run

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = end(graph, *args, **kwargs)
            finally:
                before = self._go_on(graph)
            if before is not None and not self.source.is_off:
                self._tell_captured(graph, before, sys._getframe(1))
            return result

        return run

    def _replaying(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(replay)
        def run(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = replay(graph, *args, **kwargs)
            if not self.source.is_off and graph in self.written:
                self._tell(REPLAYED, graph, sys._getframe(1))
            return result

        return run

    @safely
    def _note_versions(self, graph: Any) -> None:
        self.source.identity.tell_pending()
        self.before[graph] = set(map(id, self.source.identity.written_over()))

    def _go_on(self, graph: Any) -> set[int] | None:
        """Resume recording after the region."""
        before = self.before.pop(graph, None)
        if before is not None:
            self.source.thread.muted = False
        FETCHER.use_again()
        return before

    @safely
    def _tell_captured(self, graph: Any, before: set[int], frame: FrameType) -> None:
        written = [tensor for tensor in self.source.identity.written_over() if id(tensor) not in before]
        self.written[graph] = [weakref.ref(tensor) for tensor in written]
        self._tell(CAPTURED, graph, frame)

    @safely
    def _tell(self, how: str, graph: Any, frame: FrameType) -> None:
        """Emit the tensors that a graph writes to, if there are any."""
        source = self.source
        listener = source.listener
        if listener is None or not source.is_detailed:
            return
        with torch._C.DisableTorchFunction():
            alive = [tensor for reference in self.written[graph] if (tensor := reference()) is not None]
            if states := [source.identity.state_of(tensor) for tensor in alive]:
                listener.all_mutated(frame, how, states, source.in_pass)


_FUNCTION = "CompiledFunction"  # the Function by which PyTorch differentiates compiled code
_MADE = "<gradviz>"  # the file of functions that are made at run time
# The files of our replacements of PyTorch's functions, of our mode, and of the check that they begin with.
_REPLACING = (
    "collectives", "compiling", "engine", "forward", "module_scopes", "optimizers", "recording", "shared",
    "watching",
)  # fmt: skip


def compiling(source: Source, opaque: Callable[..., Any], compile: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of `torch.compile`. Calls of its results go through `opaque`, otherwise our mode would be
    compiled too."""

    @functools.wraps(compile)
    def run(model: Any = None, **settings: Any) -> Any:
        if model is None:
            return lambda model: run(model, **settings)
        made = compile(model, **settings)
        return made if isinstance(made, torch.nn.Module) or not callable(made) else called_whole(source, opaque, made)

    return run


def called_whole(source: Source, opaque: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of a function that cannot be seen into, or of the call of such functions."""

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs) if source.is_off else opaque(call, args, kwargs, sys._getframe(1))

    return run


def is_compiled_node(name: str) -> bool:
    """Whether a node belongs to a custom Function that PyTorch's compiler made."""
    return name == f"{_FUNCTION}Backward"


def prepare_dynamo() -> None:
    """Make Dynamo look through our replacements of PyTorch's functions where the program calls them, and compile none
    of our code: otherwise it takes up every function that runs below a compiled function. Call this while PyTorch's
    own functions are in their places: Dynamo knows them by identity, and looks them up once."""
    handlers = optional(torch, "_dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers")
    if handlers is not None:
        handlers()
    rules: Any = optional(torch, "_dynamo.trace_rules")
    needed = ("SKIP_DIRS", "_recompile_re", "get_mod_inlinelist", "clear_lru_cache")
    if not all(hasattr(rules, name) for name in needed) or OURS in rules.SKIP_DIRS:
        return
    rules.SKIP_DIRS += [OURS, _MADE]
    rules._recompile_re()
    clear = rules.clear_lru_cache

    def look_through() -> None:
        rules.get_mod_inlinelist().update(f"{OURS}sources/torch_recorder/{name}.py" for name in _REPLACING)

    def clear_all() -> None:  # as `init_process_group` does
        clear()
        look_through()

    rules.clear_lru_cache = clear_all
    look_through()
