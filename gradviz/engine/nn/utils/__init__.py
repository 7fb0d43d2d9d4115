"""Parameters as a vector, and gradient clipping. See PyTorch's `torch.nn.utils`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, new_tensor, number_of
from gradviz.engine.table import ops
from gradviz.engine.tensors.writing import overwrite

__all__ = ["clip_grad_norm_", "clip_grad_value_", "get_total_norm", "parameters_to_vector", "vector_to_parameters"]


def _gradients(parameters: Any, how: str) -> list[Any]:
    """The gradients that the function `how` is to clip. The listener is told."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    ready = [p for p in listed if p._rare is not None and p._rare.grad is not None]
    if state.listener is not None:
        state.listener.clipped(sys._getframe(2), how, [number_of(p) for p in ready])
    return [p._rare.grad for p in ready]  # type: ignore[union-attr]


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all tensors together, as of one vector."""
    norms = [np.linalg.norm(tensor.array.ravel(), norm_type) for tensor in tensors]
    return new_tensor(np.asarray(np.linalg.norm(np.array(norms), norm_type) if norms else np.float32(0)))


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their total norm is at most `max_norm`. Returns the norm before."""
    gradients = _gradients(parameters, "clip_grad_norm_")
    total = get_total_norm(gradients, float(norm_type))
    if error_if_nonfinite and not np.isfinite(total.array):
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
            "set `error_if_nonfinite=False`"
        )
    factor = np.minimum(max_norm / (total.array + 1e-6), 1.0)
    for gradient in gradients:
        overwrite(gradient, gradient.array * gradient.array.dtype.type(factor), "clip_grad_norm_")
    return total


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp all elements of the gradients to ±`clip_value`."""
    for gradient in _gradients(parameters, "clip_grad_value_"):
        overwrite(gradient, np.clip(gradient.array, -clip_value, clip_value), "clip_grad_value_")


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector, in the graph."""
    return ops.cat([ops.reshape(parameter, -1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Set the parameters to the values of one vector, in order."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    start = 0
    for parameter in parameters:
        stop = start + parameter.array.size
        overwrite(parameter, vec.array[start:stop].reshape(parameter.array.shape), "vector_to_parameters")
        start = stop


__getattr__ = says_what_is_missing(__name__, globals())
