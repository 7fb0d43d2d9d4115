"""What all optimizers share: parameter groups, state, `zero_grad`, telling the listener of a step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import numpy as np

from gradviz.engine.core.state import enable_grad, next_optimizer_number, no_grad, state
from gradviz.engine.core.tensor import Tensor, new_tensor, number_of
from gradviz.engine.tensors.clearing import clear_grads
from gradviz.engine.tensors.writing import overwrite
from gradviz.events.fields import Group

_HINTS = ("capturable", "differentiable", "foreach", "fused")  # what PyTorch's speed depends on, and ours not


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings, without its parameters and what only PyTorch's speed depends on."""
    return {
        name: value
        for name, value in group.items()
        if name != "params" and name not in _HINTS and not (name == "maximize" and not value)
    }


class Optimizer:
    """Base of optimizers: a subclass says in `update` what one parameter becomes.

    Raises ValueError for an empty list of parameters, TypeError for what are no tensors."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                "torch.FloatTensor: write [parameter]."
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        if defaults.get("differentiable") or defaults.get("capturable"):
            raise NotImplementedError("gradviz's optimizers are neither differentiable nor capturable.")
        self.defaults = defaults
        self._number = 0  # none yet
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize more parameters, with settings of their own where the group has them."""
        given = param_group["params"]
        tensors = [given] if isinstance(given, Tensor) else [_unnamed(entry) for entry in given]
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {type(tensor).__name__}"
                )
            if not tensor.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        known = {id(tensor) for group in self.param_groups for tensor in group["params"]}
        if any(id(tensor) in known for tensor in tensors):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append({**self.defaults, **param_group, "params": tensors})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the parameters' `.grad`."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        clear_grads(type(self).__name__, parameters, set_to_none)

    def step(self, closure: Callable | None = None) -> Any:
        """Update every parameter that has a gradient; `closure` computes the loss first."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            ready_by_group = [
                [p for p in group["params"] if p._rare is not None and p._rare.grad is not None]
                for group in self.param_groups
            ]
            self._tell(ready_by_group)
            for group, ready in zip(self.param_groups, ready_by_group, strict=True):
                for parameter in ready:
                    gradient = parameter._rare.grad.array
                    gradient = -gradient if group.get("maximize") else gradient
                    overwrite(parameter, self.update(parameter, gradient, group), type(self).__name__)
        return loss

    @property
    def number(self) -> int:
        """Its number for the listener, counted from 1."""
        if self._number == 0:
            self._number = next_optimizer_number()
        return self._number

    def _tell(self, ready: list[list[Tensor]]) -> None:
        """Tell the listener that a step begins, of the parameters of each group that have a gradient."""
        if state.listener is None:
            return
        groups = [
            Group(json.dumps(_settings(group), default=repr), len(parameters))
            for group, parameters in zip(self.param_groups, ready, strict=True)
        ]
        numbers = [number_of(parameter) for parameters in ready for parameter in parameters]
        state.listener.stepped(
            sys._getframe(2), self.number, type(self).__name__, time.time(), groups, numbers
        )

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        """The parameter's new value, an array; `gradient` is an array too."""
        raise NotImplementedError

    # --- what an optimizer remembers of a parameter

    def memory(self, parameter: Tensor, *names: str, value: float = 0.0) -> dict[str, Any]:
        """What is remembered of the parameter; at first the step 0 and arrays of `value` under the names."""
        memory = self.state.get(parameter)
        if memory is None:
            memory = self.state[parameter] = {"step": new_tensor(np.zeros((), np.float32))}
            for name in names:
                memory[name] = new_tensor(np.full_like(parameter.array, value))
        return memory

    def count(self, memory: dict[str, Any]) -> int:
        """One step more; how many it is now."""
        memory["step"].array[...] += 1
        return int(memory["step"].array)

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Settings and memory, parameters by their position."""
        position = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [
            {**{name: value for name, value in group.items() if name != "params"},
             "params": [position[id(p)] for p in group["params"]]}
            for group in self.param_groups
        ]  # fmt: skip
        return {
            "state": {position[id(p)]: memory for p, memory in self.state.items()},
            "param_groups": groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and memory; raises ValueError where the groups are not alike."""
        saved = deepcopy(state_dict)
        groups = saved["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for ours, theirs in zip(self.param_groups, groups, strict=True):
            if len(ours["params"]) != len(theirs["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
                )
        parameters = [p for group in self.param_groups for p in group["params"]]
        positions = [i for group in groups for i in group["params"]]
        by_position = dict(zip(positions, parameters, strict=True))
        self.state = {by_position[int(i)]: memory for i, memory in saved["state"].items()}
        self.param_groups = [
            {**theirs, "params": ours["params"]}
            for ours, theirs in zip(self.param_groups, groups, strict=True)
        ]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


def _unnamed(entry: Any) -> Any:
    """The parameter of a pair (name, parameter), or the parameter."""
    return entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry


def settings_in(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among the `locals()` of an optimizer's `__init__`: all but self and params."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def check(**settings: float) -> None:
    """Raise ValueError for a setting below 0."""
    for name, value in settings.items():
        if not value >= 0:
            words = {"lr": "learning rate", "eps": "epsilon value"}.get(name, f"{name} value")
            raise ValueError(f"Invalid {words}: {value}")


def check_betas(betas: tuple[float, float]) -> None:
    """Raise ValueError for a β outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
