"""Define-by-run autograd on NumPy, with PyTorch's semantics and names: `import gradviz.engine as torch`.

Its rooms, each built on those above it:

- `basics`: dtypes, devices, printing and error messages, which know nothing of tensors
- `core`: tensors, nodes, ops and passes: how a graph is recorded and differentiated
- `rng`: the random number generator
- `table`: every operation with its derivative. Start reading at `table/derivatives/`
- `tensors`: how programs make tensors, Tensor's methods, operations in place, NumPy's functions, files
- PyTorch's libraries under PyTorch's names: `nn`, `optim`, `autograd`, `func`, `utils`, ...
"""

from __future__ import annotations

import warnings as _warnings
from math import inf, nan, pi
from typing import TYPE_CHECKING

from gradviz.engine import autograd, backends, cuda, func, linalg, nn, optim, random, special, utils
from gradviz.engine.basics.devices import device
from gradviz.engine.basics.dtypes import PUBLIC as _dtypes
from gradviz.engine.basics.dtypes import dtype, finfo, get_default_dtype, iinfo, promote_types, set_default_dtype
from gradviz.engine.basics.memory_format import PUBLIC as _memory_formats
from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.basics.printing import set_printoptions
from gradviz.engine.core.state import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.core.values import Size
from gradviz.engine.func import vmap
from gradviz.engine.random import get_rng_state, seed, set_rng_state
from gradviz.engine.rng.generator import Generator, default_generator, initial_seed, manual_seed
from gradviz.engine.tensors.creation import (
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
from gradviz.engine.tensors.inplace import FUNCTIONS as _in_place_functions
from gradviz.engine.tensors.methods import FUNCTIONS as _functions
from gradviz.engine.tensors.methods import METHODS as _methods
from gradviz.engine.tensors.questions import FUNCTIONS as _questions
from gradviz.engine.tensors.sampling import PUBLIC as _sampling
from gradviz.engine.tensors.saving import load, save
from gradviz.version import TORCH_VERSION as __torch_version__
from gradviz.version import __version__

if TYPE_CHECKING:  # at run time `import *` also takes the functions that are added below
    __all__ = [
        "Generator",
        "Size",
        "Tensor",
        "arange",
        "as_tensor",
        "autograd",
        "backends",
        "cuda",
        "default_generator",
        "device",
        "dtype",
        "empty",
        "empty_like",
        "enable_grad",
        "eye",
        "finfo",
        "from_numpy",
        "full",
        "full_like",
        "func",
        "get_default_dtype",
        "get_rng_state",
        "iinfo",
        "inf",
        "inference_mode",
        "initial_seed",
        "is_grad_enabled",
        "linalg",
        "linspace",
        "load",
        "logspace",
        "manual_seed",
        "nan",
        "nn",
        "no_grad",
        "ones",
        "ones_like",
        "optim",
        "pi",
        "promote_types",
        "rand",
        "rand_like",
        "randint",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "save",
        "scalar_tensor",
        "seed",
        "set_default_dtype",
        "set_grad_enabled",
        "set_printoptions",
        "set_rng_state",
        "special",
        "tensor",
        "tril_indices",
        "triu_indices",
        "utils",
        "vmap",
        "zeros",
        "zeros_like",
    ]

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

__getattr__ = says_what_is_missing(__name__, globals())

# NumPy warns where PyTorch quietly gives inf or NaN. The warnings of the user's own NumPy code still appear.
_warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"gradviz\.engine\.")
