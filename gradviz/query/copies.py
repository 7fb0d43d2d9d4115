"""Tensors that were made from the numbers of another tensor (`torch.tensor(loss.item())`, `from_numpy(h.numpy())`),
tensors that were copied as a whole, and whether two arrays have the same elements. No op connects a tensor with the
numbers that it was made from; equal values do."""

import ast
from collections.abc import Container, Iterator

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, NumberRead, OpRan, TensorMade
from gradviz.events.values import Stat
from gradviz.query.flow import op_of, reach
from gradviz.query.ops import COPYING, OF_PARTS
from gradviz.query.query import Query
from gradviz.query.source_trees import appended_before, assigned_before, method_calls, statement_at
from gradviz.tracefile import Site

LOADED = "filled"  # how PyTorch's recorder calls the making of a tensor that `torch.load` filled
_BEFORE = 4096  # the states before the copy that are compared


def copied_from(query: Query, made: TensorMade) -> int:
    """The last tensor that required grad and had exactly the values of a new tensor when that was made; 0 if there is
    none. Constant tensors are not compared, since too many are alike."""
    states = query.trace.states
    row = states.first(made.tensor)
    if row < 0 or not states.forms[row]:
        return 0
    stats, form = states.stats[row], query.trace.forms[int(states.forms[row])]
    if made.how in _OF_NUMBERS and 1 < np.prod(form.shape) <= _FEW and (scalar := _of_numbers(query, row)):
        return scalar
    is_constant = stats[0] == stats[1] and (np.prod(form.shape) > 1 or float(stats[0]).is_integer())
    if np.isnan(stats[0]) or is_constant:
        return 0
    first = max(row - _BEFORE, 0)
    same = (states.stats[first:row] == stats).all(axis=1)
    same &= states.flags[first:row] & REQUIRES_GRAD > 0
    for number in np.flatnonzero(same)[::-1].tolist():
        other = states.form(first + number)
        tensor = int(states.tensors[first + number])
        if other is not None and np.prod(other.shape) == np.prod(form.shape) and op_of(query, tensor):
            return tensor
    return 0


def equal_result(query: Query, made: TensorMade, results: Container[int]) -> int:
    """The last of some tensors that had exactly the values of a new tensor when that was made; 0 if there is none, or
    if the new tensor is constant."""
    states = query.trace.states
    row = states.first(made.tensor)
    stats = states.stats[row] if row >= 0 and states.forms[row] else None
    if stats is None or np.isnan(stats[0]) or stats[Stat.MIN] == stats[Stat.MAX]:
        return 0
    first = max(row - _BEFORE, 0)
    same = np.flatnonzero((states.stats[first:row] == stats).all(axis=1))
    return next((t for t in states.tensors[first + same[::-1]].tolist() if t in results), 0)


_OF_NUMBERS, _FEW = {"tensor", "as_tensor", "new_tensor"}, 64  # makers; the most elements kept in full


def _of_numbers(query: Query, row: int) -> int:
    """The last of the scalars whose values are the elements of a tensor, as in `torch.tensor([loss.item(), ...])`; 0
    unless each element is the value of a scalar that required grad."""
    states = query.trace.states
    array = query.trace.snapshot_of(row, row).array
    if array is None or array.dtype.kind != "f" or np.all(array == np.round(array)):
        return 0
    first = max(row - _BEFORE, 0)
    scalar = states.stats[first:row, Stat.MIN] == states.stats[first:row, Stat.MAX]
    scalar &= states.flags[first:row] & REQUIRES_GRAD > 0
    rows = first + np.flatnonzero(scalar)
    same = rows[np.isin(states.stats[rows, Stat.MIN], array.astype(np.float64))]
    if not np.isin(array.astype(np.float64), states.stats[same, Stat.MIN]).all():
        return 0
    return next((t for t in states.tensors[same[::-1]].tolist() if op_of(query, t)), 0)


_FAR = 8  # the most copies of copies that are followed
_COPIED = COPYING | OF_PARTS | {"view_as"}


def original(query: Query, tensor: int) -> int:
    """The leaf that requires grad and that a tensor is a copy of, perhaps transposed; 0 if it is no copy. Copies are
    made by `clone`, `deepcopy`, `nn.Parameter(w.data)`, `DTensor.from_local(w)`."""
    current = tensor
    for _ in range(_FAR):
        maker = query.tensors.made(current)
        if isinstance(maker, OpRan):
            source = maker.inputs[0] if maker.op in _COPIED and maker.inputs else 0
        elif isinstance(maker, TensorMade):
            base = query.tensors.base(query.tensors.before(current, maker.index))
            source = maker.source or (base.tensor if base is not None and maker.how in COPYING else 0)
        else:
            source = 0
        if not source:
            break
        current = source
        if query.tensors.is_leaf_that_requires_grad(current, query.trace.count):
            return current
    return 0


_READING = ("item", "tolist", "detach", "data", "numpy", "clone", "float")


def read_in_its_line(query: Query, made: TensorMade) -> int:
    """The tensor that requires grad and whose numbers go into a new tensor, by the source of the line that made it:
    `torch.tensor([x[0] * 2, x[1] * 3])`. 0 if the line names none."""
    site = query.places.site(made.site)
    for call, _ in method_calls(statement_at(query, site), made.how):
        if tensor := _read_by(query, call.args[0] if call.args else None, site, made.index):
            return tensor
    return 0


def read_right_before(query: Query, made: TensorMade) -> set[int]:
    """The tensors whose numbers the program read right before a new tensor was made, in the same line:
    `torch.tensor([loss.item() for loss in losses])`."""
    line, found = query.places.line(made.site), set[int]()
    for event in range(made.index - 1, max(made.index - 1 - _FEW, -1), -1):
        read = query.trace.event(event)
        if not isinstance(read, NumberRead) or query.places.line(read.site) != line:
            break
        found.add(read.tensor)
    return found


def written_in_its_line(query: Query, event: int) -> int:
    """The tensor that requires grad and whose numbers an event writes into elements of another tensor, by the source:
    `y[i] = float(x[i]) ** 2`. 0 if the line names none."""
    site = query.places.at(event)
    statement = statement_at(query, site)
    is_of_elements = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript)
    if not is_of_elements or not isinstance(statement, ast.Assign):
        return 0
    return _read_by(query, statement.value, site, event)


def _read_by(query: Query, value: ast.AST | None, site: Site | None, event: int) -> int:
    """The tensor that requires grad and whose numbers an expression uses, directly or through an array that was
    assigned above it or a list that was filled there; 0 if it names none."""
    for name in numbers_in(value):
        tensor = query.names.tensor_called(name, event)
        if tensor:
            if query.tensors.requires_grad(tensor, event):
                return tensor
            continue
        assigned = assigned_before(query, site, name)
        array: ast.AST | None = assigned.value if assigned is not None else None
        if isinstance(array, ast.List) and not array.elts:
            appended = appended_before(query, site, name)
            array = appended.args[0] if appended is not None else None
        for source in numbers_in(array):
            tensor = query.names.tensor_called(source, event)
            if tensor and query.tensors.requires_grad(tensor, event):
                return tensor
    return 0


def has_numbers_of_gradient(query: Query, event: int) -> bool:
    """Whether the statement at an event computes with the numbers of a `.grad`, by its source, directly or through
    variables assigned above it: `x.data = torch.tensor(x.item() - lr * x.grad.item())`."""
    site = query.places.at(event)
    statement = statement_at(query, site)
    value = statement.value if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) else None

    def assigned(node: ast.AST) -> list[ast.AST]:
        names = sorted({part.id for part in _computed_with(node) if isinstance(part, ast.Name)})
        statements = (assigned_before(query, site, name) for name in names)
        return [one.value for one in statements if one is not None]

    values: list[ast.AST] = [value] if value is not None else []
    expressions = reach(values, assigned, _FAR)
    parts = (part for expression in expressions for part in _computed_with(expression))
    return any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts)


_FORM = ("shape", "dtype", "device", "ndim", "size", "dim", "numel")


def _computed_with(node: ast.AST | None) -> Iterator[ast.AST]:
    """The parts of an expression that its value is computed from. Comparisons only decide, and `x.shape` gives only a
    form: both are left out with their parts."""
    if node is None or isinstance(node, ast.Compare) or (isinstance(node, ast.Attribute) and node.attr in _FORM):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _computed_with(child)


_ARRAYS = "np", "numpy"


def numbers_in(node: ast.AST | None) -> Iterator[str]:
    """The names in an expression whose numbers it uses. A name is left out if only its shape or length is used."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Subscript):
        yield from numbers_in(node.value)
    elif isinstance(node, ast.Attribute):
        if node.attr in _READING:
            yield from numbers_in(node.value)
    elif isinstance(node, ast.Call):
        is_plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int") and len(node.args) == 1
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in _ARRAYS:
            for argument in node.args:
                yield from numbers_in(argument)
            return
        yield from numbers_in(node.args[0] if is_plain else node.func if owner is not None else None)
    elif isinstance(node, ast.List | ast.Tuple | ast.BinOp | ast.UnaryOp):
        for child in ast.iter_child_nodes(node):
            yield from numbers_in(child)


def same_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same shape and elements; a NaN is equal to a NaN."""
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same dtype and elements; a NaN is equal to a NaN."""
    return one.dtype == other.dtype and same_elements(one, other)


def largest_change(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between elements of two arrays of one shape; infinite if only one of the elements is
    finite."""
    if not one.size:
        return 0.0
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    left, right = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max())
