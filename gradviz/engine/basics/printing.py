"""Arrays as text, exactly as PyTorch prints a tensor.

One number format serves a whole array. It depends on the numbers that are shown: integers have no point, whole floats
end in a point (`2.`), other floats have `precision` decimals, and scientific notation is used where the magnitudes
differ too much.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import default_dtype


@dataclass(slots=True)
class PrintOptions:
    """How arrays are printed.

    Floats get `precision` digits; an array of more than `threshold` elements shows only `edgeitems` at either
    end of each dimension; lines break at `linewidth`; `sci_mode` forces or forbids scientific notation.
    """

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_options = PrintOptions()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how arrays are printed: first the options of `profile`, then the other options that are given.

    As in PyTorch, a call without `sci_mode` makes the notation automatic again, and an unknown profile changes
    nothing."""
    global _options
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _options = replace(_PROFILES.get(profile or "", _options), **changes, sci_mode=sci_mode)


def get_printoptions() -> dict[str, Any]:
    """The current options, as keyword arguments for `set_printoptions`."""
    return asdict(_options)


@contextlib.contextmanager
def printoptions(**changes: Any) -> Iterator[None]:
    """Use other options inside a `with` block. The arguments are those of `set_printoptions`."""
    before = get_printoptions()
    set_printoptions(**changes)
    try:
        yield
    finally:
        set_printoptions(**before)


def format_array(array: np.ndarray, prefix: str = "tensor(", suffixes: Sequence[str] = ()) -> str:
    """What PyTorch prints for a tensor of these elements.

    The text ends with the size and dtype where PyTorch shows them, and with `suffixes`, such as
    `requires_grad=True`."""
    body = _elements(array, len(prefix)) if array.size else "[]"
    told = [*_size_told(array), *_dtype_told(array), *suffixes]
    return _with_suffixes(prefix + body, told, indent=len(prefix)) + ")"


def format_scalar(value: np.ndarray | np.generic) -> str:
    """What `f"{tensor}"` prints for a 0-d tensor: the number alone."""
    return format(value.item(), "")


def format_with_spec(array: np.ndarray, spec: str) -> str:
    """What `format(tensor, spec)` returns: the formatted number of a 0-d tensor, else the whole text.

    Raises TypeError where a tensor with dimensions has a spec, and ValueError for an invalid spec."""
    if array.ndim == 0:
        return format(array.item(), spec)
    if spec:
        raise TypeError(
            "unsupported format string passed to Tensor.__format__: "
            f"{spec!r} is for one number, and this tensor has shape {array.shape}; format its elements"
        )
    return format_array(array)


# --- what stands after the elements ------------------------------------------------------------------------


def _size_told(array: np.ndarray) -> list[str]:
    hidden = array.ndim != 1 if array.size == 0 else not _options.edgeitems
    return [f"size={array.shape}"] if hidden else []


def _dtype_told(array: np.ndarray) -> list[str]:
    """The dtype where it has to be shown, else None. The elements imply the default dtypes; without elements only the
    default float dtype is implied."""
    default = default_dtype()
    implied = [default]
    if array.size:
        implied += [np.result_type(default, np.complex64), np.dtype(np.int64), np.dtype(np.bool_)]
    return [] if array.dtype in implied else [f"dtype=torch.{array.dtype.name}"]


def _with_suffixes(text: str, suffixes: Sequence[str], indent: int) -> str:
    """Append suffixes to the last line of `text`. Start a new line where one would be too long."""
    used = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if used + len(suffix) + 2 > _options.linewidth:
            text += ",\n" + " " * indent + suffix
            used = indent + len(suffix)
        else:
            text += ", " + suffix
            used += len(suffix) + 2
    return text


# --- the elements ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """How one element is written, so that all of them have the same `width`."""

    width: int
    text: Callable[[Any], str]


def _elements(array: np.ndarray, indent: int) -> str:
    shorten = array.size > _options.threshold
    return _block(array, indent, _cell_for(_ends(array) if shorten else array), shorten)


def _ends(array: np.ndarray) -> np.ndarray:
    """The elements of `array` that are shown where it is shortened."""
    edge = _options.edgeitems
    for axis, length in enumerate(array.shape):
        if length > 2 * edge:
            shown = [*range(edge), *range(length - edge, length)]
            array = np.take(array, np.asarray(shown, dtype=np.intp), axis=axis)
    return array


def _block(array: np.ndarray, indent: int, cell: _Cell, shorten: bool) -> str:
    """The elements in brackets, one pair for each dimension. The first bracket is at column `indent`."""
    if array.ndim == 0:
        return cell.text(array.item())
    if array.ndim == 1:
        return _row(array, indent, cell, shorten)
    edge = _options.edgeitems

    def blocks(part: np.ndarray) -> list[str]:
        return [_block(each, indent + 1, cell, shorten) for each in part]

    if shorten and len(array) > 2 * edge:
        lines = [*blocks(array[:edge]), "...", *blocks(array[len(array) - edge :])]
    else:
        lines = blocks(array)
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(lines) + "]"


def _row(array: np.ndarray, indent: int, cell: _Cell, shorten: bool) -> str:
    edge = _options.edgeitems

    def cells(part: np.ndarray) -> list[str]:
        return [cell.text(each) for each in part.tolist()]

    if shorten and not edge:
        texts = ["..."]
    elif shorten and len(array) > 2 * edge:
        texts = [*cells(array[:edge]), " ...", *cells(array[-edge:])]
    else:
        texts = cells(array)
    per_line = max(1, (_options.linewidth - indent) // (cell.width + len(", ")))
    lines = [", ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _cell_for(array: np.ndarray) -> _Cell:
    """The format for all elements of `array`."""
    if array.dtype.kind == "c":
        return _complex_cell(_real_cell(array.real), _real_cell(array.imag))
    return _real_cell(array)


def _complex_cell(real: _Cell, imag: _Cell) -> _Cell:
    def text(value: complex) -> str:
        imaginary = imag.text(value.imag).lstrip()
        sign = "" if imaginary.startswith(("+", "-")) else "+"
        return f"{real.text(value.real)}{sign}{imaginary}j"

    return _Cell(real.width + imag.width + len("j"), text)


def _real_cell(array: np.ndarray) -> _Cell:
    values = array.ravel().tolist()
    if array.dtype.kind == "f":
        # Zeros, infinities and nan do not influence the format, and may be wider than the column.
        values = [value for value in values if value and math.isfinite(value)]
        write = _float_writer(values)
    else:
        write = str
    width = max((len(write(value)) for value in values), default=1)
    return _Cell(width, lambda value: write(value).rjust(width))


def _float_writer(values: list[float]) -> Callable[[float], str]:
    """The function that writes floats, chosen by those that are finite and not zero."""
    digits = _options.precision
    if values and (_are_far_apart(values) if _options.sci_mode is None else _options.sci_mode):
        return lambda value: f"{value:.{digits}e}"
    if all(value.is_integer() for value in values):
        return _whole
    return lambda value: f"{value:.{digits}f}"


def _are_far_apart(values: list[float]) -> bool:
    """Whether fixed decimals would hide the smallest value, or be too wide for the largest."""
    sizes = [abs(value) for value in values]
    least, most = min(sizes), max(sizes)
    return most / least > 1000.0 or most > 1.0e8 or least < 1.0e-4


def _whole(value: float) -> str:
    """A float without decimals. It ends in a point, except for `inf` and `nan`."""
    return f"{value:.0f}." if math.isfinite(value) else f"{value:.0f}"
