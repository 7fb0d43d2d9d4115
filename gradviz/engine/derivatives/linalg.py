"""Products of vectors and matrices."""

from __future__ import annotations

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.derivatives.rows import general
from gradviz.engine.op import d

# fmt: off

general("dot", np.dot,
    x=d("y", lambda g, y: g * y),
    y=d("x", lambda g, x: g * x))
general("mv", np.matmul,
    x=d("g yᵀ", lambda g, y: k.outer(g, y)),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
general("mm", np.matmul,
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
general("bmm", np.matmul,
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
general("addmm", k.addmm,
    bias=d("1, summed over rows", lambda g, bias_shape: k.sum_to(g, bias_shape)),
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))

# fmt: on
