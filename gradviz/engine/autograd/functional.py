"""Derivatives of functions. See PyTorch's `torch.autograd.functional`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.backward import grad
from gradviz.engine.core.state import enable_grad
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, new_tensor
from gradviz.engine.table import ops

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _as_tuple(value: Any, what: str, name: str) -> tuple[tuple[Tensor, ...], bool]:
    """Tensors as a tuple, and whether they were given as one. Raises TypeError for anything else."""
    single = isinstance(value, Tensor)
    listed = (value,) if single else tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for part in listed:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the given {what} "
                f"has type {type(part)}."
            )
    return listed, not single


def _fresh(inputs: Sequence[Tensor], keep_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as new tensors to differentiate with respect to. They are in the graph where the result has to
    be."""
    if not keep_graph:
        return tuple(new_tensor(x.array, LEAF_EDGE) for x in inputs)
    return tuple(ops.view_as_self(x) if x.requires_grad else new_tensor(x.array, LEAF_EDGE) for x in inputs)


def _called(func: Callable, inputs: Any, name: str, keep_graph: bool) -> tuple[Any, ...]:
    """The inputs to differentiate with respect to, and the outputs. For both: whether they were a tuple."""
    given, many_in = _as_tuple(inputs, "inputs", name)
    fresh = _fresh(given, keep_graph)
    outputs, many_out = _as_tuple(func(*fresh), "outputs of the user-provided function", name)
    return fresh, many_in, outputs, many_out


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Any], create_graph: bool, strict: bool
) -> tuple[Tensor, ...]:
    """The gradients of the outputs that require grad. An unused input has zeros, or raises RuntimeError if
    `strict`."""
    pairs = [(out, v) for out, v in zip(outputs, vectors, strict=True) if out.requires_grad]
    if strict and len(pairs) < len(outputs):
        raise _independent("the input")
    found: tuple[Any, ...] = (None,) * len(inputs)
    if pairs:
        roots, upstream = zip(*pairs, strict=True)
        found = grad(roots, inputs, upstream, retain_graph=True, create_graph=create_graph, allow_unused=True)
    if strict and any(g is None for g in found):
        raise _independent("one of the inputs")
    return tuple(new_tensor(np.zeros_like(x.array)) if g is None else g for g, x in zip(found, inputs, strict=True))


def _independent(what: str) -> Exception:
    return RuntimeError(
        f"The output of the user-provided function is independent of {what}. This is not allowed in strict mode."
    )


def _vectors(v: Any, like: Sequence[Tensor], name: str) -> tuple[Tensor, ...]:
    """The given vectors, after a check of their shapes. Without vectors: 1, where there is a single element."""
    if v is None:
        if len(like) != 1 or like[0].array.size != 1:
            raise RuntimeError(
                "The vector v can only be None if the user-provided function returns a single Tensor with a "
                f"single element ({name})."
            )
        return (new_tensor(np.ones_like(like[0].array)),)
    given, _ = _as_tuple(v, "vector v", name)
    if [part.array.shape for part in given] != [part.array.shape for part in like]:
        shapes, expected = ([list(part.shape) for part in parts] for parts in (given, like))
        raise RuntimeError(f"{name}: v has shapes {shapes}, expected {expected}")
    return given


def _shown(tensors: Sequence[Tensor], many: bool, keep_graph: bool) -> Any:
    """The result for the caller: detached unless a graph was asked for, and one tensor where one was given."""
    results = tuple(tensors) if keep_graph else tuple(new_tensor(x.array) for x in tensors)
    return results if many else results[0]


def vjp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The outputs of `func`, and the vector v times its Jacobian.

    `v` has the shapes of the outputs. Raises RuntimeError where shapes do not fit, and, if `strict`, where an output
    does not depend on an input."""
    with enable_grad():
        fresh, many_in, outputs, many_out = _called(func, inputs, "vjp", create_graph)
        gradients = _gradients(outputs, fresh, _vectors(v, outputs, "vjp"), create_graph, strict)
    return _shown(outputs, many_out, create_graph), _shown(gradients, many_in, create_graph)


def jvp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The outputs of `func`, and its Jacobian times the vector v.

    `v` has the shapes of the inputs. The result is the derivative of the vjp in its vector. Raises as `vjp` does."""
    with enable_grad():
        fresh, _, outputs, many_out = _called(func, inputs, "jvp", create_graph)
        vector = _vectors(v, fresh, "jvp")
        weights = tuple(new_tensor(np.zeros_like(out.array), LEAF_EDGE) for out in outputs)
        pulled = _gradients(outputs, fresh, weights, True, strict)
        pushed = _gradients(pulled, weights, vector, create_graph, False)
    return _shown(outputs, many_out, create_graph), _shown(pushed, many_out, create_graph)


def jacobian(
    func: Callable,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of `func`: for each output and input a tensor of shape (*output, *input).

    Raises RuntimeError, if `strict`, where an output does not depend on an input."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode".')
    with enable_grad():
        fresh, many_in, outputs, many_out = _called(func, inputs, "jacobian", create_graph)
        rows = [_rows(out, fresh, create_graph, strict) for out in outputs]
    results = tuple(_shown(row, many_in, create_graph) for row in rows)
    return results if many_out else results[0]


def _rows(out: Tensor, inputs: Sequence[Tensor], create_graph: bool, strict: bool) -> list[Tensor]:
    """The Jacobian of one output with respect to all inputs. There is one backward for each element."""
    by_element = []
    for at in range(out.array.size):
        one = np.zeros(out.array.size, out.array.dtype)
        one[at] = 1
        one = one.reshape(out.array.shape)
        by_element.append(_gradients((out,), inputs, (new_tensor(one),), create_graph, strict))
    shape = out.array.shape
    if not by_element:
        return [new_tensor(np.zeros((*shape, *x.array.shape), x.array.dtype)) for x in inputs]
    return [ops.reshape(ops.stack(column), *shape, *column[0].array.shape) for column in zip(*by_element, strict=True)]


def _scalar(func: Callable, name: str) -> Callable:
    def call(*inputs: Tensor) -> Tensor:
        out = func(*inputs)
        if not isinstance(out, Tensor):
            raise RuntimeError(f"The function given to {name} should return a single Tensor")
        if out.array.size != 1:
            raise RuntimeError(f"The Tensor returned by the function given to {name} should contain a single element")
        return ops.reshape(out, ()) if out.array.ndim else out

    return call


def hessian(
    func: Callable,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function with a single element as its output: for each pair of inputs a tensor of both
    shapes."""
    given, many = _as_tuple(inputs, "inputs", "hessian")

    def gradient(*x: Tensor) -> tuple[Tensor, ...]:
        return jacobian(_scalar(func, "hessian"), x, create_graph=True)

    result = jacobian(gradient, given, create_graph=create_graph, strict=strict)
    return result if many else result[0][0]


def vhp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The value of a scalar function, and the vector v times its Hessian."""
    with enable_grad():
        fresh, many, outputs, _ = _called(_scalar(func, "vhp"), inputs, "vhp", create_graph)
        first = _gradients(outputs, fresh, (None,), True, strict)
        second = _gradients(first, fresh, _vectors(v, fresh, "vhp"), create_graph, strict)
    return _shown(outputs, False, create_graph), _shown(second, many, create_graph)


def hvp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The value of a scalar function, and its Hessian times the vector v. The Hessian is symmetric, so it is the
    vhp."""
    return vhp(_scalar(func, "hvp"), inputs, v, create_graph, strict)


__getattr__ = says_what_is_missing(__name__, globals())
