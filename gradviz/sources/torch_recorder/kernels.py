"""The aten level: PyTorch's own ops that run below an op of the program, in a node, and in an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from gradviz.sources.torch_recorder.arguments import call_text, tensors_in
from gradviz.sources.torch_recorder.shared import Source, safely

_modes: Any = _python_dispatch
UNTOLD = {"profiler"}  # namespaces of ops that compute nothing


class BelowAutograd(TorchDispatchMode):
    """A mode that sees the ops that reach the dispatcher below autograd, on the threads where it is on."""

    def __init__(self, source: Source) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = source

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, so that PyTorch does not load Dynamo and put frames of its own around ours."""
        return False

    def running_node(self) -> tuple[bool, int]:
        """Whether a node runs on this thread, and the node's number; 0 for a node that is not recorded."""
        fn: Any = torch._C._current_autograd_node()
        record = None if fn is None else fn.metadata.get(self.source.identity.key)
        return fn is not None, 0 if record is None else record.number

    @contextmanager
    def on(self) -> Iterator[None]:
        """A context in which the mode is on."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @safely
    def _enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    @safely
    def _leave(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Switch the mode off, also below modes that the program has not left."""
        above: list[Any] = []
        while (mode := _modes._get_current_dispatch_mode()) is not None and mode is not self:
            above.append(_modes._pop_mode())
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _modes._push_mode(mode)


class Kernels(BelowAutograd):  # type: ignore[no-untyped-call]
    """Emits these ops to a source's listener, after they have run. Tensors that an op allocates inside have no
    number: they are not the program's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the call of an aten op is not the program's
            result = call_of(func)(*args, **(kwargs or {}))
        if not self.source.is_off and self.source.is_detailed:
            self._tell(func, args, kwargs or {}, result, sys._getframe(1))
        return result

    @safely
    def _tell(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        if func.namespace in UNTOLD:
            return
        is_in_node, node = self.running_node()
        known = [self.source.identity.known.get(id(tensor)) for tensor in tensors_in(args, kwargs)]
        listener: Any = self.source.listener
        listener.kernel(
            None if is_in_node else frame, name_of(func), call_text(args, kwargs), call_text((result,), {}),
            self.source.in_pass, node, [0 if one is None else one.number for one in known],
        )  # fmt: skip


def name_of(func: Any) -> str:
    """The name of an op as PyTorch writes it, without default parts: `addmm`, `sum.dim_IntList`."""
    name = str(func).removeprefix("aten.")
    return name.removesuffix(".default")


def call_of(func: Any) -> Any:
    """The callable of an op that adds no frame to the traceback of an error."""
    return func._op if type(func) is torch._ops.OpOverload else func
