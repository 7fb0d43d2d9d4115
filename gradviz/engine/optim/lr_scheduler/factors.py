"""Schedules that follow a formula of the step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gradviz.engine.optim.lr_scheduler.base import LRScheduler
from gradviz.engine.optim.optimizer import Optimizer


class LambdaLR(LRScheduler):
    """The first rate times a function of the step."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        several = isinstance(lr_lambda, (list, tuple))
        self.lr_lambdas = list(lr_lambda) if several else [lr_lambda] * len(optimizer.param_groups)
        if len(self.lr_lambdas) != len(optimizer.param_groups):
            raise ValueError(f"Expected {len(optimizer.param_groups)} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * factor(self.last_epoch) for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(LRScheduler):
    """At each step the rate is multiplied by a function of the step."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.lr_lambda(self.last_epoch)) if self.last_epoch > 0 else self._present()


class StepLR(LRScheduler):
    """The rate is multiplied by gamma every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        due = self.last_epoch and self.last_epoch % self.step_size == 0
        return self._times(self.gamma) if due else self._present()


class MultiStepLR(LRScheduler):
    """The rate is multiplied by gamma at each milestone."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma ** self.milestones.get(self.last_epoch, 0))


class ExponentialLR(LRScheduler):
    """The rate is multiplied by gamma at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma) if self.last_epoch else self._present()


class ConstantLR(LRScheduler):
    """The rate is a fraction of the first rate for `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._times(self.factor)
        return self._times(1.0 / self.factor) if self.last_epoch == self.total_iters else self._present()


class LinearLR(LRScheduler):
    """The rate goes from one fraction of the first rate to another, in `total_iters` equal steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if not 0 <= end_factor <= 1:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self.last_epoch > self.total_iters:
            return self._present()
        rise = self.end_factor - self.start_factor
        return self._times(1 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))


class CosineAnnealingLR(LRScheduler):
    """The rate falls to `eta_min` along a cosine in `T_max` steps, and rises again (Loshchilov and Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        n, half, low = self.last_epoch, self.T_max, self.eta_min
        if n == 0:
            return self._present()
        if (n - 1 - half) % (2 * half) == 0:
            up = (1 - math.cos(math.pi / half)) / 2
            return [rate + (base - low) * up for base, rate in zip(self.base_lrs, self._present(), strict=True)]
        ratio = (1 + math.cos(math.pi * n / half)) / (1 + math.cos(math.pi * (n - 1) / half))
        return [ratio * (rate - low) + low for rate in self._present()]


class PolynomialLR(LRScheduler):
    """The rate falls to 0 in `total_iters` steps, as a power of the fraction of steps that is left."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        n, end = self.last_epoch, self.total_iters
        if n == 0 or n > end:
            return self._present()
        return self._times(((1 - n / end) / (1 - (n - 1) / end)) ** self.power)
