"""What nodes saved, read without running code of the program's."""

from __future__ import annotations

from typing import Any

import torch

from gradviz.sources.torch_needs import optional

RAW = "_raw_saved_"  # begins the names of attributes of nodes
HAVE_DATA = hasattr(torch._C._autograd.SavedTensor, "data")  # from 2.10 on
_hooks = optional(torch, "_C._autograd._top_saved_tensors_default_hooks")  # not in 2.5
IS_KNOWN = HAVE_DATA or _hooks is not None  # whether what nodes saved can be read at all


def saved_as_is(fn: Any, name: str, is_new: bool) -> Any:
    """What a node saved under a name that begins with RAW: one thing, or several, for `data_of`. Before 2.10 a tensor
    can only be unpacked, which runs the program's hooks where there are any: None unless the node `is_new`, and nothing
    packs what this thread saves. Raises RuntimeError and AttributeError where nothing is saved, or no longer."""
    if HAVE_DATA:
        return getattr(fn, name)
    if not is_new or _hooks is None or _hooks(True) is not None:
        return None
    unpacked = "saved_tensors" if isinstance(fn, torch._C._FunctionBase) else name.removeprefix("_raw")
    with torch._C._DisableTorchDispatch():
        return getattr(fn, unpacked)


def data_of(saved: Any) -> Any:
    """The tensor that was saved, of which no mode hears; None where hooks packed it."""
    if not HAVE_DATA:
        return saved
    if not torch._C._len_torch_dispatch_stack():
        return getattr(saved, "data", None)
    with torch._C._DisableTorchDispatch():
        return getattr(saved, "data", None)
