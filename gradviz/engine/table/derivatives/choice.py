"""Choosing, copying, converting, cutting."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.derivative import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear

# fmt: off

linear("where", k.where, inputs="x y", args="condition", frees_args=True, elementwise=True,
    x=d("1 where condition", lambda g, x_shape, condition: k.sum_to(np.where(condition, g, 0), x_shape)),
    y=d("1 where not condition", lambda g, y_shape, condition: k.sum_to(np.where(condition, 0, g), y_shape)))
linear("clone", k.clone, args="memory_format", elementwise=True,
    x=d("1", lambda g: g))
linear("copy", np.copy, node_name="CopyBackwards", elementwise=True,
    x=d("1", lambda g: g))
linear("copy_over", k.copied_over, name="copy_", node_name="CopyBackwards",
    x=d("0", lambda g: g * 0),
    y=d("1, summed", lambda g, y_shape, y_dtype: k.sum_to(g, y_shape).astype(y_dtype)))
linear("zero", np.zeros_like, elementwise=True,
    x=d("0", lambda g: k.none_of(g)))
general("fill", k.filled, args="value", node_name="FillBackward2", elementwise=True,
    x=d("0", lambda g: g * 0))
linear("fill_tensor", k.filled, name="fill", node_name="FillBackward3", inputs="x y",
    x=d("0", lambda g: g * 0),
    y=d("1, summed", lambda g: np.sum(g)))
linear("to", k.cast, args="dtype memory_format", node_name="ToCopyBackward0", elementwise=True,
    x=d("1, in x's dtype", lambda g, x_dtype: k.to(g, x_dtype)))

linear("make_dual", k.same, node_name="AliasBackward0", view=True, elementwise=True,
    x=d("1", lambda g: g))
linear("alias", k.same, view=True, elementwise=True,
    x=d("1", lambda g: g))
general("detach", k.same, view=True)

# fmt: on
