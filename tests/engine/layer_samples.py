"""What the rows of layers are tried on in test_derivatives.py: arrays and arguments."""

from __future__ import annotations

import numpy as np

from gradviz.engine.table import kernels as k

RNG = np.random.default_rng(7)


def values(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 0.9, shape)


def both_signs(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 0.9, shape) * RNG.choice([-1.0, 1.0], shape)


def _pooled() -> tuple[list[np.ndarray], tuple]:
    x = RNG.permutation(32.0 * np.arange(1, 33) / 32).reshape(1, 2, 4, 4)
    indices = k.max_positions(x, (3, 2), (1, 2), (1, 0), (1, 1), (4, 2))
    return [x], ((3, 2), (1, 2), (1, 0), indices)


def _averaged() -> tuple[list[np.ndarray], tuple]:
    rows, columns = k.adaptive_weights(5, 3), k.adaptive_weights(4, 2)
    return [values(2, 1, 5, 4)], ((3, 2), rows, columns)


def _normalized(view: tuple, axes: tuple, shape: tuple, weights: tuple) -> tuple[list[np.ndarray], tuple]:
    x = values(2, 4, 3)
    return [x, values(*weights), values(*weights)], (view, axes, shape, 1e-5, None)


def _resized(size: tuple[int, ...]) -> tuple[list[np.ndarray], tuple]:
    return [values(2, 2, *size)], ((4,) * len(size), tuple(values(4, n) for n in size))


X = both_signs(2, 3)
CLASSES, SHARE = np.array([1, 0]), np.array([0.5, 0.25])
TAKEN = np.array([[[[0, 3], [5, 5]]]])

SAMPLES: dict[str, list[tuple[list[np.ndarray], tuple]]] = {
    "convolution": [
        ([values(2, 4, 5, 4), values(6, 2, 3, 2), values(6)], ((2, 1), (1, 0), (1, 2), 2)),
        ([values(2, 2, 6), values(3, 2, 3), values(3)], ((1,), (0,), (1,), 1)),
    ],
    "transposed_convolution": [
        ([values(1, 4, 3, 2), values(4, 3, 3, 2), values(6)], ((6, 3), (2, 1), (1, 0), (1, 1), 2)),
        ([values(2, 2, 3), values(2, 1, 2), values(1)], ((10,), (3,), (0,), (2,), 1)),
    ],
    "adaptive_max_pool2d": [([values(1, 1, 3, 3)], ((2, 2), TAKEN))],
    "adaptive_max_pool2d_with_indices": [([values(1, 1, 3, 3)], ((2, 2), TAKEN))],
    **{
        f"upsample_{mode}{n}d": [_resized((3, 2, 2)[:n])]
        for mode, dims in {
            "nearest": (1, 2, 3), "nearest_exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "bicubic": (2,),
            "trilinear": (3,),
        }.items()
        for n in dims
    },
    "im2col": [([values(1, 2, 4, 5)], ((2, 3), (1, 2), (1, 0), (1, 1)))],
    "col2im": [([values(1, 8, 6)], ((4, 3), (2, 2), (1, 1), (0, 0), (1, 1)))],
    "max_pool2d": [_pooled()],
    "max_pool2d_with_indices": [_pooled()],
    "put_in_planes": [([values(1, 1, 2, 2)], ((1, 1, 3, 3), TAKEN))],
    "taken_in_planes": [([values(1, 1, 3, 3)], (TAKEN,))],
    "avg_pool2d": [_averaged()],
    "adaptive_avg_pool2d": [_averaged()],
    "native_batch_norm": [_normalized((2, 4, 3), (0, 2), (1, 4, 1), (4,))],
    "native_layer_norm": [_normalized((2, 4, 3), (1, 2), (1, 4, 3), (4, 3))],
    "native_group_norm": [_normalized((2, 2, 2, 3), (2, 3), (1, 2, 2, 1), (4,))],
    "fixed_norm": [([values(2, 3), values(3), values(3)], ((1, 3), (values(1, 3), values(1, 3))))],
    "embedding": [([values(4, 3)], (np.array([[0, 2], [2, 3]]), -1))],
    "embedding_dense": [([values(3, 2)], (4, np.array([0, 2, 0]), 2))],
    "nll_loss": [([values(2, 3)], (CLASSES, SHARE, -100, how)) for how in ("sum", "none")],
    "nll_loss2d": [([values(2, 3, 2)], (np.array([[1, 0], [2, 2]]), values(2, 2), -100, "none"))],
    "mse_loss": [([values(2, 3), values(2, 3)], (how,)) for how in ("mean", "sum", "none")],
    "huber_loss": [([values(2, 3), values(2, 3) * 5], (1.0, how)) for how in ("mean", "sum")],
    "smooth_l1_loss": [([values(2, 3), values(2, 3) * 5], (0.7, how)) for how in ("mean", "none")],
    "binary_cross_entropy": [([values(2, 3), values(2, 3)], (1.0, how)) for how in ("mean", "none")],
    "binary_cross_entropy_with_logits": [
        ([both_signs(2, 3), values(2, 3)], (values(3), pos_weight, how))
        for pos_weight in (values(3), 1.0) for how in ("mean", "sum")
    ],
    "leaky_relu": [([X], (0.1,))],
    "elu": [([X], (1.5, 1.0, 1.0)), ([X], (1.67, 1.05, 1.0))],
    "celu": [([X], (1.5,))],
    "normal_cdf": [([X * 3], ())],
    "gelu": [([X * 3], ())],
    "gelu_tanh": [([X * 3], ())],
    "silu": [([X * 3], ())],
    "mish": [([X * 3], ())],
    "hardtanh": [([X * 2], (-1.0, 1.0))],
    "softshrink": [([X], (0.5,))],
    "hardshrink": [([X], (0.5,))],
    "log_sigmoid": [([X * 3], ())],
    "hardsigmoid": [([X * 5], ())],
    "hardswish": [([X * 5], ())],
    "threshold": [([X], (0.1, 7.0))],
    "prelu": [([X, values(3)], ())],
    "glu": [([both_signs(2, 4)], (1,))],
}  # fmt: skip


def with_statistics(arrays: list[np.ndarray], args: tuple) -> tuple:
    """The arguments with the statistics that belong to the arrays, where they are asked for (None)."""
    if len(args) == 5 and args[-1] is None:
        view, axes, _, eps, _ = args
        return (*args[:-1], k.moments(arrays[0].reshape(view), axes, eps))
    return args
