"""Module: parameters, buffers and submodules by name. A call of a module is a scope in the record of a run."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gradviz.engine.basics import devices
from gradviz.engine.basics.dtypes import dtype, to_numpy
from gradviz.engine.core.histograms import follow
from gradviz.engine.core.node import HookHandle
from gradviz.engine.core.state import hears, next_scope_number, state
from gradviz.engine.core.tensor import Tensor, number_of
from gradviz.engine.nn.backward_hooks import HookedCall
from gradviz.engine.nn.parameter import Buffer, Parameter
from gradviz.engine.nn.state_dict import StateDict
from gradviz.engine.nn.tree import Tree
from gradviz.engine.tensors.clearing import clear_grads
from gradviz.events.holders import holder_of, outermost_modules, parameters_below, parts_held, tied_parameters
from gradviz.events.kinds import TIED

__all__ = ["Module", "Parameter"]

_KINDS = ("_parameters", "_buffers", "_modules")
_DICTS = (*_KINDS, "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")


class Module(Tree, StateDict):
    """The base class of layers and models. Parameters, buffers and modules that are assigned to it are found by
    name."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]  # a Module, or None
    _transient: set[str]  # the names of buffers that are not saved
    _forward_hooks: dict[int, tuple[Callable, bool]]  # and whether it gets the keyword arguments
    _forward_pre_hooks: dict[int, tuple[Callable, bool]]
    _backward_hooks: dict[int, Callable]
    _scope: tuple[tuple[int, int], str]  # the name that the listener knows; of whom (a copy has its own), and which one

    def __init__(self) -> None:
        for name in _DICTS:
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_transient", set())
        object.__setattr__(self, "_scope", ((0, 0), ""))
        object.__setattr__(self, "training", True)

    # --- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for kind in _KINDS:
            if kind in own and name in own[kind]:
                return own[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, (Parameter, Module, Buffer)) and "_parameters" not in own:
            kind = "module" if isinstance(value, Module) else type(value).__name__.lower()
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call. Call super().__init__() first.")
        if isinstance(value, Parameter):
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name, except_for="_modules")
            self._modules[name] = value
        elif isinstance(value, Buffer):
            self._forget(name)
            self.register_buffer(name, value, value.persistent)
        elif "_parameters" in own and any(name in own[kind] for kind in _KINDS):
            self._replace(name, value)
        else:
            object.__setattr__(self, name, value)

    def _replace(self, name: str, value: Any) -> None:
        """Assign to the name of a parameter, buffer or module. Raises TypeError where the value does not fit
        there."""
        kind = next(kind for kind in _KINDS if name in self.__dict__[kind])
        fits = value is None or (kind == "_buffers" and isinstance(value, Tensor))
        if not fits:
            singular = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "child module"}[kind]
            expected = {"_parameters": "torch.nn.Parameter", "_buffers": "torch.Tensor", "_modules": "torch.nn.Module"}[
                kind
            ]
            raise TypeError(
                f"cannot assign '{type(value).__name__}' as {singular} '{name}' ({expected} or None expected)"
            )
        self.__dict__[kind][name] = value

    def _forget(self, name: str, except_for: str = "") -> None:
        self.__dict__.pop(name, None)
        for kind in _KINDS:
            if kind != except_for:
                self.__dict__[kind].pop(name, None)
        self._transient.discard(name)

    def __delattr__(self, name: str) -> None:
        for kind in _KINDS:
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self._transient.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter (or None) under a name. Raises KeyError for an invalid name."""
        self._check_name(name, "_parameters", "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not trained. Without `persistent` it is not in `state_dict`."""
        self._check_name(name, "_buffers", "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (torch Tensor or None required)"
            )
        self._buffers[name] = tensor
        if persistent:
            self._transient.discard(name)
        else:
            self._transient.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a module (or None) under a name."""
        self._check_name(name, "_modules", "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, kind: str, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."')
        if not name:
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise KeyError(f"attribute '{name}' already exists")

    # --- changing all at once

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` with all submodules, and then with this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, dtype: Any = None, device: Any = None, **_: Any) -> Module:
        """Convert floating-point parameters and buffers to a dtype. The device has to be the CPU."""
        for arg in args:
            if isinstance(arg, Tensor):
                dtype = arg.dtype
            elif isinstance(arg, (str, devices.device)):
                device = arg
            elif not isinstance(arg, bool):
                dtype = arg
        devices.check(device)
        return self if dtype is None else self._convert(dtype)

    def _convert(self, kind: Any) -> Module:
        wanted = to_numpy(kind)
        if wanted.kind not in "fc":
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got {dtype(wanted)}")
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.array.dtype.kind in "fc" and tensor.array.dtype != wanted:
                tensor.data = Tensor.to(tensor.detach(), wanted)  # type: ignore[attr-defined]
                if tensor.is_leaf and tensor.grad is not None:
                    tensor.grad.data = Tensor.to(tensor.grad.detach(), wanted)  # type: ignore[attr-defined]
        return self

    def float(self) -> Module:
        """Convert floating-point parameters and buffers to float32."""
        return self._convert("float32")

    def double(self) -> Module:
        """Convert floating-point parameters and buffers to float64."""
        return self._convert("float64")

    def half(self) -> Module:
        """Convert floating-point parameters and buffers to float16."""
        return self._convert("float16")

    def cpu(self) -> Module:
        """This module. Everything is on the CPU."""
        return self

    def share_memory(self) -> Module:
        """Move parameters and buffers into memory that this process shares with those that it forks from now on."""
        for tensor in (*self.parameters(), *self.buffers()):
            memory = mmap.mmap(-1, max(tensor.array.nbytes, 1))
            shared = np.ndarray(tensor.array.shape, tensor.array.dtype, memory)
            shared[...] = tensor.array
            tensor.array = shared
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the `.grad` of all parameters."""
        clear_grads(type(self).__name__, self.parameters(), set_to_none)

    def train(self, mode: bool = True) -> Module:
        """Switch to training mode, or to evaluation mode."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set whether the parameters require grad."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    # --- running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output of the module. Subclasses define it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks
        if state.listener is None or not hears(state.listener):
            return self._call_with_hooks(args, kwargs) if hooked else self.forward(*args, **kwargs)
        if self._scope[0] != (id(self), state.first_number):
            self._name_all()
        number = next_scope_number()
        state.listener.scope_entered(
            sys._getframe(), number, "module", self._scope[1], type(self).__name__, self.training
        )
        try:
            return self._call_with_hooks(args, kwargs) if hooked else self.forward(*args, **kwargs)
        finally:
            if state.listener is not None:
                state.listener.scope_left(number)

    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args)` before forward. What it returns replaces the arguments."""
        return _add(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False) -> HookHandle:
        """Call `hook(module, args, output)` after forward. What it returns replaces the output."""
        return _add(self._forward_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` in backward. What it returns replaces grad_input."""
        handle = HookHandle(self._backward_hooks)
        self._backward_hooks[handle.id] = hook
        return handle

    def _call_with_hooks(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            result = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if result is None:
                continue
            if with_kwargs:
                args, kwargs = result
            else:
                args = result if isinstance(result, tuple) else (result,)
        watched = HookedCall(self, list(self._backward_hooks.values())) if self._backward_hooks else None
        output = self.forward(*(args if watched is None else watched.inputs(args)), **kwargs)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            result = hook(self, args, kwargs, output) if with_kwargs else hook(self, args, output)
            output = output if result is None else result
        return output if watched is None else watched.outputs(output)

    def _name_all(self) -> None:
        """Tell the listener the names of all parameters and buffers. The outermost module that is called does it. The
        names begin with the variable that holds this module, or with its class."""
        assert state.listener is not None
        caller = sys._getframe(2)
        held, root = parts_held(self, caller), holder_of(self, caller) or type(self).__name__
        for path, module in self.named_modules():
            known = id(module), state.first_number
            name = held.get(id(module)) or (f"{root}.{path}" if path else root)
            object.__setattr__(module, "_scope", (known, name))
        numbers = []
        for path, parameter in self.named_parameters():
            number = number_of(parameter)
            numbers.append(number)
            state.nameless.pop(number, None)
            state.listener.named(number, held.get(id(parameter)) or f"{root}.{path}")
        if state.listener.wants_histograms:
            follow(self, numbers)
        for path, parameter in tied_parameters(self):
            state.listener.named(number_of(parameter), f"{root}.{path}", TIED)
        for path, buffer in self.named_buffers():
            state.listener.named(number_of(buffer), f"{root}.{path}", "buffer")

    # --- as text

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """The text in brackets where the module is printed."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        children = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        lines = extra_lines + children
        if not lines:
            return f"{self._get_name()}()"
        if len(extra_lines) == 1 and not children:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


def _add(hooks: dict[int, tuple[Callable, bool]], entry: tuple[Callable, bool], prepend: bool) -> HookHandle:
    handle = HookHandle(hooks)  # type: ignore[arg-type]
    others = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[handle.id] = entry
    hooks.update(others)
    return handle


def _name_the_rest(frame: Any) -> None:
    """Tell of the names of parameters whose modules nobody has called, where variables hold these modules."""
    rest, state.nameless = state.nameless, WeakValueDictionary()
    assert state.listener is not None
    for path, parameter in parameters_below(outermost_modules(frame)):
        number = getattr(parameter, "_number", -1)
        if number in rest:
            state.listener.named(number, path)


state.name_the_rest = _name_the_rest
