"""The table of derivatives: every operation, and beside it how gradients go through it.

Read a row as a textbook would print it: the op's name, the NumPy function that computes it, and for each input
the derivative, once as text and once as a rule from the upstream gradient `g`. What a rule names, the node saves
(see core/needs.py); how texts are read is in core/derivative.py. Adding an operation is adding a row; forward mode,
higher orders, saved tensors, the node's class and its name in pictures follow from it.

Begin with `arithmetic.py`. Formulas are PyTorch's, `tools/autograd/derivatives.yaml`, in its order of evaluation,
so that the last bit agrees where NumPy's own functions do.
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
