"""Clear gradients: what `zero_grad()` of an optimizer and of a module does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, number_of
from gradviz.engine.tensors.writing import overwrite


def clear_grads(owner: str, parameters: Iterable[Tensor], to_none: bool) -> None:
    """Set the `.grad` of parameters to None, or their elements to zero; `owner` is the class that does it."""
    with_grad = [p for p in parameters if p._rare is not None and p._rare.grad is not None]
    listener = state.listener
    where = None if listener is None else listener.place(sys._getframe(2))
    if listener is not None:
        listener.grads_cleared(where, owner, to_none, [number_of(p) for p in with_grad])
    for parameter in with_grad:
        rare: Any = parameter._rare
        if not to_none:
            overwrite(rare.grad, 0, "zero_", where=where)
        else:
            rare.grad = None
    if listener is not None and to_none:
        listener.grads_dropped(where, [parameter._number for parameter in with_grad])
