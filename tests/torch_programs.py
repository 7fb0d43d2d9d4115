"""PyTorch programs under the recorder: what PyTorch itself says of each pass, beside what was recorded of it."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradviz
from gradviz.events.kinds import Accumulated
from gradviz.query import Query
from gradviz.tracefile import Trace

PROGRAMS = sorted((Path(__file__).parent.parent / "examples" / "torch").glob("*.py"))

_BITS = {torch.bfloat16: torch.int16, torch.complex32: torch.int32}  # dtypes that NumPy has not
Structure = tuple[list[str], list[tuple[int, int, int]]]


@dataclass
class Walked:
    """What PyTorch has of one pass: its nodes and edges as `next_functions` gives them, and the `.grad` of its leaves
    afterwards."""

    structure: Structure
    gradients: list[bytes] = field(default_factory=list)


def walk(roots: list[Any]) -> tuple[Structure, list[Any]]:
    """The names of the nodes that roots lead to, in the order of a walk, and their edges; and the leaves."""
    places: dict[Any, int] = {}
    nodes, edges, leaves = [], [], []
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node in places:
            continue
        places[node] = len(places)
        nodes.append(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack += [target for target, _ in reversed(node.next_functions) if target is not None]
    for node in nodes:
        edges += [(places[node], nr, places[t]) for t, nr in node.next_functions if t is not None]
    return ([node.name().removeprefix("torch::autograd::") for node in nodes], edges), leaves


def recorded_walk(query: Query, roots: list[int]) -> Structure:
    """The same of a trace."""
    nodes = query.nodes.walk(roots)
    places = {node: at for at, node in enumerate(nodes)}
    edges = [(places[n], e.nr, places[e.node]) for n in nodes for e in query.nodes.edges(n) if e.node]
    return [query.nodes.name(node) for node in nodes], edges


@contextlib.contextmanager
def passes_walked() -> Iterator[list[Walked]]:
    """Look at each pass as PyTorch's engine is given it."""
    engine = torch.autograd.graph._engine_run_backward
    found: list[Walked] = []

    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
            fns = [torch.autograd.graph._get_grad_fn_or_grad_acc(t) for t in tensors]
            structure, leaves = walk(fns)
            walked = Walked(structure)
            found.append(walked)
            before = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
        result = engine(roots, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            for leaf, old in zip(leaves, before, strict=True):
                if leaf.grad is not None and kwargs.get("accumulate_grad", True):
                    unchanged = old is not None and torch.equal(old, leaf.grad)
                    if not unchanged or not args[3]:
                        walked.gradients.append(bytes_of(leaf.grad))
        return result

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run
    try:
        yield found
    finally:
        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = engine


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype in _BITS:
        plain = plain.clone(memory_format=torch.contiguous_format).view(_BITS[plain.dtype])
    return plain.numpy(force=True).tobytes()


def run(program: Path) -> tuple[str, dict[str, bytes]]:
    """Run a program in this process: what it prints, and the tensors that it is left with."""
    printed = io.StringIO()
    state = torch.random.get_rng_state()
    with contextlib.redirect_stdout(printed):
        space = runpy.run_path(str(program))
    left = tensors_of(space)
    left["random"] = bytes_of(torch.random.get_rng_state())
    torch.random.set_rng_state(state)
    return printed.getvalue(), left


def tensors_of(space: dict[str, Any]) -> dict[str, bytes]:
    """All tensors, parameters, buffers and gradients of a program's variables."""
    found: dict[str, bytes] = {}
    for name, value in space.items():
        if isinstance(value, torch.Tensor):
            members = {name: value}
        elif isinstance(value, torch.nn.Module):
            members = {f"{name}.{key}": part for key, part in value.state_dict(keep_vars=True).items()}
        else:
            continue
        for key, tensor in members.items():
            found[key] = bytes_of(tensor)
            if tensor.is_leaf and tensor.grad is not None:
                found[f"{key}.grad"] = bytes_of(tensor.grad)
    return found


@dataclass
class Recorded:
    """A program that ran under a recorder."""

    trace: Trace
    printed: str
    left: dict[str, bytes]
    walked: list[Walked]


def recorded(program: Path, file: Path, values: str = "full", **settings: Any) -> Recorded:
    """Run a program under a recorder."""
    with passes_walked() as walked, gradviz.record(file, values=values, **settings):
        printed, left = run(program)
    return Recorded(gradviz.open(file), printed, left, walked)


def accumulated(trace: Trace) -> dict[int, list[bytes]]:
    """What `.grad` of the leaves was recorded to be, by pass."""
    found: dict[int, list[bytes]] = {}
    for event in trace:
        if isinstance(event, Accumulated):
            snapshot = trace.snapshot(event.grad, event.index)
            assert snapshot is not None
            assert snapshot.array is not None
            data = np.ascontiguousarray(snapshot.array).tobytes()
            found.setdefault(event.in_pass, []).append(data)
    return found
