"""Leaves: gradients are accumulated in `.grad`."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from gradviz.engine.basics.turns import new_turn
from gradviz.engine.core.apply import apply
from gradviz.engine.core.registry import TABLE
from gradviz.engine.core.tensor import Tensor, counter_of, new_tensor, tensor_rare

_turn = new_turn()  # NumPy releases the GIL while it adds large arrays


def accumulate(leaf: Tensor, box: list[Any], create_graph: bool) -> None:
    """Add the gradient in `box` to the `.grad` of a leaf. It is added in place where no graph is recorded, as in
    PyTorch.

    Threads that share the leaf take turns, as in PyTorch."""
    if leaf._edge is None:  # it does not require grad any more
        return
    with _turn:
        rare = tensor_rare(leaf)
        gradient = box.pop()
        if isinstance(gradient, Tensor):
            held: Any = rare.grad
            rare.grad = apply(TABLE["copy"], (gradient,)) if held is None else held + gradient
            return
        unshared = getrefcount(gradient) <= 2  # those of this frame and of the call
        array = gradient
        if type(gradient) is not np.ndarray or gradient.dtype is not leaf.array.dtype:
            array = np.asarray(gradient, leaf.array.dtype)
        if array.shape != leaf.array.shape:
            array = np.broadcast_to(array, leaf.array.shape)
        if rare.grad is None:
            rare.grad = new_tensor(array if unshared and _has_its_own_memory(array) else array.copy())
        elif create_graph:
            rare.grad = rare.grad + new_tensor(array)
        else:
            np.add(rare.grad.array, array, out=rare.grad.array)
            counter_of(rare.grad).n += 1


def _has_its_own_memory(array: np.ndarray) -> bool:
    """Whether no other array shares the memory: the array is not a view, or it is the only view of its whole base."""
    whole = array.base
    if whole is None:
        return True
    referrers = getrefcount(whole) - 2  # those of this frame and of the call
    return referrers == 1 and whole.base is None and array.flags.c_contiguous and whole.size == array.size
