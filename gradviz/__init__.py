"""gradviz: a flight recorder and debugger for gradients.

The engine has PyTorch's names, so that `import gradviz as torch` runs a PyTorch lesson. To look at a run:

    with gradviz.record("run.gradviz"):
        ...
    gradviz.open("run.gradviz")
    gradviz.draw(loss).save("loss.svg")
"""

from __future__ import annotations

from typing import Any

from gradviz import engine
from gradviz import autograd, backends, cuda, draw, func, linalg, nn, optim, random, special, utils
from gradviz.engine.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    scalar_tensor,
    tensor,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)
from gradviz.engine.dtypes import PUBLIC as _dtypes
from gradviz.engine.missing import says_what_is_missing
from gradviz.engine.memory_format import PUBLIC as _memory_formats
from gradviz.engine.dtypes import dtype, get_default_dtype, set_default_dtype
from gradviz.engine.methods import FUNCTIONS as _functions
from gradviz.engine.inplace import FUNCTIONS as _in_place_functions
from gradviz.engine.methods import METHODS as _methods
from gradviz.engine.questions import FUNCTIONS as _questions
from gradviz.func import vmap
from gradviz.engine.printing import set_printoptions
from gradviz.engine.devices import device
from gradviz.engine.dtypes import finfo, iinfo, promote_types
from gradviz.engine.random import Generator, default_generator, initial_seed, manual_seed
from gradviz.random import get_rng_state, seed, set_rng_state
from gradviz.engine.sampling import PUBLIC as _sampling
from gradviz.engine.saving import load, save
from gradviz.engine.state import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gradviz.engine.tensor import Size, Tensor

__version__ = "0.1.0"

_METHODS_ONLY = {
    "view",
    "astype",
    "to",
    "cpu",
    "contiguous",
    "float",
    "double",
    "half",
    "long",
    "int",
    "bool",
    "short",
    "char",
    "byte",
    "repeat",
    "unfold",
    "sum_to_size",
    "type_as",
    "data_ptr",
    "is_contiguous",
    "element_size",
    "ndimension",
    "stride",
    "storage_offset",
    "type",
}

globals().update(_dtypes)
globals().update(_memory_formats)
globals().update(_sampling)
globals().update(
    {
        name: function
        for name, function in _methods.items()
        if name not in _METHODS_ONLY and not name.endswith(("_", "_as"))
    }
)
globals().update(_functions)
globals().update({name: _methods[name] for name in _in_place_functions})
globals().update(_questions)
globals().update({name: getattr(nn.functional, name) for name in nn.functional.ALSO_TORCHS})
from math import inf, nan, pi


def numel(input: Tensor) -> int:
    """How many elements a tensor has."""
    return input.numel()


def detach(input: Tensor) -> Tensor:
    """The same memory without a place in the graph."""
    return input.detach()


def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that tensors of these shapes broadcast to."""
    import numpy as np

    try:
        return Size(np.broadcast_shapes(*shapes))
    except ValueError:
        raise RuntimeError("Shape mismatch: objects cannot be broadcast to a single shape") from None


def is_tensor(value: Any) -> bool:
    """Whether `value` is a Tensor."""
    return isinstance(value, Tensor)


def _draw_live(tensor: Tensor, **settings: Any) -> Any:
    from gradviz.sources.live import draw as draw_live

    return draw_live(tensor, **settings)


draw.live = _draw_live  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    """`record` and `open` are loaded when they are first asked for: a program that only computes needs neither."""
    if name == "record":
        from gradviz.sources.record import record

        return record
    if name == "open":
        from gradviz.tracefile import open_trace

        return open_trace
    return _missing(name)


_missing = says_what_is_missing(__name__, globals())
