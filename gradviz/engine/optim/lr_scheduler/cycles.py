"""Schedules that rise and fall."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradviz.engine.optim.lr_scheduler.base import LRScheduler
from gradviz.engine.optim.optimizer import Optimizer


def _check_has_momentum(group: dict[str, Any]) -> None:
    if "momentum" not in group and "betas" not in group:
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")


def _set_momentum(group: dict[str, Any], momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


class OneCycleLR(LRScheduler):
    """The rate rises to `max_lr` and falls far below the first rate. The momentum goes the other way (Smith and Topin
    2018)."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        if three_phase:
            raise NotImplementedError("gradviz's OneCycleLR has two phases; three_phase is not there yet.")
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps: int = total_steps or epochs * steps_per_epoch  # type: ignore[operator]
        self.turn = pct_start * self.total_steps - 1
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        highest = max_lr if isinstance(max_lr, (list, tuple)) else [max_lr] * len(optimizer.param_groups)
        if len(highest) != len(optimizer.param_groups):
            raise ValueError(
                f"max_lr must have a rate for each of {len(optimizer.param_groups)} groups, got {len(highest)}"
            )
        for group, most in zip(optimizer.param_groups, highest, strict=True):
            group.update(initial_lr=most / div_factor, max_lr=most)
            group["min_lr"] = group["initial_lr"] / final_div_factor
            if cycle_momentum:
                _check_has_momentum(group)
                group.update(base_momentum=base_momentum, max_momentum=max_momentum)
        super().__init__(optimizer)

    def _between(self, first: float, middle: float, last: float) -> float:
        """The current value of what goes from `first` to `middle` until the turn, and from there to `last`."""
        n, end = self.last_epoch, self.total_steps - 1
        if n <= self.turn:
            return self._anneal(first, middle, n / self.turn)
        return self._anneal(middle, last, (n - self.turn) / (end - self.turn))

    def _anneal(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)

    def get_lr(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}"
            )
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                high, low = group["max_momentum"], group["base_momentum"]
                _set_momentum(group, self._between(high, low, high))
        return [self._between(group["initial_lr"], group["max_lr"], group["min_lr"]) for group in groups]


class CyclicLR(LRScheduler):
    """The rate rises to `max_lr` and falls again, repeatedly. The momentum goes the other way (Smith 2017)."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Any,
        max_lr: Any,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        self.max_lrs = _each_group("max_lr", optimizer, max_lr)
        self.total_size = float(step_size_up) + float(step_size_up if step_size_down is None else step_size_down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self.scale_fn, self.cycle_momentum = mode, gamma, scale_fn, cycle_momentum
        by_mode = "iterations" if mode == "exp_range" else "cycle"
        self.scale_mode = by_mode if scale_fn is None else scale_mode
        base_lrs = _each_group("base_lr", optimizer, base_lr)
        for group, rate in zip(optimizer.param_groups, base_lrs, strict=True):
            group["lr"] = group["initial_lr"] = rate
        if cycle_momentum:
            lows = _each_group("base_momentum", optimizer, base_momentum)
            highs = _each_group("max_momentum", optimizer, max_momentum)
            for group, low, high in zip(optimizer.param_groups, lows, highs, strict=True):
                _check_has_momentum(group)
                group.update(base_momentum=low, max_momentum=high)
        super().__init__(optimizer, last_epoch)

    def _scale(self, cycle: int) -> float:
        n = cycle if self.scale_mode == "cycle" else self.last_epoch
        if self.scale_fn is not None:
            return self.scale_fn(n)
        return {"triangular": 1.0, "triangular2": 0.5 ** (n - 1), "exp_range": self.gamma**n}[self.mode]

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        done = 1 + self.last_epoch / self.total_size - cycle
        up = done / self.step_ratio if done <= self.step_ratio else (done - 1) / (self.step_ratio - 1)
        height = up * self._scale(cycle)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                high, low = group["max_momentum"], group["base_momentum"]
                _set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]


def _each_group(name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """A setting for each group: one value for all, or a list of values."""
    groups = len(optimizer.param_groups)
    values = list(value) if isinstance(value, (list, tuple)) else [value] * groups
    if len(values) != groups:
        raise ValueError(f"{name} must have the same length as optimizer.param_groups: {groups}, not {len(values)}")
    return values


class CosineAnnealingWarmRestarts(LRScheduler):
    """The rate falls to `eta_min` along a cosine in `T_0` steps, and then restarts. Each period is `T_mult` times as
    long as the one before (Loshchilov and Hutter 2017)."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, 0.0
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Count a step, or go to `epoch`, which may be a fraction."""
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        now = self.last_epoch + 1 if epoch is None else epoch
        self.last_epoch = math.floor(now)
        self.T_cur, self.T_i = now, self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult
        self._set(self.get_lr())

    def get_lr(self) -> list[float]:
        half = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * half for base in self.base_lrs]
