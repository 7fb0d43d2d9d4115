"""Gradients compared with finite differences. See PyTorch's `torch.autograd.gradcheck`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.core.backward import grad
from gradviz.engine.core.forward_mode import dual_level, make_dual, unpack_dual
from gradviz.engine.core.state import enable_grad, no_grad
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, new_tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError):
    """A derivative differs from the finite differences."""


def gradcheck(
    func: Callable,
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_backward_ad: bool = True,
    check_forward_ad: bool = False,
    fast_mode: bool = False,
    **unsupported: Any,
) -> bool:
    """Compare the gradients of `func` with central differences. The inputs should be float64.

    Raises GradcheckError with both Jacobians where they differ. With `raise_exception=False` it returns False
    instead."""
    if any(unsupported.values()):
        raise NotImplementedError(f"gradviz's gradcheck has no {', '.join(unsupported)}.")
    try:
        _check(func, _as_list(inputs), eps, atol, rtol, nondet_tol, check_forward_ad, check_backward_ad)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _as_list(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _check(
    func: Callable,
    inputs: list[Any],
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
    forward: bool,
    backward: bool,
) -> None:
    positions = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not positions:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    for i in positions:
        if inputs[i].array.dtype.kind == "c":
            raise NotImplementedError("gradviz's gradcheck takes real tensors only.")
    outputs = _outputs(func, inputs)
    if not outputs:
        raise GradcheckError("gradcheck: the function has no floating-point output that could be differentiated.")
    for i in positions:
        numerical = _differences(func, inputs, i, eps)
        for nr, out in enumerate(outputs):
            if backward:
                analytical = _by_backward(func, inputs, i, nr, nondet_tol)
                _compare(numerical[nr], analytical, nr, i, atol, rtol, "backward")
            if forward:
                pushed = _by_forward(func, inputs, i, nr, out.array.size)
                _compare(numerical[nr], pushed, nr, i, atol, rtol, "forward")


def _outputs(func: Callable, inputs: Sequence[Any]) -> list[Tensor]:
    results = func(*inputs)
    listed = results if isinstance(results, (tuple, list)) else (results,)
    return [out for out in listed if isinstance(out, Tensor) and out.array.dtype.kind == "f"]


def _differences(func: Callable, inputs: list[Any], i: int, eps: float) -> list[np.ndarray]:
    """The Jacobians of the outputs in the i-th input by central differences, of shape (input, output)."""
    original = inputs[i].array
    columns: list[list[np.ndarray]] = []
    with no_grad():
        for at in np.ndindex(*original.shape):
            ends = []
            for side in (eps, -eps):
                moved = original.copy()
                moved[at] += side
                changed = [*inputs[:i], new_tensor(moved), *inputs[i + 1 :]]
                ends.append([out.array.astype(np.float64).copy() for out in _outputs(func, changed)])
            columns.append([(up - down).ravel() / (2 * eps) for up, down in zip(*ends, strict=True)])
    return [np.array(rows).reshape(original.size, -1) for rows in zip(*columns, strict=True)]


def _by_backward(func: Callable, inputs: list[Any], i: int, nr: int, tolerance: float) -> np.ndarray:
    out = _outputs(func, inputs)[nr]
    jacobian = np.zeros((inputs[i].array.size, out.array.size))
    if not out.requires_grad:
        return jacobian
    for column in range(out.array.size):
        one = np.zeros(out.array.size, out.array.dtype)
        one[column] = 1
        vector = new_tensor(one.reshape(out.array.shape))
        first, again = (grad(out, inputs[i], vector, retain_graph=True, allow_unused=True)[0] for _ in range(2))
        if first is None:
            continue
        if again is None or np.abs(first.array - again.array).max(initial=0) > tolerance:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple "
                "times gives different values."
            )
        jacobian[:, column] = first.array.ravel()
    return jacobian


def _by_forward(func: Callable, inputs: list[Any], i: int, nr: int, n: int) -> np.ndarray:
    jacobian = np.zeros((inputs[i].array.size, n))
    for row in range(inputs[i].array.size):
        one = np.zeros(inputs[i].array.size, inputs[i].array.dtype)
        one[row] = 1
        with dual_level():
            dual = make_dual(new_tensor(inputs[i].array), new_tensor(one.reshape(inputs[i].array.shape)))
            out = _outputs(func, [*inputs[:i], dual, *inputs[i + 1 :]])[nr]
            tangent = unpack_dual(out).tangent
        if tangent is not None:
            jacobian[row] = tangent.array.ravel()
    return jacobian


def _compare(
    numerical: np.ndarray, analytical: np.ndarray, nr: int, i: int, atol: float, rtol: float, mode: str
) -> None:
    if not np.allclose(analytical, numerical, rtol, atol):
        extra = " in forward mode AD" if mode == "forward" else ""
        raise GradcheckError(
            f"Jacobian mismatch{extra} for output {nr} with respect to input {i},\n"
            f"numerical:{new_tensor(numerical)!r}\nanalytical:{new_tensor(analytical)!r}\n"
        )


def gradgradcheck(
    func: Callable, inputs: Any, grad_outputs: Any = None, *, raise_exception: bool = True, **settings: Any
) -> bool:
    """`gradcheck` of the gradients of `func`. The upstream gradients are given or random."""
    listed = _as_list(inputs)
    outputs = [out for out in _outputs(func, listed) if out.requires_grad]
    if grad_outputs is None:
        random = np.random.default_rng(0)
        upstream = [
            new_tensor(random.normal(size=out.array.shape).astype(out.array.dtype), LEAF_EDGE) for out in outputs
        ]
    else:
        upstream = _as_list(grad_outputs)
    n = len(listed)

    def gradients(*given: Any) -> tuple[Tensor, ...]:
        wanted = [x for x in given[:n] if isinstance(x, Tensor) and x.requires_grad]
        if len(wanted) < sum(isinstance(x, Tensor) and x.requires_grad for x in listed):
            given = tuple(_leaf(x, old) for x, old in zip(given, [*listed, *upstream], strict=True))
            wanted = [x for x in given[:n] if isinstance(x, Tensor) and x.requires_grad]
        with enable_grad():
            results = [out for out in _outputs(func, given[:n]) if out.requires_grad]
            found = grad(results, wanted, list(given[n:]), create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(gradients, [*listed, *upstream], raise_exception=raise_exception, **settings)


def _leaf(x: Any, like: Any) -> Any:
    """x as a leaf that requires grad where the tensor that it replaces does."""
    if isinstance(x, Tensor) and like.requires_grad and not x.requires_grad:
        return new_tensor(x.array, LEAF_EDGE)
    return x
