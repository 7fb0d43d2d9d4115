"""dtypes under PyTorch's names, and PyTorch's rules of type promotion."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

BY_NAME: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "half": np.dtype(np.float16),
    "int64": np.dtype(np.int64),
    "long": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "short": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
}

TYPE_NAMES = {
    "float32": "FloatTensor",
    "float64": "DoubleTensor",
    "float16": "HalfTensor",
    "int64": "LongTensor",
    "int32": "IntTensor",
    "int16": "ShortTensor",
    "int8": "CharTensor",
    "uint8": "ByteTensor",
    "bool": "BoolTensor",
    "complex64": "ComplexFloatTensor",
    "complex128": "ComplexDoubleTensor",
}

float32 = BY_NAME["float32"]
float64 = BY_NAME["float64"]
int64 = BY_NAME["int64"]
bool_ = BY_NAME["bool"]


class dtype:
    """A tensor's dtype as PyTorch shows it: `torch.float32`."""

    _made: ClassVar[dict[str, dtype]] = {}

    def __init__(self, numpy: np.dtype) -> None:
        self.numpy = numpy
        self.is_floating_point = numpy.kind == "f"
        self.is_complex = numpy.kind == "c"
        self.itemsize = numpy.itemsize

    def __repr__(self) -> str:
        return f"torch.{self.numpy.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.numpy == other.numpy

    def __hash__(self) -> int:
        return hash(self.numpy)

    def __reduce__(self) -> tuple:
        return (dtype_of, (self.numpy.name,))


def dtype_of(numpy_dtype: Any) -> dtype:
    """The `dtype` of a NumPy dtype. There is one object for each."""
    name = np.dtype(numpy_dtype).name
    if name not in dtype._made:
        dtype._made[name] = dtype(np.dtype(numpy_dtype))
    return dtype._made[name]


PUBLIC = {name: dtype_of(numpy_dtype) for name, numpy_dtype in BY_NAME.items()}


def to_numpy(kind: Any) -> np.dtype:
    """The NumPy dtype of a `dtype`, a NumPy dtype, a dtype's name or a Python type. Raises TypeError for anything
    else."""
    if isinstance(kind, dtype):
        return kind.numpy
    if kind is float:
        return default_dtype()
    if kind is int:
        return int64
    try:
        return np.dtype(kind)
    except TypeError:
        raise TypeError(f"{kind!r} is no dtype; gradviz has {', '.join(BY_NAME)}") from None


_default: list[np.dtype] = [float32]


def default_dtype() -> np.dtype:
    """The default dtype of floating-point tensors."""
    return _default[0]


def complex_of(kind: np.dtype) -> np.dtype:
    """The complex dtype whose parts are of a floating-point dtype. float16 has complex64."""
    return np.result_type(kind, BY_NAME["complex64"])


def get_default_dtype() -> dtype:
    """The default dtype of floating-point tensors."""
    return dtype_of(_default[0])


def set_default_dtype(kind: Any) -> None:
    """Set the default dtype of floating-point tensors. Raises TypeError for a dtype that is not floating point."""
    numpy_dtype = to_numpy(kind)
    if numpy_dtype.kind != "f":
        raise TypeError(f"only floating-point types are supported as the default type, not {kind}")
    _default[0] = numpy_dtype


def scalar_type_name(numpy_dtype: np.dtype) -> str:
    """The name of a dtype as error messages have it: `Long`."""
    return TYPE_NAMES.get(numpy_dtype.name, numpy_dtype.name).removesuffix("Tensor")


def torch_type_name(numpy_dtype: np.dtype) -> str:
    """The name of a tensor type as error messages have it: `torch.FloatTensor`."""
    return f"torch.{TYPE_NAMES.get(numpy_dtype.name, numpy_dtype.name)}"


def _category(numpy_dtype: np.dtype) -> int:
    return {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}.get(numpy_dtype.kind, 4)


def can_write(source: np.dtype, target: np.dtype) -> bool:
    """Whether an in-place operation may convert results of one dtype to another: not complex numbers to real ones, nor
    floating-point numbers to integers, nor numbers to bools."""
    return _category(source) <= _category(target)


def result_type(*operands: Any) -> np.dtype:
    """The dtype that PyTorch computes in. Operands are arrays and Python numbers.

    Arrays with dimensions have priority over 0-d arrays of the same category, and both have priority over Python
    numbers (PyTorch documentation, "Tensor Attributes: type promotion")."""
    groups: list[list[np.dtype]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, bool):
            groups[2].append(bool_)
        elif isinstance(operand, int):
            groups[2].append(int64)
        elif isinstance(operand, float):
            groups[2].append(default_dtype())
        elif isinstance(operand, complex):
            groups[2].append(complex_of(default_dtype()))
        else:
            groups[1 if operand.ndim == 0 else 0].append(operand.dtype)
    result: np.dtype | None = None
    for group in groups:
        for candidate in group[:1] and [_promote(group)]:
            if result is None or _category(candidate) > _category(result):
                result = candidate if result is None else _promote([result, candidate])
    return result if result is not None else default_dtype()


def _promote(dtypes: list[np.dtype]) -> np.dtype:
    result = dtypes[0]
    for other in dtypes[1:]:
        if _category(result) == 1 and _category(other) in (2, 3):
            result = other
        elif not (_category(other) == 1 and _category(result) in (2, 3)):
            result = np.promote_types(result, other)
    return result


def promote_types(type1: dtype, type2: dtype) -> dtype:
    """The dtype of the result of an operation on tensors of two dtypes."""
    return dtype_of(result_type(np.empty(1, to_numpy(type1)), np.empty(1, to_numpy(type2))))


class _Limits:
    """The limits of a dtype, as Python numbers."""

    def __init__(self, type: Any = None) -> None:
        kind = to_numpy(type) if type is not None else default_dtype()
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self._fill(kind)

    def _fill(self, kind: np.dtype) -> None:
        raise NotImplementedError


class finfo(_Limits):
    """The limits of a floating-point dtype. Without an argument: of the default dtype."""

    def _fill(self, kind: np.dtype) -> None:
        limits = np.finfo(kind)
        self.eps, self.max, self.min, self.tiny = (float(n) for n in (limits.eps, limits.max, limits.min, limits.tiny))
        self.smallest_normal, self.resolution = self.tiny, float(limits.resolution)


class iinfo(_Limits):
    """The limits of an integer dtype."""

    def _fill(self, kind: np.dtype) -> None:
        self.max, self.min = np.iinfo(kind).max, np.iinfo(kind).min
