"""`torch.compile`: a call of a compiled function is one op, and only the program is compiled, not our code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from gradviz.sources.torch_needs import optional
from gradviz.sources.torch_recorder.shared import OURS, Source

_FUNCTION = "CompiledFunction"  # the Function by which PyTorch differentiates compiled code
_MADE = "<gradviz>"  # the file of functions that are made at run time
# The files of our replacements of PyTorch's functions, of our mode, and of the check that they begin with.
_REPLACING = (
    "collectives", "compiling", "engine", "forward", "module_scopes", "optimizers", "recording", "refusals", "shared",
    "watching",
)  # fmt: skip


def compiling(source: Source, opaque: Callable[..., Any], compile: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of `torch.compile`. Calls of its results go through `opaque`, otherwise our mode would be
    compiled too."""

    @functools.wraps(compile)
    def run(model: Any = None, **settings: Any) -> Any:
        if model is None:
            return lambda model: run(model, **settings)
        made = compile(model, **settings)
        if isinstance(made, torch.nn.Module) or not callable(made):
            return made

        @functools.wraps(made)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            if source.is_off:
                return made(*args, **kwargs)
            return opaque(made, args, kwargs, sys._getframe(1))

        return compiled

    return run


def is_compiled(function: type) -> bool:
    """Whether PyTorch's compiler made a custom Function."""
    return function.__name__ == _FUNCTION and function.__module__.startswith("torch.")


def is_compiled_node(name: str) -> bool:
    """Whether a node belongs to such a compiled Function."""
    return name == f"{_FUNCTION}Backward"


def prepare_dynamo() -> None:
    """Make Dynamo look through our replacements of PyTorch's functions where the program calls them, and compile none
    of our code: otherwise it takes up every function that runs below a compiled function. Call this while PyTorch's
    own functions are in their places: Dynamo knows them by identity, and looks them up once."""
    handlers = optional(torch, "_dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers")
    if handlers is not None:
        handlers()
    rules: Any = optional(torch, "_dynamo.trace_rules")
    needed = ("SKIP_DIRS", "_recompile_re", "get_mod_inlinelist", "clear_lru_cache")
    if not all(hasattr(rules, name) for name in needed) or OURS in rules.SKIP_DIRS:
        return
    rules.SKIP_DIRS += [OURS, _MADE]
    rules._recompile_re()
    clear = rules.clear_lru_cache

    def look_through() -> None:
        rules.get_mod_inlinelist().update(f"{OURS}sources/torch_recorder/{name}.py" for name in _REPLACING)

    def clear_all() -> None:  # as `init_process_group` does
        clear()
        look_through()

    rules.clear_lru_cache = clear_all
    look_through()
