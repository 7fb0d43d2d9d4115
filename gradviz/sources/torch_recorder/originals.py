"""The function of PyTorch that a call has reached, where a program has wrapped it.

PyTorch hands a call on to a mode by the function's public name, which now leads to the wrapper. The wrapper has
already run: called again it would run twice."""

from __future__ import annotations

import gc
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from gradviz.sources.torch_recorder.shared import PYTORCH

_HANDS_ON = torch.overrides.handle_torch_function.__code__
_MOST_STEPS = 8  # from a wrapper to what it wraps
_MOST_REACHED = 200_000  # objects
_known: dict[CodeType, Any] = {}  # functions by their code, if exactly one function has that code


def original_of(func: Any, frame: FrameType) -> Any:
    """PyTorch's function behind `func`, as called in `frame`, which called the mode. `func` itself if it is
    PyTorch's, or if no better one is known."""
    if _is_pytorchs(func):
        return func
    if frame.f_code is not _HANDS_ON:
        return _written_in_c(func)
    return func if frame.f_back is None else _function_of(frame.f_back, func) or func


def _is_pytorchs(func: Any) -> bool:
    code = getattr(func, "__code__", None)
    if isinstance(code, CodeType):
        return code.co_filename.startswith(PYTORCH)
    bound_to = getattr(func, "__self__", None)
    if isinstance(bound_to, property):  # func is its __get__, __set__ or __delete__
        return _is_pytorchs(bound_to.fget)
    module = type(func).__module__
    return module in ("builtins", "types") or module.partition(".")[0] == "torch"


def _function_of(frame: FrameType, wrapper: Any) -> Any:
    """The function that runs in a frame, below a wrapper; None if it cannot be identified."""
    code = frame.f_code
    if code in _known:
        return _known[code]
    functions = [one for one in gc.get_referrers(code) if type(one) is FunctionType and one.__code__ is code]
    if not functions:  # the garbage collector does not know objects that were frozen
        above = frame.f_back
        functions = _reached(code, [wrapper] if above is None else [wrapper, above.f_locals, above.f_globals])
    if len(functions) == 1 and not (code.co_freevars and gc.get_freeze_count()):
        _known[code] = functions[0]
        return functions[0]
    names = frame.f_locals  # functions with the same code differ in what they enclose
    for function in functions:
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if all(name in names and cell.cell_contents is names[name] for name, cell in cells):
            return function
    return None


def _reached(code: CodeType, roots: list[Any]) -> list[Any]:
    """The functions with some code that the fewest references lead to from roots, not through modules."""
    seen: set[int] = set()
    found: dict[int, Any] = {}
    reached = roots
    for _ in range(_MOST_STEPS):
        fresh = {
            id(one): one for one in reached if id(one) not in seen and not issubclass(type(one), ModuleType)
        }
        seen.update(fresh)
        reached = gc.get_referents(*fresh.values())
        found = {id(one): one for one in reached if type(one) is FunctionType and one.__code__ is code}
        if found or len(seen) > _MOST_REACHED:
            break
    return list(found.values())


def _written_in_c(func: Any) -> Any:
    """The method or attribute of tensors that `func`, or the property that it belongs to, has replaced."""
    put_there = getattr(func, "__self__", None)
    replaced: Any = put_there if isinstance(put_there, property) else func
    for name, value in vars(torch.Tensor).items():
        if value is replaced:
            original = getattr(torch._C.TensorBase, name, func)
            return getattr(original, func.__name__) if replaced is put_there else original
    return func
