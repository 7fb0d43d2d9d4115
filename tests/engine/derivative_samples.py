"""What the rows of the table are tried on: arrays and arguments, for every value of an argument that matters."""

from __future__ import annotations

import numpy as np

import gradviz.engine as torch
from gradviz.engine.basics.memory_format import contiguous_format
from gradviz.engine.core.apply import apply
from gradviz.engine.core.op import Op
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import Geometry
from tests.engine import layer_samples
from tests.engine.layer_samples import with_statistics

RNG = np.random.default_rng(0)


def values(*shape: int, low: float = 0.3, high: float = 0.9) -> np.ndarray:
    return RNG.uniform(low, high, shape)


ORDERS = (0.0, 1.0, 2.0, 3.0, np.inf, -np.inf)  # of norms

# What each row is tried on: arrays and arguments. An elementwise row without an entry gets broadcasting arrays.
SAMPLES: dict[str, list[tuple[list[np.ndarray], tuple]]] = {
    "pow_number": [([values(3)], (3,)), ([values(3)], (-1.5,)), ([values(2)], (0,)), ([values()], (2,))],
    "rpow": [([values(3)], (2.0,)), ([values(3)], (0,))],
    "clamp": [([np.array([-1.0, 0.2, 2.0])], limits) for limits in ((0.0, 1.0), (None, 0.5), (0, None))],
    "softplus": [([np.array([-1.0, 0.2, 30.0])], (1.0, 20.0))],
    "sum": [([values(2, 3)], (None, False)), ([values()], (None, False))],
    "sum_dim": [([values(2, 3)], (1, False)), ([values(2, 3, 2)], ((0, 2), True))],
    "mean": [([values(2, 3)], (None, False))],
    "mean_dim": [([values(2, 3)], (0, True)), ([values(2, 3, 2)], ((0, 2), False))],
    "clamp_min_number": [([np.array([-1.0, 0.2, 2.0])], (0.0, None))],
    "clamp_max_number": [([np.array([-1.0, 0.2, 2.0])], (None, 1.0))],
    "clamp_below": [([np.array([-1.0, 0.2, 2.0]), np.array([0.0, 0.3, 1.0])], ())],
    "clamp_above": [([np.array([-1.0, 0.2, 2.0]), np.array([0.0, 0.3, 1.0])], ())],
    "copy_over": [([values(2, 3), values(3)], ())],
    "alias": [([values(2, 3)], ())],
    "aminmax": [([values(2, 3)], (1, False)), ([values(2, 3)], (None, False))],
    "dist": [([values(2, 3), values(3) + 1], (order,)) for order in ORDERS],
    "pixel_shuffle": [([values(1, 8, 2, 3)], (2,))],
    "pixel_unshuffle": [([values(1, 2, 4, 6)], (2,))],
    "channel_shuffle": [([values(2, 6, 2)], (2,))],
    "amax": [([values(2, 3)], (1, False)), ([values(2, 3)], (0, True))],
    "logsumexp": [([values(2, 3)], (1, False))],
    "softmax": [([values(2, 3)], (1,))],
    "log_softmax": [([values(2, 3)], (0,))],
    "dot": [([values(3), values(3)], ())],
    "mv": [([values(2, 3), values(3)], ())],
    "mm": [([values(2, 3), values(3, 4)], ())],
    "bmm": [([values(2, 2, 3), values(2, 3, 2)], ())],
    "addmm_scaled": [
        ([values(4), values(2, 3), values(3, 4)], (0.5, -2)),
        ([values(4), values(2, 3), values(3, 4)], (0, 3)),
    ],
    "addmm": [([values(4), values(2, 3), values(3, 4)], ()), ([values(2, 4), values(2, 3), values(3, 4)], ())],
    "reshape": [([values(2, 3)], ((3, 2),))],
    "unsafe_view": [([values(2, 3)], ((3, 2),))],
    "t": [([values(2, 3)], ())],
    "transpose": [([values(2, 3, 2)], (0, 2))],
    "permute": [([values(2, 3, 2)], ((2, 0, 1),))],
    "expand": [([values(2, 1)], ((3, 2, 4),))],
    "squeeze": [([values(2, 1, 3, 1)], (None,))],
    "squeeze_dim": [([values(2, 1, 3)], (1,))],
    "squeeze_dim_": [([values(2, 1, 3)], (1,))],
    "unsqueeze": [([values(2, 3)], (1,))],
    "index": [([values(4, 3)], ((slice(1, 3), 2),)), ([values(4, 3)], ((None, Ellipsis, slice(None, None, 2)),))],
    "put_back": [([values(2)], ((4, 3), (slice(1, 3), 2)))],
    "select": [([values(4, 3)], (1, 2))],
    "gather_index": [([values(4, 3)], (np.array([0, 2, 0]),)), ([values(3)], (np.array([True, False, True]),))],
    "cat": [([values(2, 3), values(1, 3)], (0,)), ([values(2, 1), values(2, 2)], (-1,))],
    "stack": [([values(2, 3), values(2, 3)], (1,))],
    "where": [([values(2, 3), values(3)], (np.array([[True, False, True], [False, True, True]]),))],
    "clone": [([values(2, 3)], (None,)), ([values(2, 3)], (contiguous_format,))],
    "to": [([values(3)], (np.dtype(np.float64), None))],
    # numbers beside the tensors
    "clamp_between": [([np.array([-1.0, 0.2, 2.0]), values(3) * 0, values(3) * 0 + 1], ())],
    "div_rounded": [([values(3), values(3)], ("trunc",)), ([values(3), values(3)], ("floor",))],
    "lerp": [([values(2, 3), values(3)], (0.3,)), ([values(3), values(3)], (0.8,))],
    "lerp_tensor": [([values(2, 3), values(3), values(3)], ())],
    "addcmul": [([values(2, 3), values(3), values(3)], (0.5,))],
    "addcdiv": [([values(2, 3), values(3), values(3)], (0.5,))],
    "round_decimals": [([values(3)], (1,))],
    "nan_to_num": [([values(3)], (None, None, None))],
    "logit": [([values(3)], (None,)), ([np.array([0.01, 0.3])], (0.1,))],
    "polygamma": [([values(3)], (0,)), ([values(3)], (1,))],
    # reductions
    "amin": [([values(2, 3)], (1, False))],
    "nansum": [([np.array([[1.0, np.nan], [2.0, 3.0]])], (1, False))],
    "prod": [([values(2, 3)], (None, False)), ([np.array([0.0, 0.5, 2.0])], (None, False))],
    "prod_dim": [([values(2, 3)], (1, True)), ([np.array([[0.0, 0.5], [0.0, 0.0]])], (0, False))],
    "cumsum": [([values(2, 3)], (1,)), ([values()], (None,))],
    "sum_from": [([values(2, 3)], (1,))],
    "cumprod": [([values(2, 3)], (1,)), ([np.array([2.0, 0.0, 3.0])], (0,))],
    "logcumsumexp": [([values(2, 3)], (1,))],
    "var": [([values(2, 3)], (1, 1, False)), ([values(4)], (None, 0, False))],
    "std": [([values(2, 3)], ((0, 1), 1, True))],
    "var_mean": [([values(2, 3)], (1, 1, False))],
    "std_mean": [([values(2, 3)], (0, 0, True))],
    "vector_norm": [([values(2, 3)], (order, 1, False)) for order in (*ORDERS, 1.5)],
    "max_dim": [([values(2, 3)], (1, False))],
    "min_dim": [([values(2, 3)], (0, True))],
    "median_dim": [([values(2, 4)], (1, False))],
    "kthvalue": [([values(2, 4)], (2, 1, False))],
    "cummax": [([values(2, 4)], (1,))],
    "cummin": [([values(2, 4)], (0,))],
    "sort": [([values(2, 4)], (1, True))],
    "topk": [([values(2, 4)], (2, 1, True))],
    # linear algebra
    "addmv_scaled": [
        ([values(2), values(2, 3), values(3)], (0.5, -2)),
        ([values(2), values(2, 3), values(3)], (0, 3)),
    ],
    "addmv": [([values(2), values(2, 3), values(3)], ())],
    "addr_scaled": [
        ([values(2, 3), values(2), values(3)], (0.5, -2)),
        ([values(2, 3), values(2), values(3)], (0, 3)),
    ],
    "addr": [([values(2, 3), values(2), values(3)], ())],
    "addbmm_scaled": [
        ([values(2, 2), values(3, 2, 2), values(3, 2, 2)], (0.5, -2)),
        ([values(2, 2), values(3, 2, 2), values(3, 2, 2)], (0, 3)),
    ],
    "addbmm": [([values(2, 2), values(3, 2, 2), values(3, 2, 2)], ())],
    "baddbmm_scaled": [
        ([values(2, 2), values(3, 2, 2), values(3, 2, 2)], (0.5, -2)),
        ([values(2, 2), values(3, 2, 2), values(3, 2, 2)], (0, 3)),
    ],
    "baddbmm": [([values(2, 2), values(3, 2, 2), values(3, 2, 2)], ())],
    "trace": [([values(2, 3)], ())],
    "linalg_cross": [([values(2, 3), values(3)], (1,))],
    "inv": [([values(2, 2) + 2 * np.eye(2)], ())],
    "det": [([values(2, 2) + 2 * np.eye(2)], ()), ([values(2, 2, 2) + 2 * np.eye(2)], ())],
    "slogdet": [([values(2, 2) + 2 * np.eye(2)], ())],
    "solve_vector": [
        ([values(2, 2) + 2 * np.eye(2), values(2)], ()),
        ([values(3, 2, 2) + 2 * np.eye(2), values(3, 2)], ()),
    ],
    **{
        f"solve_triangular{side}": [([values(2, 2) + np.eye(2), values(3, 2, 2)], (upper, unit))
            for upper in (True, False) for unit in (True, False)]
        for side in ("", "_right")
    },
    "cholesky_upper": [([np.array([[2.0, 0.5], [0.5, 1.0]])], ())],
    "vdot": [([values(3), values(3)], ())],
    "trilinear": [([values(2, 3), values(4, 3, 2), values(2, 2)], ())],
    "cdist": [([values(2, 3), values(4, 3) + 1], (order,)) for order in ORDERS]
    + [([values(2, 2, 3), values(1, 4, 3) + 1], (3.0,))],
    "pdist": [([values(3, 2)], (order,)) for order in ORDERS],
    "block_diag": [([values(2, 3), values(2), values()], ())],
    "unsafe_split": [([values(5, 2)], ((2, 3), 0))],
    "reshape_alias": [([values(2, 3)], ((3, 2),))],
    "safe_softmax": [([values(2, 3)], (1,))],
    "norm": [([values(2, 3)], (order, 1, False)) for order in ORDERS] + [([values(2, 3)], (3.0, 0, True))],
    "mode": [([values(2, 4)], (1, False)), ([values(2, 4)], (0, True))],
    "nanmedian_dim": [([values(2, 4)], (1, False)), ([values(3, 2)], (0, True))],
    "sort_stable": [([values(2, 4)], (1, True))],
    "mvlgamma": [([values(3) + 2], (3,))],
    "rsub_scaled": [([values(3)], (2.5, -2))],
    "rsub_tensor_scaled": [([values(2, 3), values(3)], (0.5,))],
    "remainder_number": [([values(3)], (0.7,)), ([values(2, 3)], (-1,))],
    "fmod_number": [([values(3)], (0.7,))],
    "add_scaled": [([values(2, 3), values(3)], (0.5,))],
    "sub_scaled": [([values(3), values(2, 3)], (-2,))],
    "rsub": [([values(3)], (2.5,)), ([values(2, 3)], (-1,))],
    "copysign_number": [([values(3)], (-2.0,))],
    **{f"{name}_number": [([values(3)], (2.5,))] for name in ("add", "sub", "mul", "div")},
    "embedding_bag": [
        ([values(4, 2) + np.arange(8).reshape(4, 2), values(3)], (np.array([1, 3, 1]), np.array([0, 0, 2]), 3, mode))
        for mode in ("sum", "mean", "max")
    ],
    "soft_margin_loss": [([values(3)], (np.array([1.0, -1, 1]), how)) for how in ("mean", "sum", "none")],
    "multi_margin_loss": [
        ([values(2, 3)], (np.array([0, 2]), p, 0.7, weight, how))
        for p in (1, 2) for weight in (None, np.array([0.5, 1, 2])) for how in ("mean", "none")
    ],
    "solve": [([values(2, 2) + 2 * np.eye(2), values(3, 2, 1)], ())],
    "cholesky": [([np.array([[2.0, 0.5], [0.5, 1.0]])], ())],
    "pinv": [([values(n, m) + np.eye(n, m)], (None, None, False)) for n, m in ((2, 3), (3, 2))],
    "eigh": [([np.array([[2.0, 0.5], [0.5, 1.0]])], (True,))],
    "svd": [([values(n, m) + np.eye(n, m)], (False,)) for n, m in ((2, 3), (3, 2))],
    "qr": [([values(3, 2) + np.eye(3, 2)], ())],
    "fill": [([values(2)], (3.0,))],
    "fill_tensor": [([values(2, 2), values()], ())],
    # shape
    "as_strided": [
        ([values(3, 4)], (Geometry((2, 2), (4, 2), 1, (4, 1)),)),
        ([values(4)], (Geometry((3, 2), (1, 1), 0, (1,)),)),
    ],
    "copy_slices": [([values(3, 4), values(2, 2)], (Geometry((2, 2), (4, 2), 1, (4, 1)),))],
    "diagonal_copy": [([values(3, 3)], (1, 0, 1))],
    "diagonal": [([values(2, 3, 2)], (0, 0, 1)), ([values(3, 3)], (-1, 0, 1))],
    "diagonal_back": [([values(2)], ((3, 2), 0, 0, 1))],
    "diag_embed": [([values(2, 3)], (1, 1, 2))],
    "tril": [([values(3, 3)], (0,))],
    "triu": [([values(3, 3)], (1,))],
    "flip": [([values(2, 3)], ((0, 1),))],
    "roll": [([values(2, 3)], (1, 1)), ([values(2, 3)], (2, None)), ([values(2, 3)], ((1, 2), (0, 1)))],
    "rot90": [([values(2, 3)], (1, (0, 1)))],
    "repeat": [([values(2, 3)], ((2, 1, 2),))],
    "unfold": [([values(2, 5)], (1, 3, 1))],
    "fold_windows": [([values(2, 3, 3)], ((2, 5), 1, 3, 1))],
    "split": [([values(5, 2)], ((2, 3), 0))],
    "split_with_sizes": [([values(5, 2)], ((1, 4), 0))],
    "unbind": [([values(2, 3)], (0,))],
    "squeeze_dims": [([values(2, 1, 3, 1)], ((1, 3),))],
    "constant_pad_nd": [([values(2, 3)], ((1, 0), (0, -1), 7.0))],
    "padded_with_zeros": [([values(2, 3)], ((1, 0), (0, -1)))],
    **{
        f"{mode}_pad{n}d": [([values(2, 3, 3, 3)], ((np.array([1, 0, 1, 2, 1]),) + (np.arange(2),) * (n - 1),))]
        for mode in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    # indexing
    "gather": [([values(4, 3)], (0, np.array([[0, 2, 0], [1, 1, 3]])))],
    "spread_out": [([values(2, 3)], ((4, 3), 0, np.array([[0, 2, 0], [1, 1, 3]])))],
    "index_select": [([values(4, 3)], (1, np.array([2, 0, 2])))],
    "take": [([values(4, 3)], (np.array([0, 5, 5]),))],
    "masked_select": [([values(3)], (np.array([True, False, True]),))],
    "scatter": [([values(3, 3), values(2, 3)], (0, np.array([[0, 1], [2, 0]])))],
    "scatter_add": [([values(3, 3), values(2, 3)], (0, np.array([[0, 1], [2, 1]])))],
    "scatter_reduce": [
        ([values(3, 3), values(2, 3)], (0, np.array([[0, 1], [0, 1]]), reduce, include_self))
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ],
    "scatter_number": [([values(3, 3)], (7.0, 0, np.array([[0, 1], [2, 0]])))],
    "index_add": [([values(3, 2), values(3, 2)], (0, np.array([0, 2, 0]), 0.5))],
    "index_copy": [([values(3, 2), values(2, 2)], (0, np.array([0, 2])))],
    "index_fill": [([values(3, 2), values()], (0, np.array([0, 2])))],
    "index_fill_number": [([values(3, 2)], (7.0, 0, np.array([0, 2])))],
    "masked_fill": [([values(3), values()], (np.array([True, False, True]),))],
    "masked_fill_number": [([values(3)], (7.0, np.array([True, False, True])))],
    "masked_scatter": [([values(3), values(4)], (np.array([True, False, True]),))],
    **{
        key: [([values(4, 3), values(2, 3)], (slice(1, 3),))]
        for key in ("set_index", "index_put", "select_scatter", "slice_scatter")
    },
    "index_put_added": [([values(4, 3), values(3)], (np.array([0, 2, 0]),))],
}  # fmt: skip
OF_SYMMETRIC = {"linalg_cholesky", "linalg_eigh"}  # matrices
OVER_ONE = {"arccosh"}  # defined only there

SAMPLES |= layer_samples.SAMPLES

# Of these rows the derivative is that there is none, or they are of complex numbers: tests/conformance/test_complex.py
NOT_OF_REAL_NUMBERS = {"unique", "unique_dim", "unique_consecutive", "view_as_real", "view_as_complex"}

DIFFERENTIABLE = [
    key
    for key, op in TABLE.items()
    if op.derivatives and op.node_name != "NotImplemented" and key not in NOT_OF_REAL_NUMBERS
]


def samples(key: str) -> list[tuple[list[np.ndarray], tuple]]:
    if key in SAMPLES:
        return SAMPLES[key]
    n = len(TABLE[key].inputs)
    if TABLE[key].kind != "elementwise" and n > 1:
        raise LookupError(f"the row {key!r} needs samples")
    if key in OVER_ONE:
        return [([values(2, 3) + 1], ())]
    alike = [values(2, 3) for _ in range(n)]
    broadcast = [values(2, 3), values(3)][:n]
    scalars = [values() for _ in range(n)]
    return [(alike, ()), (broadcast, ()), (scalars, ())]


def leaves(arrays: list[np.ndarray]) -> list[Tensor]:
    return [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]


def run(op: Op, tensors: list[Tensor], args: tuple) -> Tensor:
    if op.name in OF_SYMMETRIC:
        tensors = [(x + x.mT) / 2 for x in tensors]
    args = with_statistics([tensor.array for tensor in tensors], args)
    out = apply(op, tensors, args)
    if isinstance(out, tuple):  # as one vector
        return torch.cat([part.reshape(-1) for part in out if part.is_floating_point()])
    return out
