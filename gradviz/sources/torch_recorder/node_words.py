"""Texts for the derivatives of PyTorch's nodes that gradviz's engine has no formula for: LSTMs, attention, Fourier
transforms and others. A text with a `g` is the whole step, in which g is upstream.

The formulas of attention are those of the FlashAttention paper (arXiv:2205.14135, appendix B.2); the others follow
from the definitions of the ops."""

from __future__ import annotations

import re

from gradviz.events.field_types import Rule
from gradviz.events.listener import NO_RULE

_GATES = "through the gates of all time steps, last to first"
_CELL = "through the gates of the cell"
_WINDOW = "1 / n, to the window"
_CHOSEN = "1 at each window's maximum"
_KEPT = "1 where not written over"
_TAKEN = "1, taken"
_MOVED = "1, moved"
_EIGENVECTORS = "by way of the eigenvectors"
_FACTORS = "by way of the factors L and U"
_REFLECTIONS = "by way of each reflection in the product"
_FACTORED = "by way of the inverse of the matrix that was factored"
_INVERSE = "by way of the pseudo-inverse of the matrix"
_SAMPLE = "how the drawn number moves with its distribution"
_REDUCED = "the derivative of the reduction by this element"
_NO_DERIVATIVE = "none: PyTorch has no derivative of it"
_SCORES = "with s = p · (g vᵀ − Σ p · g vᵀ) by rows, p the weights of attention"
_OF_ATTENTION = (
    ("q", f"scale · s k, {_SCORES}"), ("k", f"scale · sᵀ q, {_SCORES}"), ("v", "pᵀ g, p the weights of attention"),
    ("mask", "s = p · (g vᵀ − Σ p · g vᵀ) by rows, p the weights of attention"),
)  # fmt: skip
_OF_BATCH_NORM = (
    ("x", "(h − mean(h) − x̂ · mean(h x̂)) / σ with h = g · weight"), ("weight", "x̂, summed"), ("bias", "1, summed"),
)  # fmt: skip

# A text alone stands for all edges.
_TEXTS: dict[str, str | tuple[str, ...]] = {
    "AdaptiveAvgPool3DBackward0": _WINDOW,
    "AdaptiveMaxPool3DBackward0": _CHOSEN,
    "AffineGridGeneratorBackward0": "g times the coordinates of each point, summed",
    "AliasBackward0": "1",
    "AsStridedBackward0": "1, at the places that the view shows, summed",
    "AsStridedScatterBackward0": (_KEPT, _TAKEN),
    "AvgPool3DBackward0": _WINDOW,
    "BernoulliBackward0": "0",
    "BinaryCrossEntropyWithLogitsBackward0": ("σ(x) − y, weighted", "−x, or −x − (pos_weight − 1) ln σ(x), weighted"),
    "CholeskyBackward0": "L⁻ᵀ Φ(Lᵀ g) L⁻¹",
    "CholeskyInverseBackward0": _FACTORED,
    "CholeskySolveBackward0": ("A⁻¹ g, A the matrix that was factored", _FACTORED),
    "ComplexBackward0": ("the real part of g", "the imaginary part of g"),
    "ConjBackward0": "the conjugate of g",
    "ConjPhysicalBackward0": "the conjugate of g",
    "CtcLossBackward0": "the probability of each label, minus its share in all alignments with the target",
    "CudnnRnnBackward0": _GATES,
    "DiagonalScatterBackward0": (_KEPT, _TAKEN),
    "ExpandBackward0": "1, summed",
    "FftC2CBackward0": "the transform of g in the other direction",
    "FftC2RBackward0": "the transform of g in the other direction",
    "FftR2CBackward0": "the real part of the transform of g in the other direction",
    "FillBackward0": "0",
    "FractionalMaxPool2DBackward0": _CHOSEN,
    "FractionalMaxPool3DBackward0": _CHOSEN,
    "FrexpBackward0": "1 / 2^exponent",
    "GridSampler2DBackward0": ("the weight of each pixel around the point", "the slope of the input at the point"),
    "GridSampler3DBackward0": ("the weight of each voxel around the point", "the slope of the input at the point"),
    "IndexReduceBackward0": _REDUCED,
    "LinalgEigBackward0": _EIGENVECTORS,
    "LinalgHouseholderProductBackward0": _REFLECTIONS,
    "LinalgLstsqBackward0": _INVERSE,
    "LinalgLuBackward0": _FACTORS,
    "LinalgLuFactorExBackward0": _FACTORS,
    "LinalgLuSolveBackward0": ("by way of the factors L and U", "A⁻ᵀ g, A the matrix that was factored"),
    "LinalgMatrixExpBackward0": "the derivative of the exponential of xᵀ in the direction g",
    "LuUnpackBackward0": "g of the triangles, put together",
    "MaxPool3DWithIndicesBackward0": _CHOSEN,
    "MaxUnpool2DBackward0": _TAKEN,
    "MaxUnpool3DBackward0": _TAKEN,
    "MiopenRnnBackward0": _GATES,
    "MkldnnRnnLayerBackward0": _GATES,
    "MpsLstmBackward0": _GATES,
    "MultiMarginLossBackward0": "by each class in the margin: + at it, − at the target",
    "MultilabelMarginLossBackward0": "1 / C for each pair in the margin: + at the wrong class, − at the target",
    "NarrowCopyBackward0": "1 where taken",
    "NextafterBackward0": _NO_DERIVATIVE,
    "NormalBackward1": "0",
    "NormalBackward2": "0",
    "NormalBackward3": "0",
    "NotImplemented": _NO_DERIVATIVE,
    "OrmqrBackward0": (_REFLECTIONS, _REFLECTIONS, "qᵀ g, q the product of the reflections"),
    "PackPaddedSequenceBackward0": "1, back at its place in the padded sequence",
    "PolarBackward0": ("g along the direction of out", "g across the direction of out, times its length"),
    "PutBackward0": (_KEPT, _TAKEN),
    "RenormBackward0": "g scaled as the row was, less the part along a row that was cut to its length",
    "RreluWithNoiseBackward0": "1 where the input is above 0, else the slope that was drawn",
    "SegmentReduceBackward0": _REDUCED,
    "SparseMmReduceImplBackward0": _REDUCED,
    "SparseSampledAddmmBackward0": ("beta", "alpha · g yᵀ, where elements are", "alpha · xᵀ g, where elements are"),
    "StandardGammaBackward0": _SAMPLE,
    "ThnnFusedGruCellBackward0": _CELL,
    "ThnnFusedLstmCellBackward0": _CELL,
    "ToDenseBackward0": "1",
    "ToMkldnnBackward0": "1",
    "ToSparseBackward0": "1",
    "ToSparseBackward1": "1",
    "TransposeBackward1": "1, transposed",
    "TriangularSolveBackward0": ("A⁻ᵀ g, A the triangle", "−A⁻ᵀ g outᵀ, its triangle"),
    "UnbindBackward0": _MOVED,
    "UnsafeMaskedIndexBackward0": "1 where taken, summed",
    "UnsafeMaskedIndexPutAccumulateBackward0": ("1", _TAKEN),
    "UpsampleBicubic2DAaBackward0": "the weights of its pixels, summed",
    "UpsampleBilinear2DAaBackward0": "the weights of its pixels, summed",
    "ViewAsComplexBackward0": "g as pairs of real numbers",
    "ViewAsRealBackward0": "g as complex numbers",
    "WeightNormInterfaceBackward0": ("the part of g across v, times new length / length", "the part of g along v"),
    "_DirichletBackward": _SAMPLE,
}  # fmt: skip
_AGAIN = re.compile(r"(\w+?)Backward(?:Data)?Backward\d")
_GENERATED = "GeneratedBackwardFor_"
_ATTENTION = "ScaledDotProduct"
_BATCH_NORMS = (
    "BatchNormWithUpdateBackward0",
    "NativeBatchNormLegitBackward0",
    "NativeBatchNormLegitBackward1",
)


def in_words(name: str, edges: int) -> Rule:
    """The rule of a node with this name, in words for each of its edges; NO_RULE if none is known."""
    if name.startswith(_ATTENTION):
        return Rule(_OF_ATTENTION[:edges])
    if name in _BATCH_NORMS:
        return Rule(_OF_BATCH_NORM[:edges])
    texts = _TEXTS.get(name, "")
    again = _AGAIN.fullmatch(name)
    if again is not None:
        texts = f"through {again[1]}Backward0, differentiated again"
    elif name.startswith(_GENERATED):
        texts = "by the backward that the operator brings along"
    if not texts:
        return NO_RULE
    if isinstance(texts, str):
        return Rule((("", texts),) * edges)
    return Rule(tuple(("", text) for text in texts[:edges]))
