"""Schedulers that combine schedulers, and one that follows a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gradviz.engine.optim.lr_scheduler.base import LRScheduler
from gradviz.engine.optim.optimizer import Optimizer


class SequentialLR(LRScheduler):
    """One scheduler after another. They change at the milestones."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than milestones"
            )
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError("Sequential Schedulers expects all schedulers to belong to the same optimizer")
        self.optimizer, self.schedulers, self.milestones = optimizer, list(schedulers), list(milestones)
        self.last_epoch = 0
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self.schedulers:
            scheduler.last_epoch -= 1
        self.schedulers[0].step()
        self._last_lr = self.schedulers[0].get_last_lr()

    def step(self) -> None:
        self.last_epoch += 1
        nth = bisect_right(self.milestones, self.last_epoch)
        if nth and self.milestones[nth - 1] == self.last_epoch:
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]
            self.schedulers[nth].last_epoch = -1
        self.schedulers[nth].step()
        self._last_lr = self.schedulers[nth].get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class ChainedScheduler(LRScheduler):
    """Several schedulers at once. Each starts from the rates that the one before it has set."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        self.optimizer = optimizer or schedulers[0].optimizer
        if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
            raise ValueError("ChainedScheduler does not support `ReduceLROnPlateau`, whose steps need a metric")
        if any(scheduler.optimizer is not self.optimizer for scheduler in schedulers):
            raise ValueError("ChainedScheduler expects all schedulers to belong to the same optimizer")
        self.schedulers = list(schedulers)
        self._last_lr = self._present()

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()
        self._last_lr = self._present()

    def state_dict(self) -> dict[str, Any]:
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for scheduler, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self._last_lr = self._present()


class ReduceLROnPlateau(LRScheduler):
    """The rate is multiplied by `factor` when a metric has not improved for more than `patience` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lr, self.eps, self.last_epoch = min_lr, eps, 0
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self._last_lr = self._present()

    def step(self, metrics: Any) -> None:  # type: ignore[override]
        """Count a step with the metric it had."""
        current = float(metrics)
        self.last_epoch += 1
        if self._better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._set(self._present())

    def _better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            return sign * value > sign * self.best * (1 + sign * self.threshold)
        return sign * value > sign * self.best + self.threshold

    def _reduce(self) -> None:
        for group in self.optimizer.param_groups:
            new = max(group["lr"] * self.factor, self.min_lr)
            if group["lr"] - new > self.eps:
                group["lr"] = new
