"""NumPy's functions on Tensors: ops of the table where there is one, NumPy's own of the values where there is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradviz import engine
from gradviz.engine.autograd import forward_ad

VALUES = np.array([[1.0, 2.0, -0.5], [3.0, 0.5, 0.25]])

FUNCTIONS: dict[str, Callable] = {
    "sin": np.sin,
    "add": lambda a: np.add(a, VALUES),
    "concatenate": lambda a: np.concatenate([a, VALUES, a], axis=1),
    "stack": lambda a: np.stack([a, VALUES]),
    "vstack": lambda a: np.vstack([a, a]),
    "hstack": lambda a: np.hstack([VALUES, a]),
    "std": np.std,
    "var": lambda a: np.var(a, axis=1, ddof=1, keepdims=True),
    "norm": np.linalg.norm,
    "norm of rows": lambda a: np.linalg.norm(a, axis=1),
    "tile": lambda a: np.tile(a, (2, 1)),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "kron": lambda a: np.kron(a, a),
    "tensordot": lambda a: np.tensordot(a, VALUES.T, 1),
    "outer": lambda a: np.outer(a[0], VALUES[1]),
    "cross": lambda a: np.cross(a, VALUES[::-1]),
    "diagonal": np.diagonal,
    "diag": np.diag,
    "sort": lambda a: np.sort(a, axis=0),
    "take_along_axis": lambda a: np.take_along_axis(a, np.argsort(VALUES, 1), 1),
    "nan_to_num": np.nan_to_num,
    "clip": lambda a: np.clip(a, 0.1, 1.2),
    "where": lambda a: np.where(VALUES > 0, a, 0.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_numpy_gives_a_tensor_that_is_differentiated(name: str) -> None:
    function = FUNCTIONS[name]
    x = engine.tensor(VALUES, requires_grad=True)
    result = function(x)
    np.testing.assert_allclose(result.detach(), function(VALUES))
    assert result.requires_grad
    assert engine.autograd.gradcheck(function, (x,))


def test_a_function_that_has_no_op_is_numpys_own() -> None:
    x = engine.tensor(VALUES)
    assert np.allclose(x, VALUES)
    assert not np.array_equal(x, VALUES + 1)
    assert np.percentile(x, 50) == np.percentile(VALUES, 50)
    np.testing.assert_array_equal(np.add.reduce(x), VALUES.sum(0))
    assert np.add(x, 1, dtype=np.float32).dtype == np.float32


def test_numpy_does_not_lose_a_gradient_in_silence() -> None:
    x = engine.tensor(VALUES, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        np.percentile(x, 50)
    with pytest.raises(RuntimeError, match="requires grad"):
        np.add.reduce(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), engine.ones_like(x))
        with pytest.raises(RuntimeError, match="lose the tensor's tangent"):
            np.percentile(dual, 50)


def test_numpy_does_not_write_into_a_tensor_behind_its_back() -> None:
    x = engine.tensor(VALUES)
    with pytest.raises(TypeError, match="cannot write into a Tensor"):
        np.add(x, x, out=x)
