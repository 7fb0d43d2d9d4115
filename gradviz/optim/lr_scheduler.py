"""Learning rates that change as training goes on. See PyTorch's `torch.optim.lr_scheduler`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradviz.engine.missing import says_what_is_missing
from gradviz.optim.optimizer import Optimizer


class LRScheduler:
    """Base of schedulers: a subclass says in `get_lr` what the rate of each group is now.

    `last_epoch` counts the steps. Rates follow from those before, as in PyTorch, so that schedulers combine."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if last_epoch != -1:
            raise NotImplementedError(
                "gradviz's schedulers begin at last_epoch=-1; resume with load_state_dict."
            )
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = -1
        self.step()

    def get_lr(self) -> list[float]:
        """The rate of each group now."""
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
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _present(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[float]:
        return [rate * factor for rate in self._present()]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {
            name: value for name, value in self.__dict__.items() if name != "optimizer" and not _code(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another left off."""
        self.__dict__.update(state_dict)


def _code(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(part) for part in value))


class LambdaLR(LRScheduler):
    """The first rate times a function of the step."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        several = isinstance(lr_lambda, (list, tuple))
        self.lr_lambdas = list(lr_lambda) if several else [lr_lambda] * len(optimizer.param_groups)
        if len(self.lr_lambdas) != len(optimizer.param_groups):
            raise ValueError(
                f"Expected {len(optimizer.param_groups)} lr_lambdas, but got {len(self.lr_lambdas)}"
            )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [
            base * factor(self.last_epoch)
            for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)
        ]


class MultiplicativeLR(LRScheduler):
    """The rate times a function of the step, at every step."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.lr_lambda(self.last_epoch)) if self.last_epoch > 0 else self._present()


class StepLR(LRScheduler):
    """The rate times gamma every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        due = self.last_epoch and self.last_epoch % self.step_size == 0
        return self._times(self.gamma) if due else self._present()


class MultiStepLR(LRScheduler):
    """The rate times gamma at every milestone."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma ** self.milestones[self.last_epoch])


class ExponentialLR(LRScheduler):
    """The rate times gamma every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma) if self.last_epoch else self._present()


class ConstantLR(LRScheduler):
    """A fraction of the rate for the first `total_iters` steps."""

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
    """From one fraction of the rate to another, in `total_iters` equal steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal to 1."
            )
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
    """Down to `eta_min` along a cosine in `T_max` steps, and up again (Loshchilov and Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        n, half, low = self.last_epoch, self.T_max, self.eta_min
        if n == 0:
            return self._present()
        if (n - 1 - half) % (2 * half) == 0:
            up = (1 - math.cos(math.pi / half)) / 2
            return [
                rate + (base - low) * up for base, rate in zip(self.base_lrs, self._present(), strict=True)
            ]
        ratio = (1 + math.cos(math.pi * n / half)) / (1 + math.cos(math.pi * (n - 1) / half))
        return [ratio * (rate - low) + low for rate in self._present()]


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and far down again, the momentum the other way (Smith and Topin 2018)."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
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
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.total_steps: int = total_steps or epochs * steps_per_epoch  # type: ignore[operator]
        self.turn = pct_start * self.total_steps - 1
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        for group in optimizer.param_groups:
            group.update(initial_lr=max_lr / div_factor, max_lr=max_lr)
            group["min_lr"] = group["initial_lr"] / final_div_factor
            if cycle_momentum:
                if "momentum" not in group and "betas" not in group:
                    raise ValueError(
                        "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
                    )
                group.update(base_momentum=base_momentum, max_momentum=max_momentum)
        super().__init__(optimizer)

    def _between(self, first: float, middle: float, last: float) -> float:
        """What goes from `first` to `middle` until the turn and from there to `last`, now."""
        n, end = self.last_epoch, self.total_steps - 1
        if n <= self.turn:
            return self._anneal(first, middle, n / self.turn)
        return self._anneal(middle, last, (n - self.turn) / (end - self.turn))

    def _anneal(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)

    def get_lr(self) -> list[float]:
        if self.last_epoch >= self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch + 1} times. The specified number of total steps is {self.total_steps}"
            )
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                high, low = group["max_momentum"], group["base_momentum"]
                momentum = self._between(high, low, high)
                if "betas" in group:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return [self._between(group["initial_lr"], group["max_lr"], group["min_lr"]) for group in groups]


class SequentialLR(LRScheduler):
    """One scheduler after the other, changing at the milestones."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
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
        return {
            "last_epoch": self.last_epoch,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a metric has not improved for more than `patience` steps."""

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
        self._last_lr = self._present()

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


__getattr__ = says_what_is_missing(__name__, globals())
