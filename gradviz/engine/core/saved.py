"""What nodes show of the tensors and arguments that they saved, under PyTorch's names: `y.grad_fn._saved_self`.

PyTorch's names are those in the signatures of its operators (its file derivatives.yaml).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gradviz.engine.core.needs import Argument, ArrayArgument, Indices, Input, Need, OneOutput, Output, Shape

# Our name = PyTorch's name. An empty name hides what PyTorch does not show. By default x is self, y other, out result.
_TARGET = "y=target weight= pos_weight="
_LAYER = "x=input"
_NAMES = {
    "AdaptiveMaxPool2DBackward0": "indices=result1", "AddbmmBackward0": "x=batch1 y=batch2",
    "AddcdivBackward0": "y=tensor1 z=tensor2", "AddcmulBackward0": "y=tensor1 z=tensor2",
    "AddmmBackward0": "x=mat1 y=mat2", "AddmvBackward0": "x=mat y=vec", "AddrBackward0": "x=vec1 y=vec2",
    "AminmaxBackward0": "out=min,max", "BaddbmmBackward0": "x=batch1 y=batch2",
    "BinaryCrossEntropyBackward0": _TARGET, "BinaryCrossEntropyWithLogitsBackward0": _TARGET,
    "BmmBackward0": "y=mat2", "CdistBackward0": "x=x1 y=x2", "ClampMaxBackward1": "y=max", "ClampMinBackward1": "y=min",
    "ConvolutionBackward0": _LAYER, "DotBackward0": "y=tensor",
    "EmbeddingBagBackward0": "x=weight y=per_sample_weights out=",
    "HuberLossBackward0": _TARGET, "IndexBackward0": "index=", "IndexPutBackward0": "index=", "LerpBackward1": "y=end",
    "LinalgCholeskyExBackward0": "out=L", "LinalgDetBackward0": "x=A",
    "LinalgEighBackward0": "out=eigenvalues,eigenvectors",
    "LinalgInvExBackward0": "out=inverse", "LinalgQrBackward0": "out=Q,R", "LinalgSlogdetBackward0": "x=A",
    "LinalgSolveExBackward0": "x=A", "LinalgSolveTriangularBackward0": "unit=unitriangular",
    "LinalgSvdBackward0": "out=U,S,Vh", "MaxPool2DWithIndicesBackward0": "indices=result1", "MmBackward0": "y=mat2",
    "MseLossBackward0": _TARGET, "MvBackward0": "y=vec", "NativeBatchNormBackward0": _LAYER,
    "NativeGroupNormBackward0": _LAYER, "NativeLayerNormBackward0": _LAYER, "NormBackward1": "ord=p",
    "PixelShuffleBackward0": "r=upscale_factor", "PixelUnshuffleBackward0": "r=downscale_factor",
    "PolygammaBackward0": "order=n", "PowBackward1": "y=exponent", "PowBackward2": "x=exponent base=self",
    "PreluKernelBackward0": "y=weight", "ScatterReduceBackward0": "y=src", "SelectScatterBackward0": "index=",
    "SliceBackward0": "index=", "SliceScatterBackward0": "index=", "SmoothL1LossBackward0": _TARGET,
    "StdMeanBackward0": "out=result0", "TrilinearBackward0": "x=i1 w=i2 y=i3", "UnfoldBackward0": "dim=dimension",
    "CopySlices": "index=",
}  # fmt: skip
_ARRAYS = {"condition", "index", "indices", "mask", "result1", "target"}  # in PyTorch these are saved tensors
_DEFAULT = {"x": "self", "y": "other", "out": "result"}
# The arguments that PyTorch's nodes show too, and that mean the same there.
_ARGUMENTS = frozenset(
    """
    alpha beta condition correction delta diagonal dilation dim dim0 dim1 dim2 dims dimension downscale_factor eps
    exponent full_matrices groups include_self index indices input_scale keepdim kernel_size lambd margin mask max
    max_val min min_val n negative_slope offset ord p padding padding_idx reduce repeats result1 rounding_mode scale
    self shifts step stride target threshold unitriangular upper upscale_factor value weight
    """.split()
)


def shown_names(
    node_name: str, needed: Collection[Need], inputs: Sequence[str], args: Sequence[str], frees_args: bool
) -> dict[str, Need]:
    """What nodes of that name show, by PyTorch's names. `needed` is what the rules of the op need."""
    renamed = dict(pair.split("=") for pair in _NAMES.get(node_name, "").split())

    def name(ours: str) -> str:
        return renamed.get(ours, _DEFAULT.get(ours, ours))

    shown: dict[str, Need] = {name(x): Input(x, nr) for nr, x in enumerate(inputs) if Input(x, nr) in needed}
    for nr, argument in enumerate(args):
        if name(argument) in _ARGUMENTS:
            is_tensor = frees_args and name(argument) in _ARRAYS
            shown[name(argument)] = (ArrayArgument if is_tensor else Argument)(argument, nr)
    if inputs[:1] == ("x",) and Shape("x_shape") in needed and name("x") == "self":
        shown["self_sym_sizes"] = Shape("x_shape")
    if Indices("chosen", 1) in needed:
        shown["indices"] = OneOutput("chosen", 1)
    elif Output("out") in needed:
        shown |= {part: OneOutput("out", nr) for nr, part in enumerate(name("out").split(","))}
    shown.pop("", None)
    return shown
