"""The tensors that the line used at which an exception was raised that leaves the program."""

import ast
import linecache
from collections import ChainMap
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from gradviz.events.site import place_of
from gradviz.sources.tracebacks import entries_of, without_our_frames
from gradviz.tracefile.sites import USER, Sites

_PLAIN = ("torch.Tensor", "torch.nn.parameter.Parameter", "gradviz.engine.core.tensor.Tensor")
_MOST_ELEMENTS = 1 << 22  # of integers whose range is read


class Operand(NamedTuple):
    """A tensor, and its name in the frame that used it."""

    name: str
    tensor: Any
    frame: FrameType

    def told(self, with_range: bool) -> str:
        """Its name, shape and dtype, of integers with their range: `tokens (8, 12) int64 from 0 to 50`."""
        tensor, dtype = self.tensor, str(self.tensor.dtype).rpartition(".")[2]
        text = f"{self.name} {tuple(tensor.shape)} {dtype}"
        is_read = with_range and "int" in dtype and str(tensor.device) == "cpu"
        is_whole = not hasattr(tensor, "untyped_storage") or tensor.untyped_storage().nbytes() >= tensor.nbytes
        if is_read and is_whole and 0 < tensor.numel() <= _MOST_ELEMENTS:
            text += f" from {int(tensor.min())} to {int(tensor.max())}"
        return text


def operands(error: BaseException, sites: Sites) -> list[Operand]:
    """The tensors that the expression of the program used from which an exception came, then those of the library's
    expression that raised it. Variables and attributes are looked up; no code of the program runs."""
    entries = [*entries_of(without_our_frames(error.__traceback__))]
    own = [entry for entry in entries if sites.sort_of(entry.tb_frame.f_code.co_filename) == USER]
    found: dict[int, Operand] = {}
    for operand in [one for entry in (*own[-1:], *entries[-1:]) for one in _used(entry)]:
        found.setdefault(id(operand.tensor), operand)
    return list(found.values())


def _used(entry: TracebackType) -> Iterator[Operand]:
    """The tensors that the expression of a traceback's entry names."""
    frame = entry.tb_frame
    at = place_of(frame.f_code, entry.tb_lasti)
    lines = linecache.getlines(at.file)[at.line - 1 : at.end_line]
    if not lines or min(at.col, at.end_col) < 0:
        return
    lines[-1] = lines[-1][: at.end_col]
    lines[0] = lines[0][at.col :]
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return
    variables = ChainMap(dict(frame.f_locals), frame.f_globals)
    for node in ast.walk(tree):
        value = _value(node, variables)
        if f"{type(value).__module__}.{type(value).__qualname__}" in _PLAIN:
            yield Operand(ast.unparse(node), value, frame)


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """The value of a variable, or of an attribute that an object or a module has in its own dictionaries; None if it is
    not there."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    try:
        own = object.__getattribute__(_value(node.value, variables), "__dict__")
    except AttributeError:
        return None
    held = [own, own.get("_parameters"), own.get("_buffers")]
    return next((one[node.attr] for one in held if isinstance(one, dict) and node.attr in one), None)
