"""Normalization by mean and variance."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.windows import Sizes


def moments(x: Any, axes: Sizes, eps: float) -> tuple[Any, Any]:
    """The mean of x over `axes`, and 1 / √(variance + eps)."""
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return mean, 1 / np.sqrt(variance + eps)


def aligned(parameter: Any, shape: Sizes) -> Any:
    """A weight or bias in the shape that broadcasts with x. A missing one (0-d) is returned as it is."""
    return parameter if not parameter.ndim else np.reshape(parameter, shape)


def normalize(x: Any, weight: Any, bias: Any, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any) -> Any:
    """(x − mean) / √(variance + eps) · weight + bias. Mean and variance are those of x in the shape `view`, over
    `axes`."""
    mean, rate = stats
    out = (x.reshape(view) - mean) * rate
    if weight.ndim:
        out *= aligned(weight, shape)
    if bias.ndim:
        out += aligned(bias, shape)
    return out.reshape(x.shape)


def normalize_fixed(x: Any, weight: Any, bias: Any, shape: Sizes, stats: Any) -> Any:
    """`normalize` with statistics that do not depend on x."""
    return normalize(x, weight, bias, x.shape, (), shape, 0.0, stats)


def _standardized(x: Any, view: Sizes, axes: Sizes, eps: float, stats: Any) -> tuple[Any, Any]:
    """x before the weight, and 1 / σ. Of a Tensor they are computed again, so that they can be differentiated."""
    seen = np.reshape(x, view)
    mean, rate = stats if isinstance(x, np.ndarray) else moments(seen, axes, eps)
    return (seen - mean) * rate, rate


def normalize_x(g: Any, x: Any, weight: Any, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any) -> Any:
    """The gradient of x. Its parts along the mean and along the standardized x are removed."""
    standard, rate = _standardized(x, view, axes, eps, stats)
    upstream = np.reshape(g, view) * aligned(weight, shape)
    straight = np.mean(upstream, axis=axes, keepdims=True)
    along = np.mean(upstream * standard, axis=axes, keepdims=True)
    return np.reshape((upstream - straight - standard * along) * rate, x.shape)


def normalize_weight(
    g: Any, x: Any, weight_shape: Sizes, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any
) -> Any:
    """The gradient of the weight: g times the standardized x, summed to the weight's shape."""
    standard, _ = _standardized(x, view, axes, eps, stats)
    return summed_to(np.reshape(g, view) * standard, weight_shape, shape)


def summed_to(g: Any, parameter_shape: Sizes, shape: Sizes) -> Any:
    """A gradient summed to the shape of a parameter that was broadcast in `shape`."""
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return np.reshape(np.sum(g, axis=axes) if axes else g, parameter_shape)
