"""What all optimizers share: parameter groups, state, `zero_grad`, and telling the listener of a step."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from time import time  # bound now: a program may replace it
from typing import Any

import numpy as np

from gradviz.engine.core.state import enable_grad, next_optimizer_number, no_grad, state
from gradviz.engine.core.tensor import Tensor, new_tensor, number_of
from gradviz.engine.tensors.clearing import clear_grads
from gradviz.engine.tensors.writing import tell_written, write
from gradviz.events.field_types import Group
from gradviz.events.holders import tensor_paths
from gradviz.events.listener import Where
from gradviz.events.settings_text import SettingsText
from gradviz.events.values import SMALL

_HINTS = ("capturable", "differentiable", "foreach", "fused")  # options of PyTorch that change its speed only
_as_json = SettingsText(repr)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings, without its parameters and what only PyTorch's speed depends on."""
    return {
        name: value
        for name, value in group.items()
        if name != "params" and name not in _HINTS and not (name == "maximize" and not value)
    }


class Optimizer:
    """The base class of optimizers. A subclass computes the new value of one parameter in `update`.

    Raises ValueError for an empty list of parameters, TypeError for parameters that are no tensors."""

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
        self._told: list[int] | None = None  # the parameters that the listener knows of, by identity
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        for group in groups:
            self._add(group)
        self._tell_parameters(sys._getframe(2))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters. Its own settings override the defaults."""
        self._add(param_group)
        self._tell_parameters(sys._getframe(1))

    def _add(self, param_group: dict[str, Any]) -> None:
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
        """Clear the `.grad` of all parameters: set it to None, or to zeros."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        clear_grads(type(self).__name__, parameters, set_to_none)

    def step(self, closure: Callable | None = None) -> Any:
        """Update every parameter that has a gradient. `closure` computes the loss first; the loss is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            ready_by_group = [
                [p for p in group["params"] if p._rare is not None and p._rare.grad is not None]
                for group in self.param_groups
            ]
            where = self._tell(ready_by_group)
            written: list[Tensor] = []
            norms: list[float | None] = []
            try:
                for group, ready in zip(self.param_groups, ready_by_group, strict=True):
                    for parameter in ready:
                        gradient = parameter._rare.grad.array
                        gradient = -gradient if group.get("maximize") else gradient
                        array = self.update(parameter, gradient, group)
                        norm = _norm_of_change(parameter.array, array)
                        write(parameter, array)
                        written.append(parameter)
                        norms.append(norm)
            finally:
                tell_written(written, type(self).__name__, where, norms)
        return loss

    @property
    def number(self) -> int:
        """Its number for the listener, counted from 1."""
        if self._number == 0:
            self._number = next_optimizer_number()
        return self._number

    def _tell_parameters(self, where: Any) -> None:
        """Tell the listener what the optimizer holds, if that has changed."""
        if state.listener is None:
            return
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        identities = [id(parameter) for parameter in held]
        if identities != self._told:
            self._told = identities
            groups = [Group(_as_json(_settings(group)), len(group["params"])) for group in self.param_groups]
            numbers = [*map(number_of, held)]
            state.listener.holds(where, self.number, type(self).__name__, groups, numbers)
            for at, path in tensor_paths(held, sys._getframe(1)):
                state.listener.named(numbers[at], path, "")

    def _tell(self, ready: list[list[Tensor]]) -> Where:
        """Tell the listener that a step begins, of the parameters of each group that have a gradient. Returns where."""
        if state.listener is None:
            return None
        where = state.listener.place(sys._getframe(2))
        self._tell_parameters(where)
        groups = [
            Group(_as_json(_settings(group)), len(parameters))
            for group, parameters in zip(self.param_groups, ready, strict=True)
        ]
        numbers = [number_of(parameter) for parameters in ready for parameter in parameters]
        state.listener.stepped(where, self.number, type(self).__name__, time(), groups, numbers)
        return where

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        """The new value of a parameter, as an array. `gradient` is an array of its shape."""
        raise NotImplementedError

    # --- what an optimizer remembers of a parameter

    def memory(self, parameter: Tensor, *names: str, value: float = 0.0) -> dict[str, Any]:
        """What is remembered of a parameter. At first: the step 0, and arrays of `value` under the given names."""
        memory = self.state[parameter]
        if not memory:
            memory["step"] = new_tensor(np.zeros((), np.float32))
            for name in names:
                memory[name] = new_tensor(np.full_like(parameter.array, value))
        return memory

    def count(self, memory: dict[str, Any]) -> int:
        """Increment the step of a parameter, and return it."""
        memory["step"].array[...] += 1
        return int(memory["step"].array)

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """The settings and what is remembered. Parameters are identified by their position."""
        position = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [
            {**{name: value for name, value in group.items() if name != "params"},
             "params": [position[id(p)] for p in group["params"]]}
            for group in self.param_groups
        ]  # fmt: skip
        return {"state": {position[id(p)]: memory for p, memory in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore settings and memory. Raises ValueError where the groups differ."""
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
        remembered = {by_position[int(i)]: memory for i, memory in saved["state"].items()}
        self.state = defaultdict(dict, remembered)
        self.param_groups = [
            {**theirs, "params": ours["params"]} for ours, theirs in zip(self.param_groups, groups, strict=True)
        ]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


def _unnamed(entry: Any) -> Any:
    """The parameter, without its name where it comes as a pair (name, parameter)."""
    return entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry


def _norm_of_change(before: np.ndarray, after: np.ndarray) -> float | None:
    """The Euclidean norm of the change of a parameter, if the listener wants it. None for a parameter with few
    elements, which are all kept, and for one that is written in place."""
    listener = state.listener
    if listener is None or not listener.wants_changes or before.size <= SMALL or after is before:
        return None
    with np.errstate(all="ignore"):  # they may have infinities
        change = np.abs(np.subtract(after, before)).astype(np.float64).ravel()
        return float(np.sqrt(np.dot(change, change)))


def settings_in(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among the `locals()` of an optimizer's `__init__`: all but self and params."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def check(**settings: float) -> None:
    """Raise ValueError for a negative setting."""
    for name, value in settings.items():
        if not value >= 0:
            words = {"lr": "learning rate", "eps": "epsilon value"}.get(name, f"{name} value")
            raise ValueError(f"Invalid {words}: {value}")


def check_betas(betas: tuple[float, float]) -> None:
    """Raise ValueError for a β outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
