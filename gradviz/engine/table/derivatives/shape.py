"""Views and joining. Gradients take the way of the elements backwards."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.derivative import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import linear

turned = k.rot90

# fmt: off

linear("reshape", k.reshape, args="shape", node_name="ViewBackward0", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("reshape_alias", k.reshape, name="reshape", args="shape", node_name="ReshapeAliasBackward0", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("unsafe_view", k.reshape, args="shape", node_name="UnsafeViewBackward0",
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("view_as_real", k.pairs_of_complex, view=True,
    x=d("1, as complex numbers", lambda g: k.complex_of_pairs(g)))
linear("view_as_complex", k.complex_of_pairs,
    x=d("1, as pairs of real numbers", lambda g: k.pairs_of_complex(np.conjugate(g))))  # see `conjugated`
linear("as_strided", k.as_strided, args="geometry", view=True,
    x=d("1 where shown, summed", lambda g, x_shape, geometry: k.strided_back(g, x_shape, geometry)))
linear("copy_slices", k.with_slices, args="geometry", frees_args=True, node_name="CopySlices",
    x=d("1 where not written over", lambda g, geometry: k.outside_slices(g, geometry)),
    y=d("1, taken", lambda g, geometry: k.shown(g, geometry)))
linear("t", np.transpose, node_name="TBackward0", view=True,
    x=d("1, transposed", lambda g: np.transpose(g)))
linear("transpose", k.swapped, args="dim0 dim1", view=True,
    x=d("1, transposed", lambda g, dim0, dim1: k.swapped(g, dim0, dim1)))
linear("permute", np.transpose, args="dims", view=True,
    x=d("1, permuted back", lambda g, dims: np.transpose(g, k.inverse_permutation(dims))))
linear("expand", k.expand, args="size", view=True,
    x=d("1, summed", lambda g, x_shape: k.sum_to(g, x_shape)))
linear("squeeze", k.squeeze, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("squeeze_dim", k.squeeze, name="squeeze", node_name="SqueezeBackward1", args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("squeeze_dim_", k.squeeze, name="squeeze_", node_name="SqueezeBackward4", args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("squeeze_dims", k.squeeze, name="squeeze", node_name="SqueezeBackward2", args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("unsqueeze", np.expand_dims, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: g.reshape(x_shape)))
linear("index", k.index, args="index", view=True, node_name="SliceBackward0",
    x=d("1 where taken, else 0", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("diagonal", k.diagonal, args="offset dim1 dim2", view=True,
    x=d("1 on the diagonal", lambda g, x_shape, offset, dim1, dim2: k.diagonal_back(g, x_shape, offset, dim1, dim2)))
linear("diagonal_copy", lambda x, offset, dim1, dim2: np.array(k.diagonal(x, offset, dim1, dim2), order="C"),
    args="offset dim1 dim2", node_name="DiagonalBackward0_copy",
    x=d("1 on the diagonal", lambda g, x_shape, offset, dim1, dim2: k.diagonal_back(g, x_shape, offset, dim1, dim2)))
linear("diagonal_back", k.diagonal_back, args="shape offset dim1 dim2", node_name="DiagonalBackwardBackward0",
    x=d("1, taken", lambda g, offset, dim1, dim2: k.diagonal(g, offset, dim1, dim2)))
linear("diag_embed", k.diag_embed, args="offset dim1 dim2",
    x=d("1, taken", lambda g, offset, dim1, dim2: k.diagonal(g, offset, dim1, dim2)))
linear("tril", k.tril, args="diagonal",
    x=d("1 where kept", lambda g, diagonal: k.tril(g, diagonal)))
linear("triu", k.triu, args="diagonal",
    x=d("1 where kept", lambda g, diagonal: k.triu(g, diagonal)))
linear("flip", k.flip, args="dims",
    x=d("1, flipped back", lambda g, dims: k.flip(g, dims)))
linear("roll", k.roll, args="shifts dims",
    x=d("1, rolled back", lambda g, shifts, dims: k.roll(g, k.negated(shifts), dims)))
linear("rot90", k.rot90, args="k dims", node_name="Rot90Backward0",
    x=d("1, turned back", lambda g, k, dims: turned(g, -k, dims)))
linear("repeat", k.repeat, args="repeats",
    x=d("1, summed over the copies", lambda g, x_shape, repeats: k.gather_repeats(g, x_shape, repeats)))
linear("unfold", k.unfold, args="dim size step", view=True,
    x=d("1, windows added", lambda g, x_shape, dim, size, step: k.fold_windows(g, x_shape, dim, size, step)))
linear("fold_windows", k.fold_windows, args="shape dim size step", node_name="UnfoldBackwardBackward0",
    x=d("1, in windows", lambda g, dim, size, step: k.unfold(g, dim, size, step)))
for key in ("split", "split_with_sizes", "unsafe_split"):
    linear(key, k.split, args="sizes dim", view=key != "unsafe_split", outputs=2,
        x=d("1, joined", lambda g, x_shape, sizes, dim: k.joined(g, x_shape, sizes, dim)))
linear("unbind", k.unbind, args="dim", view=True, outputs=2,
    x=d("1, side by side", lambda g, x_shape, dim: k.bound(g, x_shape, dim)))
linear("put_back", k.put_back, args="shape index", node_name="SliceBackwardBackward0",
    x=d("1, taken", lambda g, index: k.index(g, index)))
linear("select", k.select, args="dim index", view=True,
    x=d("1 where taken, else 0", lambda g, x_shape, dim, index: k.put_back(g, x_shape, k.at(dim, index))))
linear("gather_index", k.index, args="index", frees_args=True, name="index",
    node_name="IndexBackward0",
    x=d("1 where taken, summed", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("cat", k.cat, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.cut_apart(g, dim, tensors_shape)))
linear("block_diag", k.block_diag, variadic=True, inputs="tensors",
    tensors=d("1, cut out", lambda g, tensors_shape: k.diagonal_blocks(g, tensors_shape)))
linear("stack", k.stack, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.unstack(g, dim, tensors_shape)))

# fmt: on
