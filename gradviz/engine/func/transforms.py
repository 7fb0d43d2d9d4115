"""Function transforms: gradients, Jacobians and Hessians.

They nest: `grad(grad(f))`, `jacrev(jacrev(f))`. Forward mode does not nest within itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.core import backward
from gradviz.engine.core.forward_mode import dual_level, make_dual, set_tangent, tangent_of, unpack_dual
from gradviz.engine.core.node import AccumulateGrad, edge_node
from gradviz.engine.core.state import enable_grad
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, announce, new_tensor, node_of
from gradviz.engine.func.trees import leaves, mapped, rebuilt
from gradviz.engine.table import ops
from gradviz.events.values import TRANSFORM

Argnums = int | tuple[int, ...]

# --- arguments


def _positions(argnums: Argnums, n: int) -> tuple[int, ...]:
    listed = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for position in listed:
        if not -n <= position < n:
            raise RuntimeError(f"Got argnum={position}, but only {n} positional inputs")
    return tuple(position % n for position in listed)


def _fresh(value: Any) -> Any:
    """A new tensor to differentiate with respect to. It is in the graph of its argument, or a leaf where that is in
    none."""
    if not isinstance(value, Tensor):
        return value
    if value._edge is not None or value.array.dtype.kind not in "fc":
        return ops.view_as_self(value)
    twin = new_tensor(value.array, LEAF_EDGE)
    tangent = tangent_of(value)
    if tangent is not None:
        set_tangent(twin, tangent, TRANSFORM)
    announce(twin, TRANSFORM, value)
    return twin


def _replaced(args: Sequence[Any], positions: Sequence[int], values: Sequence[Any]) -> list[Any]:
    changed = list(args)
    for position, value in zip(positions, values, strict=True):
        changed[position] = value
    return changed


def _settled(result: Any, fresh: Sequence[Any]) -> Any:
    """The result, which stays in the graph only where something other than the fresh leaves requires gradients of
    it."""
    own = {id(leaf) for leaf in fresh if isinstance(leaf, Tensor) and leaf.is_leaf}

    def settle(value: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad and not _leads_elsewhere(value, own):
            return _detached(value, own)
        return value

    return mapped(settle, result)


def _detached(value: Tensor, own: set[int]) -> Tensor:
    """The value outside of the graph. It keeps its tangent, which is detached too."""
    out = new_tensor(value.array)
    tangent = tangent_of(value)
    if tangent is not None:
        if tangent.requires_grad and not _leads_elsewhere(tangent, own):
            tangent = new_tensor(tangent.array)
        set_tangent(out, tangent, "detach")
    return out


def _leads_elsewhere(tensor: Tensor, own: set[int]) -> bool:
    if tensor.is_leaf:
        return id(tensor) not in own
    stack, seen = [node_of(tensor)], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad) and id(node.variable) not in own:
            return True
        stack += [edge_node(edge) for edge in node.edges]
    return False


def _split(result: Any, has_aux: bool, name: str) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True")
    return result


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Any]) -> list[Tensor]:
    """The gradients, in the graph. Unused inputs have zeros."""
    pairs = [(out, v) for out, v in zip(outputs, vectors, strict=True) if out.requires_grad]
    found: tuple[Any, ...] = (None,) * len(inputs)
    if pairs:
        roots, upstream = zip(*pairs, strict=True)
        found = backward.grad(roots, inputs, upstream, create_graph=True, allow_unused=True)
    return [new_tensor(np.zeros_like(x.array)) if g is None else g for g, x in zip(found, inputs, strict=True)]


def _evaluated(
    name: str, func: Callable, argnums: Argnums, args: tuple, kwargs: dict[str, Any], has_aux: bool
) -> tuple[list[Any], Any, Any]:
    """Fresh leaves for the arguments `argnums`, the value of `func` for them, and its auxiliary output."""
    positions = _positions(argnums, len(args))
    chosen = [mapped(_fresh, args[position]) for position in positions]
    return chosen, *_split(func(*_replaced(args, positions, chosen), **kwargs), has_aux, name)


# --- what the module offers


def grad_and_value(func: Callable, argnums: Argnums = 0, has_aux: bool = False) -> Callable:
    """A function that returns the gradient of `func`, and its value."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            chosen, value, aux = _evaluated("grad", func, argnums, args, kwargs, has_aux)
            inputs = leaves(chosen)
            if not isinstance(value, Tensor) or value.array.size != 1 or value.array.ndim:
                shown = f"tensor with {value.array.ndim} dims" if isinstance(value, Tensor) else type(value).__name__
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, got "
                    + shown
                    + ". Reduce it with .sum() or .mean(), or use vjp or jacrev."
                )
            gradients = _gradients([value], inputs, [None])
            tree = rebuilt(chosen, list(gradients))
            result = tree[0] if isinstance(argnums, int) else tuple(tree)
        result, value, aux = _settled((result, value, aux), inputs)
        return (result, (value, aux)) if has_aux else (result, value)

    return call


def grad(func: Callable, argnums: Argnums = 0, has_aux: bool = False) -> Callable:
    """A function that returns the gradient of `func` with respect to the arguments `argnums`.

    Raises RuntimeError where `func` does not return a tensor of no dimensions."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        result, value = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return call


def vjp(func: Callable, *primals: Any, has_aux: bool = False) -> Any:
    """The value of `func`, and a function from upstream gradients to the gradients of the primals."""
    with enable_grad():
        chosen = mapped(_fresh, primals)
        inputs = leaves(chosen)
        value, aux = _split(func(*chosen), has_aux, "vjp")
    outputs = leaves(value)

    def pull(*cotangents: Any) -> Any:
        vectors = leaves(cotangents)
        if len(vectors) != len(outputs):
            raise RuntimeError(f"Expected {len(outputs)} cotangents, got {len(vectors)}")
        with enable_grad():
            gradients = _gradients(outputs, inputs, vectors)
        return _settled(rebuilt(chosen, gradients), inputs)

    shown = _settled(value, inputs)
    return (shown, pull, _settled(aux, inputs)) if has_aux else (shown, pull)


def jvp(func: Callable, primals: tuple, tangents: tuple, *, has_aux: bool = False) -> Any:
    """The value of `func`, and its tangent for the tangents of the primals, in forward mode.

    Tangents have the shapes of their primals."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise RuntimeError("jvp(f, primals, tangents): Expected primals and tangents to be tuples")
    pushed = list(zip(leaves(primals), leaves(tangents), strict=True))
    with dual_level():
        duals = rebuilt(primals, [make_dual(primal, tangent) for primal, tangent in pushed])
        value, aux = _split(func(*duals), has_aux, "jvp")
        pairs = [unpack_dual(out) for out in leaves(value)]
    made = [new_tensor(np.zeros_like(out.primal.array)) if out.tangent is None else out.tangent for out in pairs]
    tangent = rebuilt(value, made)
    return (value, tangent, aux) if has_aux else (value, tangent)


def jacrev(func: Callable, argnums: Argnums = 0, *, has_aux: bool = False, **_: Any) -> Callable:
    """A function that returns the Jacobian of `func`, of shape (*output, *input). There is one backward for each
    output element."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            chosen, value, aux = _evaluated("jacrev", func, argnums, args, kwargs, has_aux)
            inputs = leaves(chosen)

            def rows(out: Tensor) -> Any:
                tree = rebuilt(chosen, _jacobian(out, inputs))
                return tree[0] if isinstance(argnums, int) else tuple(tree)

            result = rebuilt(value, [rows(out) for out in leaves(value)])
        result, aux = _settled((result, aux), inputs)
        return (result, aux) if has_aux else result

    return call


def _jacobian(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The Jacobian of one output with respect to each input."""
    if not out.array.size:
        return [new_tensor(np.zeros((*out.array.shape, *x.array.shape), x.array.dtype)) for x in inputs]
    by_element = [_gradients([out], inputs, [one]) for one in _unit_tensors(out)]
    shape = out.array.shape
    return [ops.reshape(ops.stack(column), *shape, *column[0].array.shape) for column in zip(*by_element, strict=True)]


def _unit_tensors(x: Tensor) -> list[Tensor]:
    """For each element of x, a tensor of zeros with a 1 at that element."""
    return [new_tensor(row.reshape(x.array.shape)) for row in np.eye(x.array.size, dtype=x.array.dtype)]


def jacfwd(func: Callable, argnums: Argnums = 0, has_aux: bool = False, **_: Any) -> Callable:
    """A function that returns the Jacobian of `func`, of shape (*output, *input). It runs once in forward mode for
    each input element."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        positions = _positions(argnums, len(args))
        results, aux = [], None
        for position in positions:
            x = args[position]
            if not isinstance(x, Tensor):
                raise NotImplementedError("gradviz's jacfwd differentiates by arguments that are tensors.")
            columns = []
            for unit in _unit_tensors(x):

                def run(value: Any, position: int = position) -> Any:
                    return func(*_replaced(args, [position], [value]), **kwargs)

                _, tangent, *aux_list = jvp(run, (x,), (unit,), has_aux=has_aux)
                columns.append(tangent)
                aux = aux_list[0] if has_aux else None
            results.append(_stacked(columns, x))
        result = results[0] if isinstance(argnums, int) else _by_output(results)
        return (result, aux) if has_aux else result

    return call


def _stacked(columns: list[Any], x: Tensor) -> Any:
    """Tangents, one for each element of x, as a Jacobian of shape (*output, *x)."""
    parts = zip(*(leaves(column) for column in columns), strict=True)
    made = [ops.reshape(ops.stack(part, -1), *part[0].array.shape, *x.array.shape) for part in parts]
    return rebuilt(columns[0], made)


def _by_output(results: list[Any]) -> Any:
    """Jacobians by argument and output, regrouped by output and argument."""
    if isinstance(results[0], Tensor):
        return tuple(results)
    pairs = zip(*(leaves(result) for result in results), strict=True)
    return rebuilt(results[0], list(pairs))


def hessian(func: Callable, argnums: Argnums = 0) -> Callable:
    """A function that returns the Hessian of `func`."""
    return jacrev(jacrev(func, argnums), argnums)
