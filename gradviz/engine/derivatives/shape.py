"""Views, indexing, joining. The gradient goes back the way the elements came."""

from __future__ import annotations

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.derivatives.rows import linear
from gradviz.engine.op import d

# fmt: off

linear("reshape", np.reshape, args="shape", node_name="ViewBackward0", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("t", np.transpose, node_name="TBackward0", view=True,
    x=d("1, transposed", lambda g: np.transpose(g)))
linear("transpose", np.swapaxes, args="dim0 dim1", view=True,
    x=d("1, transposed", lambda g, dim0, dim1: np.swapaxes(g, dim0, dim1)))
linear("permute", np.transpose, args="dims", view=True,
    x=d("1, permuted back", lambda g, dims: np.transpose(g, k.inverse_permutation(dims))))
linear("expand", np.broadcast_to, args="size", view=True,
    x=d("1, summed", lambda g, x_shape: k.sum_to(g, x_shape)))
linear("squeeze", k.squeeze, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("squeeze_dim", k.squeeze, name="squeeze", node_name="SqueezeBackward1", args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("unsqueeze", np.expand_dims, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("index", k.index, args="index", view=True, node_name="SliceBackward0",
    x=d("1 where taken, else 0", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("put_back", k.put_back, args="shape index", node_name="SliceBackwardBackward0",
    x=d("1, taken", lambda g, index: k.index(g, index)))
linear("select", k.select, args="dim index", view=True,
    x=d("1 where taken, else 0", lambda g, x_shape, dim, index: k.put_back(g, x_shape, k.at(dim, index))))
linear("gather_index", k.index, args="index", name="index", node_name="IndexBackward0",
    x=d("1 where taken, summed", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("cat", k.cat, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.cut_apart(g, dim, tensors_shape)))
linear("stack", k.stack, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.unstack(g, dim, tensors_shape)))

# fmt: on
