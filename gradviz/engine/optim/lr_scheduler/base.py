"""The base class of schedulers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from gradviz.engine.core.state import state
from gradviz.engine.optim.optimizer import Optimizer


class LRScheduler:
    """The base class of schedulers. A subclass computes the current rate of each group in `get_lr`.

    `last_epoch` counts the steps. A rate follows from the rate before, as in PyTorch, so that schedulers can be
    combined."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if last_epoch != -1:
            raise NotImplementedError("gradviz's schedulers begin at last_epoch=-1; resume with load_state_dict.")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = -1
        self.step()

    def get_lr(self) -> list[float]:
        """The current rate of each group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The rates that the last step set."""
        return self._last_lr

    def step(self) -> None:
        """Count a step, and set the rates."""
        self.last_epoch += 1
        self._set(self.get_lr())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = self._present()
        if state.listener is not None:
            told = json.dumps([float(rate) for rate in self._last_lr])
            name, steps = type(self).__name__, int(self.last_epoch)
            state.listener.scheduled(sys._getframe(2), self.optimizer.number, name, steps, told)

    def _present(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[float]:
        return [rate * factor for rate in self._present()]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer" and not _code(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of another scheduler."""
        self.__dict__.update(state_dict)


def _code(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(part) for part in value))
