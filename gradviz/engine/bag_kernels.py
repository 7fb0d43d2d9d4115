"""What the row of `embedding_bag` computes with: rows of a table, brought together in bags.

`indices` are the rows taken, one after another, `bags` the bag that each goes into."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine import kernels as k


def embedding_bag(x: Any, y: Any, indices: np.ndarray, bags: np.ndarray, size: int, mode: str) -> Any:
    """The sum, mean or maximum of each of `size` bags of rows of x, each times its weight in y; 0 of an empty one."""
    rows = x[indices] * y[:, None]
    out = np.full((size, x.shape[1]), -np.inf if mode == "max" else 0, rows.dtype)
    (np.maximum if mode == "max" else np.add).at(out, bags, rows)
    how_many = np.bincount(bags, minlength=size)
    if mode == "mean":
        out /= np.maximum(how_many, 1)[:, None]
    out[how_many == 0] = 0
    return out


def embedding_bag_back(
    g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray, size: int, mode: str
) -> tuple[Any, Any]:
    """The gradients of the table and of the weights."""
    share = g[bags] * _shares(_array(x)[indices] * _array(y)[:, None], _array(out), bags, mode)
    return k.put_back(share * np.expand_dims(y, 1), x.shape, indices), np.sum(share * x[indices], axis=-1)


def _shares(rows: np.ndarray, out: np.ndarray, bags: np.ndarray, mode: str) -> Any:
    """How much of its bag's gradient each row gets."""
    if mode == "max":
        return _first_greatest(rows, out, bags)
    if mode == "mean":
        return (1 / np.bincount(bags)[bags, None]).astype(rows.dtype)
    return np.ones((), rows.dtype)


def _first_greatest(rows: np.ndarray, out: np.ndarray, bags: np.ndarray) -> np.ndarray:
    """1 for the first row of each bag that is its maximum, in each column."""
    places = np.arange(len(rows))[:, None]
    first = np.full(out.shape, len(rows))
    np.minimum.at(first, bags, np.where(rows == out[bags], places, len(rows)))
    return (places == first[bags]).astype(rows.dtype)


def _array(x: Any) -> Any:
    return getattr(x, "array", x)
