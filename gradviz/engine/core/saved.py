"""What a node saved, under the names that PyTorch gives it: `y.grad_fn._saved_self`.

PyTorch's names are those of its operators' signatures (its file derivatives.yaml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.node import ManyInputsNode, output_edge, unchanged, unpack_out
from gradviz.engine.core.tensor import Tensor, new_tensor

INPUT, OUTPUT, ARRAY, ARGUMENT, SIZES = "input", "output", "array", "argument", "sizes"
TENSORS = {INPUT, OUTPUT, ARRAY}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node keeps something: the how many-th input, output or argument (an array, or anything else), or the
    shape of an input."""

    kind: str
    nr: int


# Ours = PyTorch's; nothing where what we keep is not what PyTorch shows. Else x is self, y other, out result.
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
_ARRAYS = {"condition", "index", "indices", "mask", "result1", "target"}  # tensors, where a pass frees them
_DEFAULT = {"x": "self", "y": "other", "out": "result"}
# Arguments that PyTorch's nodes show too, and which mean the same there.
_ARGUMENTS = frozenset(
    """
    alpha beta condition correction delta diagonal dilation dim dim0 dim1 dim2 dims dimension downscale_factor eps
    exponent full_matrices groups include_self index indices input_scale keepdim kernel_size lambd margin mask max
    max_val min min_val n negative_slope offset ord p padding padding_idx reduce repeats result1 rounding_mode scale
    self shifts step stride target threshold unitriangular upper upscale_factor value weight
    """.split()
)


def saved_places(op: Any) -> dict[str, Place]:
    """What nodes of an op keep, by PyTorch's names."""
    renamed = dict(pair.split("=") for pair in _NAMES.get(op.node_name, "").split())

    def name(ours: str) -> str:
        return renamed.get(ours, _DEFAULT.get(ours, ours))

    places = {name(x): Place(INPUT, i) for i, x in enumerate(op.inputs) if op.needs(x) and not op.variadic}
    for i, argument in enumerate(op.args):
        if name(argument) in _ARGUMENTS:
            is_tensor = op.frees_args and name(argument) in _ARRAYS
            places[name(argument)] = Place(ARRAY if is_tensor else ARGUMENT, i)
    if op.inputs[:1] == ("x",) and op.needs("x_shape") and name("x") == "self":
        places["self_sym_sizes"] = Place(SIZES, 0)
    if op.needs("chosen"):
        places["indices"] = Place(OUTPUT, 1)
    elif op.saves_out:
        places |= {part: Place(OUTPUT, nr) for nr, part in enumerate(name("out").split(","))}
    places.pop("", None)
    return places


# --- what is in a place


def kept(node: Any, place: Place) -> Any:
    """What a node keeps in a place: a Tensor, a value, or None if it kept nothing.

    Raises RuntimeError when it is freed, and when it was modified in place since."""
    return _KEPT[place.kind](node, place.nr)


def put(node: Any, place: Place, tensor: Tensor | None) -> None:
    """Put a tensor into a place, or take it out."""
    _PUT[place.kind](node, place.nr, tensor)


def _input(node: Any, nr: int) -> Tensor | None:
    if isinstance(node, ManyInputsNode):
        if node.tensors is None:
            raise backward_twice(node.name())
        tensor, version = node.tensors[nr], node.versions[nr]
        return None if tensor is None else unchanged(node, tensor, version)
    slot = "xy"[nr]
    if not hasattr(node, slot):
        return None
    if getattr(node, slot) is None:
        raise backward_twice(node.name())
    return unchanged(node, getattr(node, slot), getattr(node, f"{slot}_version", 0))


def _put_input(node: Any, nr: int, tensor: Tensor | None) -> None:
    version = 0 if tensor is None else tensor._version
    if isinstance(node, ManyInputsNode):
        node.tensors = _with(node.tensors or (), nr, tensor)
        node.versions = _with(node.versions, nr, version)
        return
    setattr(node, "xy"[nr], tensor)
    setattr(node, f"{'xy'[nr]}_version", version)


def _output(node: Any, nr: int) -> Tensor:
    out = unpack_out(node)
    array = out[nr] if isinstance(out, tuple) else out
    return new_tensor(array, output_edge(node, nr) if array.dtype.kind in "fc" else None)


def _put_output(node: Any, nr: int, tensor: Tensor | None) -> None:
    array = None if tensor is None else tensor.array
    node.out = array if node.outputs == 1 else _with(node.out, nr, array)
    node.out_counter = None


def _argument(node: Any, nr: int) -> Any:
    if node.args is None:
        raise backward_twice(node.name())
    value = node.args[nr]
    return new_tensor(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def _put_argument(node: Any, nr: int, tensor: Tensor | None) -> None:
    node.args = _with(node.args, nr, None if tensor is None else tensor.array)


def _with(things: tuple, nr: int, thing: Any) -> tuple:
    return (*things[:nr], thing, *things[nr + 1 :])


def _sizes(node: Any, nr: int) -> tuple[int, ...]:
    return node.spec[nr][0]


_KEPT: dict[str, Callable] = {
    INPUT: _input,
    OUTPUT: _output,
    ARRAY: _argument,
    ARGUMENT: _argument,
    SIZES: _sizes,
}
_PUT: dict[str, Callable] = {INPUT: _put_input, OUTPUT: _put_output, ARRAY: _put_argument}
