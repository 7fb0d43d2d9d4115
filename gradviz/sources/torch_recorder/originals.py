"""The function of PyTorch that a call has reached, where a program has wrapped it.

PyTorch hands a call on to a mode by the function's public name, which now leads to the wrapper. The wrapper has
already run: called again it would run twice."""

from __future__ import annotations

import gc
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from gradviz.sources.torch_recorder.shared import PYTORCH

_HANDS_ON = torch.overrides.handle_torch_function.__code__
_known: dict[CodeType, Any] = {}  # functions by their code, if exactly one function has that code


def original_of(func: Any, frame: FrameType) -> Any:
    """PyTorch's function behind `func`, as called in `frame`, which called the mode. `func` itself if it is
    PyTorch's, or if no better one is known."""
    if _is_pytorchs(func):
        return func
    if frame.f_code is not _HANDS_ON:
        return _written_in_c(func)
    return func if frame.f_back is None else _function_of(frame.f_back) or func


def _is_pytorchs(func: Any) -> bool:
    code = getattr(func, "__code__", None)
    if isinstance(code, CodeType):
        return code.co_filename.startswith(PYTORCH)
    bound_to = getattr(func, "__self__", None)
    if isinstance(bound_to, property):  # func is its __get__, __set__ or __delete__
        return _is_pytorchs(bound_to.fget)
    module = type(func).__module__
    return module in ("builtins", "types") or module.partition(".")[0] == "torch"


def _function_of(frame: FrameType) -> Any:
    """The function that runs in a frame; None if it cannot be identified."""
    code = frame.f_code
    if code in _known:
        return _known[code]
    functions = [one for one in gc.get_referrers(code) if type(one) is FunctionType and one.__code__ is code]
    if len(functions) == 1:
        _known[code] = functions[0]
        return functions[0]
    names = frame.f_locals  # functions with the same code differ in what they enclose
    for function in functions:
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if all(name in names and cell.cell_contents is names[name] for name, cell in cells):
            return function
    return None


def _written_in_c(func: Any) -> Any:
    """The method or attribute of tensors that `func`, or the property that it belongs to, has replaced."""
    put_there = getattr(func, "__self__", None)
    replaced: Any = put_there if isinstance(put_there, property) else func
    for name, value in vars(torch.Tensor).items():
        if value is replaced:
            original = getattr(torch._C.TensorBase, name, func)
            return getattr(original, func.__name__) if replaced is put_there else original
    return func
