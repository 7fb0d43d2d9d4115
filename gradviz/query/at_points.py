"""The gradient of an op that a version of PyTorch defines at a tie, at a bound, or where there is no derivative.

The table at_points.json is made by tests/versions/points.py, which runs the ops on each tested version. The version is
the one that the trace names; gradviz's own engine follows one version."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.kinds import OpRan
from gradviz.query.ops import LOSSES
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot, Trace
from gradviz.version import TORCH_VERSION

_FILE = Path(__file__).parent / "at_points.json"
_SAME_OP = {"absolute": "abs", "arccos": "acos", "arctan2": "atan2", "clip": "clamp", "norm": "vector_norm"}
_CLAMPS = {"clamp": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",)}
# arguments that make no difference
_DEFAULT = re.compile(r"(dim|axis|keepdim|eps)=.*|(p|ord)=('fro'|2)|correction=1|")
_MOST = 4096  # the most elements that are looked at


class Point(NamedTuple):
    """A point of the table: `call` is the op with its inputs as x, y and z, `inputs` are their values, numbers or
    lists. `by_version` are the gradients of each input for an upstream gradient of ones, from a version on."""

    op: str
    call: str
    inputs: tuple[Any, ...]
    by_version: tuple[tuple[str, Any], ...]

    def gradients(self, version: str) -> tuple[np.ndarray, ...]:
        """The gradients in a version; none if it raises an exception."""
        known = [given for first, given in self.by_version if release(first) <= release(version)]
        given = known[-1] if known else self.by_version[0][1]
        return tuple(np.array(one, float) for one in given if one is not None) if isinstance(given, list) else ()

    def is_zero(self, version: str) -> bool:
        """Whether a version defines all gradients as 0."""
        given = self.gradients(version)
        return bool(given) and not any(np.any(one) for one in given)

    def is_finite(self, version: str) -> bool:
        """Whether a version gives neither NaN nor an infinity."""
        return all(np.isfinite(one).all() for one in self.gradients(version))


def version_of(trace: Trace) -> str:
    """The version of PyTorch whose derivatives a trace has, as 2.13.0."""
    return str(trace.meta.get("torch") or TORCH_VERSION).partition("+")[0]


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, to compare with."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@cache
def points() -> tuple[Point, ...]:
    """All points of the table."""
    calls = json.loads(_FILE.read_text(encoding="utf-8"))["calls"]
    return tuple(
        Point(_same(call["op"]), text, tuple(at), tuple(gradients.items()))
        for text, call in calls.items()
        for at, _, gradients in call["rows"]
    )


def points_of(query: Query, op: OpRan, everywhere: bool = False) -> Iterator[Point]:
    """The points of the table at which some elements of the inputs of an op are; or, `everywhere`, all of them. None if
    their values were not recorded, or if the table has the op with other arguments only."""
    name = _same(op.op)
    if not op.inputs or not all(op.inputs):
        return
    of_clamp = name in _CLAMPS and len(op.inputs) == 1
    candidates = _of_clamp(name, op.args) if of_clamp else _of_call().get((name, _plain(op.args)), ())
    for point in candidates:
        if len(point.inputs) == len(op.inputs):
            values = (query.memory.value(tensor, op.index - 1) for tensor in op.inputs)
            there = [_is_at(at, value) for at, value in zip(point.inputs, values, strict=True)]
            together = np.logical_and.reduce(np.broadcast_arrays(*there))
            if together.size and (together.all() if everywhere else together.any()):
                yield point


def redefined(query: Query, op: OpRan, version: str, other: str) -> Point | None:
    """The first point at which an op ran and for which two versions define other gradients; None if there is none."""
    if release(version) == release(other):
        return None
    for point in points_of(query, op):
        if str(point.gradients(version)) != str(point.gradients(other)):  # as text, a NaN equals a NaN
            return point
    return None


def _same(name: str) -> str:
    """The name under which an op is in the table."""
    name = name.rstrip("_").removeprefix("linalg_")
    return _SAME_OP.get(name, name)


def _plain(args: str) -> tuple[str, ...]:
    """The values of the arguments that say where a point is."""
    parts = re.sub(r"\.0\b", "", args).split(", ")
    return tuple(part.rpartition("=")[2] for part in parts if not _DEFAULT.fullmatch(part))


@cache
def _of_call() -> dict[tuple[str, tuple[str, ...]], list[Point]]:
    """The points of calls of a single op, by the op and its arguments besides the inputs. Those of losses are left out:
    their gradients depend on the number of elements."""
    found: dict[tuple[str, tuple[str, ...]], list[Point]] = {}
    for point in points():
        call = re.fullmatch(r"[\w.]+\((.*)\)(\.\w+)?", point.call) or re.fullmatch(r"x \*\* ([\d.]+)", point.call)
        if call is not None and not re.search(r"[(\[]", call[1]) and point.op not in LOSSES | {"kl_div", "dist"}:
            args = re.sub(r"(\w+=)?\b[xyz]\b(, )?", "", call[1])
            found.setdefault((point.op, _plain(args)), []).append(point)
    return found


def _of_clamp(name: str, args: str) -> Iterator[Point]:
    """The points of a clamp with numbers: as in the table, with its bounds in the place of 0 and 1."""
    given = re.findall(r"(?:(min|max)=)?(-?[\d.]+(?:e-?\d+)?)(?:, |$)", args)
    bounds = {which or default: float(bound) for (which, bound), default in zip(given, _CLAMPS[name], strict=False)}
    call = f"x.clamp({', '.join(f'{which}={place}' for place, which in enumerate(bounds))})"
    for place, bound in enumerate(bounds.values()):
        same = (point for point in points() if point.call == call and point.inputs == (place,))
        yield from (point._replace(inputs=(bound,)) for point in same)


def _is_at(at: Any, value: Snapshot | None) -> np.ndarray:
    """Where a tensor is a number of the table. A list of the table is zeros or equal numbers, one or several: whether
    all of the tensor is so."""
    stats = value.stats if value is not None else None
    if value is None or stats is None or stats.nan:
        return np.array(False)
    if not isinstance(at, list):
        array = value.array
        if array is not None and array.size <= _MOST and array.dtype.kind in "fiu":
            return np.equal(array, float(at))
        return np.array(stats.min == stats.max == float(at))
    numbers = np.array(at, float)
    is_alike = numbers.size > 0 and (numbers == numbers.flat[0]).all() and np.isfinite(numbers).all()
    is_single = int(np.prod(value.shape)) == 1
    is_there = is_alike and stats.min == stats.max and (stats.min == 0) == (numbers.flat[0] == 0)
    return np.array(is_there and is_single == (numbers.size == 1))
