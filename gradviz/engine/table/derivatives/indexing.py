"""Indexing: elements are taken by their indices, and put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.core.derivative import Choice, by, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear


def _to_self(text: str, rule: Callable) -> Choice:
    """The derivative of what was there before elements were brought in. Where `include_self` is False it only counts
    where no elements were brought in."""

    def alone(g: Any, x: Any, y: Any, out: Any, dim: Any, index: Any, include_self: Any) -> Any:
        return k.blank(rule(g, x, y, out, dim, index, include_self), dim, index)

    return by("include_self", {False: d(f"{text}, and 0 where elements are brought in", alone)}, d(text, rule))


# fmt: off
# Here, and of borders and pools, PyTorch saves an input of which it needs the shape, and refuses a pass after a change
# of it: the rules take x where x_shape would do.

linear("gather", k.gather, args="dim index", frees_args=True,
    x=d("1 where taken, summed", lambda g, x, dim, index: k.spread_out(g, x.shape, dim, index)))
linear("spread_out", k.spread_out, args="shape dim index", frees_args=True, node_name="GatherBackwardBackward0",
    x=d("1, taken", lambda g, dim, index: k.gather(g, dim, index)))
linear("index_select", k.index_select, args="dim index", frees_args=True,
    x=d("1 where taken, summed", lambda g, x_shape, dim, index: k.select_back(g, x_shape, dim, index)))
linear("take", lambda x, index: x.reshape(-1)[index], args="index", frees_args=True,
    x=d("1 where taken, summed", lambda g, x, index: np.reshape(
        k.put_back(g, (k.count(x.shape, None),), (index,)), x.shape)))
linear("masked_select", lambda x, mask: np.broadcast_to(x, mask.shape)[mask], args="mask", frees_args=True,
    x=d("1 where taken, summed", lambda g, x, mask: k.sum_to(k.put_back(g, mask.shape, mask), x.shape)))
linear("scatter", k.scatter, args="dim index", frees_args=True,
    x=d("1 where not written over", lambda g, dim, index: k.blank(g, dim, index)),
    y=d("1, taken", lambda g, y_shape, dim, index: k.gather_within(g, y_shape, dim, index)))
linear("scatter_add", k.scatter_add, args="dim index", frees_args=True,
    x=d("1", lambda g: g),
    y=d("1, taken", lambda g, y_shape, dim, index: k.gather_within(g, y_shape, dim, index)))
general("scatter_reduce", k.scatter_reduce, args="dim index reduce include_self", frees_args=True,
    x=by("reduce", {
        "sum": _to_self("1", k.self_in_sum),
        "mean": _to_self("1 / n where n elements meet", k.self_in_mean),
        "prod": _to_self("∏ of what is brought in", k.self_in_product),
        "amax": _to_self("1 where x is the maximum, shared by ties", k.self_in_extreme)},
        _to_self("1 where x is the minimum, shared by ties", k.self_in_extreme)),
    y=by("reduce", {
        "sum": d("1, taken", k.source_in_sum),
        "mean": d("1 / n where n elements meet, taken", k.source_in_mean),
        "prod": d("∏ of the other elements there, taken", k.source_in_product),
        "amax": d("1 where y is the maximum, shared by ties", k.source_in_extreme)},
        d("1 where y is the minimum, shared by ties", k.source_in_extreme)))
linear("index_add", k.index_add, args="dim index alpha", frees_args=True,
    x=d("1", lambda g: g),
    y=d("alpha, taken", lambda g, y, dim, index, alpha: k.taken_slices(g, y.shape, dim, index) * alpha))
linear("index_copy", k.index_copy, args="dim index", frees_args=True,
    x=d("1 where not written over", lambda g, dim, index: k.cleared(g, dim, index)),
    y=d("1, taken", lambda g, y, dim, index: k.taken_slices(g, y.shape, dim, index)))
linear("index_fill", k.index_fill, args="dim index", frees_args=True, node_name="IndexFillBackward1",
    x=d("1 where not written over", lambda g, dim, index: k.cleared(g, dim, index)),
    y=d("1 where filled, summed", lambda g, dim, index: np.sum(g - k.cleared(g, dim, index))))
linear("masked_fill", k.with_masked_fill, args="mask", frees_args=True, node_name="MaskedFillBackward1",
    x=d("1 where not filled", lambda g, x_shape, mask: k.sum_to(np.where(mask, 0, g), x_shape)),
    y=d("1 where filled, summed", lambda g, mask: np.sum(np.where(mask, g, 0))))
general("masked_fill_number", k.with_number_masked, name="masked_fill", args="value mask", frees_args=True,
    x=d("1 where not filled", lambda g, x_shape, mask: k.sum_to(np.where(mask, 0, g), x_shape)))
general("index_fill_number", k.with_number_filled, name="index_fill", args="value dim index", frees_args=True,
    x=d("1 where not written over", lambda g, dim, index: k.cleared(g, dim, index)))
general("scatter_number", k.with_number_scattered, name="scatter", node_name="ScatterBackward1",
    args="value dim index", frees_args=True,
    x=d("1 where not written over", lambda g, dim, index: k.blank(g, dim, index)))
linear("masked_scatter", k.masked_scatter, args="mask", frees_args=True,
    x=d("1 where not written over", lambda g, x_shape, mask: k.sum_to(np.where(mask, 0, g), x_shape)),
    y=d("1, taken in order", lambda g, y_shape, mask: k.masked_source(g, y_shape, mask)))
for key, node_name in [
    ("set_index", "CopySlices"), ("index_put", ""), ("select_scatter", ""), ("slice_scatter", ""),
]:
    linear(key, k.with_set, node_name=node_name, args="index", frees_args=not key.endswith("scatter"),
        x=d("1 where not written over", lambda g, index: k.outside(g, index)),
        y=d("1, taken", lambda g, y_shape, index: k.sum_to(k.index(g, index), y_shape)))
linear("index_put_added", k.with_added, name="index_put", args="index", frees_args=True,
    x=d("1", lambda g: g),
    y=d("1, taken", lambda g, y_shape, index: k.sum_to(k.index(g, index), y_shape)))

# fmt: on
