"""L-BFGS: a Newton direction that is estimated from the last few changes of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradviz.engine.core.state import enable_grad, no_grad
from gradviz.engine.optim.optimizer import Optimizer, check, settings_in
from gradviz.engine.tensors.writing import overwrite


class LBFGS(Optimizer):
    """L-BFGS with steps of `lr` along the direction of the two-loop recursion (Nocedal and Wright 2006, algorithm
    7.4).

    `step` takes a closure that clears the gradients, computes the loss, calls backward and returns the loss. The
    closure is called up to `max_eval` times. Raises NotImplementedError for a line search, ValueError for parameter
    groups."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check(lr=lr)
        if line_search_fn is not None:
            raise NotImplementedError(
                f"gradviz's LBFGS has no line search: leave line_search_fn={line_search_fn!r} out, and choose lr"
            )
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, settings_in(locals()))
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def step(self, closure: Callable | None = None) -> Any:
        """Take up to `max_iter` steps. Returns the first loss. Raises TypeError without a closure."""
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        with no_grad():
            return self._descend(closure)

    def _descend(self, closure: Callable) -> Any:
        (group,) = self.param_groups
        self._tell([group["params"]])
        first = loss = self._evaluated(closure)
        gradient, evaluated = self._gradient(), 1
        for iteration in range(1, group["max_iter"] + 1):
            if np.abs(gradient).max() <= group["tolerance_grad"]:
                break
            direction, size = self._direction(gradient, group)
            if np.dot(gradient, direction) > -group["tolerance_change"]:
                break
            self._move(direction * size)
            if iteration == group["max_iter"]:
                break
            before, loss = float(loss), self._evaluated(closure)
            gradient, evaluated = self._gradient(), evaluated + 1
            too_small = np.abs(direction * size).max() <= group["tolerance_change"]
            if evaluated >= group["max_eval"] or too_small:
                break
            if abs(float(loss) - before) < group["tolerance_change"]:
                break
        return first

    def _evaluated(self, closure: Callable) -> Any:
        with enable_grad():
            return closure()

    def _gradient(self) -> np.ndarray:
        """The gradients of all parameters as one vector, 0 where there is none."""
        (group,) = self.param_groups
        return np.concatenate(
            [(np.zeros_like(p.array) if p.grad is None else p.grad.array).ravel() for p in group["params"]]
        )

    def _direction(self, gradient: np.ndarray, group: dict[str, Any]) -> tuple[np.ndarray, float]:
        """The direction and the length of the next step. What is known of the curvature is kept in the state."""
        memory = self.state[group["params"][0]]
        if not memory:
            memory.update(changes=[], steps=[], scale=1.0)
            size = min(1.0, 1.0 / float(np.abs(gradient).sum())) * group["lr"]
            direction = -gradient
        else:
            size = group["lr"]
            self._learn(memory, gradient - memory["gradient"], group["history_size"])
            direction = _two_loops(gradient, memory["changes"], memory["steps"], memory["scale"])
        memory.update(gradient=gradient, step=direction * size)
        return direction, size

    def _learn(self, memory: dict[str, Any], change: np.ndarray, history_size: int) -> None:
        """Remember a step and the change of the gradient, where the curvature along the step is positive."""
        curvature = float(np.dot(change, memory["step"]))
        if curvature <= 1e-10:
            return
        memory["changes"].append(change)
        memory["steps"].append(memory["step"])
        del memory["changes"][:-history_size], memory["steps"][:-history_size]
        memory["scale"] = curvature / float(np.dot(change, change))

    def _move(self, step: np.ndarray) -> None:
        (group,) = self.param_groups
        at = 0
        for parameter in group["params"]:
            part = step[at : at + parameter.array.size].reshape(parameter.array.shape)
            overwrite(parameter, parameter.array + part, "LBFGS")
            at += parameter.array.size


def _two_loops(gradient: np.ndarray, changes: list, steps: list, scale: float) -> np.ndarray:
    """Minus the estimated inverse Hessian times the gradient."""
    direction = -gradient
    pairs = [(y, s, 1.0 / np.dot(y, s)) for y, s in zip(changes, steps, strict=True)]
    weights = []
    for y, s, ratio in reversed(pairs):
        weights.append(ratio * np.dot(s, direction))
        direction = direction - weights[-1] * y
    direction = direction * scale
    for (y, s, ratio), weight in zip(pairs, reversed(weights), strict=True):
        direction = direction + s * (weight - ratio * np.dot(y, direction))
    return direction
