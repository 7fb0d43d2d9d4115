"""The calls of PyTorch that a debugger may run again: functions and arguments, without the tensors."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.arguments import outputs_of
from gradviz.sources.torch_recorder.calls import Steps, Way, finish
from gradviz.sources.torch_recorder.forward import Forward
from gradviz.sources.torch_recorder.pytorchs_own import detach, no_grad, to_cpu, to_numpy

_MOST = 100_000  # the number of calls that are kept, the newest


class _Slot(NamedTuple):
    """The place of a tensor in the arguments, by its number."""

    number: int


class Calls:
    """The calls of a recorder, by the number of each tensor that they made. No tensor is kept alive."""

    def __init__(self, identity: Any) -> None:
        self.identity = identity
        self.known: dict[int, tuple[Callable[..., Any], Any, Any]] = {}

    def follow(self, forward: Forward) -> None:
        """Keep the calls that the ways of a recorder handle."""
        for sort in (calls.OP, calls.LINEAR):
            forward.put_around(sort, self._keeping)

    def _keeping(self, way: Way) -> Way:
        def run(func: Any, name: str, args: Any, kwargs: Any, frame: Any) -> Steps:
            steps = way(func, name, args, kwargs, frame)
            next(steps)
            result = yield
            finish(steps, result)
            self.note(func, args, kwargs, result)

        return run

    def note(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Keep a call, for the tensors that it returned."""
        call = None
        for output in outputs_of(result):
            known = self.identity.known.get(id(output))
            if known is not None:
                call = call or (func, self._emptied(args), self._emptied(kwargs))
                self.known[known.number] = call
        while len(self.known) > _MOST:
            del self.known[next(iter(self.known))]

    def _emptied(self, value: Any) -> Any:
        """Arguments with slots in place of tensors."""
        if isinstance(value, torch.Tensor):
            known = self.identity.known.get(id(value))
            return _Slot(0 if known is None else known.number)
        if type(value) in (list, tuple):
            return type(value)(self._emptied(part) for part in value)
        if type(value) is dict:
            return {name: self._emptied(part) for name, part in value.items()}
        return value

    def forward_of(
        self, op: str, outputs: Sequence[int], inputs: Sequence[int]
    ) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """The call of `op` that made `outputs`, as a function of the tensors `inputs`. Raises LookupError, with the
        reason, if there is none that can run again."""
        call: tuple[Callable[..., Any], Any, Any] | None
        call = next((self.known[number] for number in outputs if number in self.known), None)
        if op in _STEPS:  # the call of a linear layer, which is recorded as its two steps
            call = _STEPS[op], [_Slot(number) for number in inputs], {}
        if call is None or not _numbers(call[1:]) <= set(inputs):
            raise LookupError(f"this node cannot be checked: no function of PyTorch's is known that is {op} alone")
        func, args, kwargs = call

        def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            with torch.random.fork_rng(devices=[]), no_grad():
                tensors = {
                    number: torch.from_numpy(np.array(array)) for number, array in zip(inputs, arrays, strict=True)
                }
                result = func(*_filled(args, tensors), **_filled(kwargs, tensors))
                return [to_numpy(to_cpu(detach(output))).copy() for output in outputs_of(result)]

        return forward


_STEPS: dict[str, Callable[..., Any]] = {"t": torch.t, "addmm": torch.addmm}


def _numbers(value: Any) -> set[int]:
    """The numbers of the tensors in arguments."""
    if type(value) is _Slot:
        return {value.number}
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return {number for part in parts for number in _numbers(part)}


def _filled(value: Any, tensors: dict[int, torch.Tensor]) -> Any:
    if type(value) is _Slot:
        return tensors[value.number]
    if type(value) in (list, tuple):
        return type(value)(_filled(part, tensors) for part in value)
    if type(value) is dict:
        return {name: _filled(part, tensors) for name, part in value.items()}
    return value
