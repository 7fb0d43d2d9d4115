"""The table of derivatives: every operation, and beside it how gradients go through it.

A row reads as in a textbook. It has the op's name, the NumPy function that computes it, and for each input the
derivative: once as text, and once as a rule from the upstream gradient `g`. What a rule's parameters mean is in
`core/needs.py`. How texts are read is in `core/derivative.py`. A new operation is a new row. Forward mode, higher
orders, saved tensors, the node's class and its name in pictures follow from it.

Start with `arithmetic.py`. The formulas and their order of evaluation are PyTorch's
(`tools/autograd/derivatives.yaml`), so that results agree to the last bit where NumPy's functions do.
"""

from gradviz.engine.core.registry import TABLE
from gradviz.engine.table.derivatives import (
    activations,
    arithmetic,
    choice,
    functions,
    indexing,
    layers,
    linalg,
    norms,
    padding,
    reductions,
    shape,
)

__all__ = [
    "TABLE",
    "activations",
    "arithmetic",
    "choice",
    "functions",
    "indexing",
    "layers",
    "linalg",
    "norms",
    "padding",
    "reductions",
    "shape",
]
