"""Clear gradients: what `zero_grad()` of an optimizer and of a module does."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, number_of
from gradviz.engine.tensors.writing import overwrite


def clear_grads(owner: str, parameters: Iterable[Tensor], to_none: bool) -> None:
    """Set the `.grad` of parameters to None, or their elements to zero; `owner` is the class that does it."""
    with_grad = [p for p in parameters if p._rare is not None and p._rare.grad is not None]
    if state.listener is not None:
        state.listener.grads_cleared(sys._getframe(2), owner, to_none, [number_of(p) for p in with_grad])
    for parameter in with_grad:
        if to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            overwrite(parameter.grad, 0, "zero_")
