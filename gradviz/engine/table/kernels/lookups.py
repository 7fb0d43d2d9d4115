"""Rows of a table, taken one by one or in bags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.table.kernels.indexing import put_back
from gradviz.engine.table.kernels.row import raw, row


def look_up(weight: Any, indices: Any, padding_idx: int) -> Any:
    """The rows of `weight` at `indices`."""
    return weight[indices]


@row("embedding_dense")
def embedding_dense(g: Any, rows: int, indices: Any, padding_idx: int) -> Any:
    """The transpose of `look_up`: gradients are added by row. The row `padding_idx` gets none."""
    flat, values = indices.ravel(), g.reshape(-1, g.shape[-1])
    kept = flat != padding_idx
    flat, values = flat[kept], values[kept]
    whole = np.zeros((rows, g.shape[-1]), g.dtype)
    if flat.size:
        order = np.argsort(flat, kind="stable")
        used, starts = np.unique(flat[order], return_index=True)
        whole[used] = np.add.reduceat(values[order], starts, axis=0)
    return whole


def take_unpadded(x: Any, indices: Any, padding_idx: int) -> Any:
    """The rows of x at `indices`, zeros for `padding_idx`."""
    return x[indices] * np.expand_dims(np.asarray(indices != padding_idx), -1).astype(np.float32)


# --- bags: `indices` are the rows taken, one after another, `bags` the bag that each goes into


def embedding_bag(x: Any, y: Any, indices: np.ndarray, bags: np.ndarray, size: int, mode: str) -> Any:
    """The sum, mean or maximum of the rows of x in each of `size` bags. Each row is multiplied by its weight in y. An
    empty bag gives 0."""
    rows = x[indices] * y[:, None]
    out = np.full((size, x.shape[1]), -np.inf if mode == "max" else 0, rows.dtype)
    (np.maximum if mode == "max" else np.add).at(out, bags, rows)
    how_many = np.bincount(bags, minlength=size)
    if mode == "mean":
        out /= np.maximum(how_many, 1)[:, None]
    out[how_many == 0] = 0
    return out


def table_back(share: Callable, g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray) -> Any:
    """The gradient of the table. `share` says what each row gets of its bag's gradient."""
    return put_back(share(g, x, y, out, indices, bags) * np.expand_dims(y, 1), x.shape, indices)


def weights_back(share: Callable, g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray) -> Any:
    """The gradient of the weights. `share` says what each row gets of its bag's gradient."""
    return np.sum(share(g, x, y, out, indices, bags) * x[indices], axis=-1)


def share_of_sum(g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray) -> Any:
    """Each row gets its bag's gradient."""
    return g[bags]


def share_of_mean(g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray) -> Any:
    """Each row gets its bag's gradient over the number of rows in the bag."""
    return g[bags] * (1 / np.bincount(bags)[bags, None]).astype(raw(x).dtype)


def share_of_max(g: Any, x: Any, y: Any, out: Any, indices: np.ndarray, bags: np.ndarray) -> Any:
    """The first row that is the maximum gets its bag's gradient, column by column."""
    return g[bags] * _first_greatest(raw(x)[indices] * raw(y)[:, None], raw(out), bags)


def _first_greatest(rows: np.ndarray, out: np.ndarray, bags: np.ndarray) -> np.ndarray:
    """1 for the first row of each bag that is its maximum, column by column, else 0."""
    places = np.arange(len(rows))[:, None]
    first = np.full(out.shape, len(rows))
    np.minimum.at(first, bags, np.where(rows == out[bags], places, len(rows)))
    return (places == first[bags]).astype(rows.dtype)
