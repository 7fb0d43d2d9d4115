"""A source that is no engine: it tells a listener of a run that never happened.

What the waist carries must not depend on gradviz's engine. Here tensors are numbers, values are handles of a class that
only its own reader can read, and everything is told by hand."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradviz.events.field_types import Edge, Root, Rule, Saved
from gradviz.events.handles import READERS, Form, Later
from gradviz.events.kinds import LEAF, REQUIRES_GRAD
from gradviz.events.listener import NO_RULE, State
from gradviz.events.values import packed_stats_of
from gradviz.tracefile import Recorder, Trace, open_trace


@dataclass(eq=False)
class Distant:
    """A value on a device far away: each look at it is a trip."""

    array: np.ndarray
    dtype: str = "float32"
    device: str = "far:0"


class DistantReader:
    """Reads distant values: shapes are known here, elements and statistics are fetched, many in one trip."""

    def __init__(self) -> None:
        self.trips: list[int] = []  # how many values each trip brought

    def at_once(self, value: Distant) -> None:
        return None

    def form(self, value: Distant) -> Form:
        return Form(value.array.shape, value.dtype, value.device)

    def size(self, value: Distant) -> int:
        return value.array.size

    def array(self, value: Distant) -> np.ndarray:
        return value.array

    def keep(self, value: Distant, whole: bool) -> Later:
        return Later((value.array.copy(), value.dtype), whole, value.array.nbytes)

    def settle(self, waiting: Sequence[Later]) -> list[bytes | None]:
        self.trips.append(len(waiting))
        return [_bytes(*later.kept) if later.whole else packed_stats_of(later.kept[0]) for later in waiting]


def _bytes(array: np.ndarray, dtype: str) -> bytes:
    if dtype == "bfloat16":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return array.astype(dtype).tobytes()


READER = READERS[Distant] = DistantReader()


def here() -> object:
    """The frame of the caller's caller: where in a test something happens."""
    return sys._getframe(2)


class StandIn:
    """Tells a recorder of leaves, ops, nodes and passes. Numbers count up from 1."""

    def __init__(self, recorder: Recorder) -> None:
        self.listener = recorder
        self.tensors = self.nodes = self.passes = 0
        self.values: dict[int, np.ndarray] = {}

    def number(self) -> int:
        self.tensors += 1
        return self.tensors

    def node_number(self) -> int:
        self.nodes += 1
        return self.nodes

    def leaf(self, value: object, requires_grad: bool = True, how: str = "made", source: int = 0) -> int:
        number = self.number()
        flags = LEAF | (REQUIRES_GRAD if requires_grad else 0)
        self.listener.tensor(here(), how, State(number, self.known(number, value), flags), source)
        return number

    def known(self, number: int, value: object) -> Distant:
        distant = value if isinstance(value, Distant) else Distant(np.asarray(value, np.float32))
        self.values[number] = distant.array
        return distant

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        values: Sequence[object],
        flags: Sequence[int] = (REQUIRES_GRAD,),
        rule: Rule = NO_RULE,
        where: object = None,
        bases: Sequence[int] | None = None,
        grad_enabled: bool = True,
    ) -> list[int]:
        outputs = [self.number() for _ in values]
        handles = [self.known(*pair) for pair in zip(outputs, values, strict=True)]
        zeros = [0] * len(outputs)
        self.listener.op(
            where or here(), name, "", rule, 0, grad_enabled, inputs, outputs, handles, flags, zeros, bases or zeros
        )
        return outputs

    def node(
        self,
        name: str,
        outputs: Sequence[int],
        edges: Sequence[tuple[int, int, int]],
        saved: Sequence[tuple[int, int]] = (),
        rule: Rule = NO_RULE,
    ) -> int:
        number = self.node_number()
        told = [Edge(*edge) for edge in edges], [Saved(*pair) for pair in saved]
        self.listener.node(here(), number, name, -1, rule, outputs, *told)
        return number

    def begin(self, node: int, tensor: int, gradient: int = 0, **how: bool) -> int:
        self.passes += 1
        gradient = gradient or self.leaf([1.0], requires_grad=False, how="gradient")
        kept, created = how.get("retain_graph", False), how.get("create_graph", False)
        self.listener.pass_began(
            here(), self.passes, "backward", time.time(), kept, created, [Root(node, 0, tensor, gradient)], ()
        )
        return gradient


@contextmanager
def told(path: Path, **settings: object) -> Iterator[StandIn]:
    """A source that tells a recorder, which writes into `path`."""
    recorder = Recorder(path, meta={"engine": "stand-in", "script": "none"}, **settings)  # type: ignore[arg-type]
    yield StandIn(recorder)
    recorder.close(ended="ok")


def read(path: Path) -> Trace:
    """The trace that was written."""
    return open_trace(path)
