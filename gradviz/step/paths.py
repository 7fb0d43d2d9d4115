"""The ways from one tensor to another, through the ops between them."""

from __future__ import annotations

from collections import deque

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.step.facts import Facts
from gradviz.step.numbers import clean, value
from gradviz.step.stop import Stop
from gradviz.step.subject import subject

MOST = 200_000  # ops looked at
SHOWN = 20  # steps of a path


def path(stop: Stop, text: str) -> list[str]:
    """The shortest way from A to B, step by step, with the gradient that went back along it, and how many ways there
    are."""
    names = text.replace("->", " ").replace("→", " ").split()
    if len(names) != 2:
        return ["path takes two tensors: path x loss"]
    start, end = (subject(stop.facts, name, stop.k) for name in names)
    if start.tensor == end.tensor:
        return [f"{start.called} and {end.called} are one tensor"]
    found = _search(stop.facts, start.tensor, end.tensor)
    if not found and _search(stop.facts, end.tensor, start.tensor):
        start, end = end, start
        found = _search(stop.facts, start.tensor, end.tensor)
    if not found:
        return [f"no way leads from {start.called} to {end.called}: neither was computed from the other"]
    ways = _count(stop.facts, start.tensor, end.tensor)
    lines = [
        f"{start.called} → {end.called}: {ways} path{'s' * (ways != 1)}"
        + (", the shortest:" if ways > 1 else "")
    ]
    lines += _steps(stop, found)
    if ways > 1:
        lines.append(f"  the gradient of {start.called} is the sum over all {ways}")
    return lines


def _op_of(facts: Facts, tensor: int) -> OpRan | None:
    maker = facts.names.maker(tensor)
    return maker if isinstance(maker, OpRan) else None


def _base(facts: Facts, tensor: int) -> tuple[int, ...]:
    maker = facts.names.maker(tensor)
    return (maker.base,) if isinstance(maker, TensorMade) and maker.base else ()


def _search(facts: Facts, start: int, end: int, through_memory: bool = False) -> list[int]:
    """The tensors on a shortest way, from start to end; none where there is no way. `through_memory`: also by way of
    those that share the memory of another, as `.data` does."""
    came: dict[int, int] = {end: 0}
    waiting = deque([end])
    while waiting and len(came) < MOST:
        tensor = waiting.popleft()
        if tensor == start:
            way = [tensor]
            while came[way[-1]]:
                way.append(came[way[-1]])
            return way
        op = _op_of(facts, tensor)
        sources = op.inputs if op is not None else _base(facts, tensor) if through_memory else ()
        for source in sources:
            if source and source not in came:
                came[source] = tensor
                waiting.append(source)
    return []


def cut(facts: Facts, start: int, end: int) -> OpRan | TensorMade | None:
    """The first event on the shortest way from start to end, through data or graph, that no gradient comes back
    through; None where end was not computed from start."""
    way = _search(facts, start, end, through_memory=True)
    for tensor in way[1:]:
        maker = facts.names.maker(tensor)
        if isinstance(maker, TensorMade) or (isinstance(maker, OpRan) and not maker.node):
            return maker
    return None


def _count(facts: Facts, start: int, end: int) -> int:
    """How many ways there are. Inputs have lower numbers than what is made of them, so that going down the numbers
    is an order."""
    ways = {end: 1}
    total = 0
    pending = {end}
    looked = 0
    while pending and looked < MOST:
        tensor = max(pending)
        pending.discard(tensor)
        looked += 1
        if tensor == start:
            total += ways[tensor]
            continue
        op = _op_of(facts, tensor)
        for source in op.inputs if op is not None else ():
            if source >= start:
                ways[source] = ways.get(source, 0) + ways[tensor]
                pending.add(source)
    return total


def _steps(stop: Stop, way: list[int]) -> list[str]:
    facts = stop.facts
    lines = []
    for position, tensor in enumerate(way):
        op = _op_of(facts, tensor) if position else None
        if op is not None:
            how = clean(op.grad_fn) or f"{clean(op.op)}, and the gradient is cut off here: no node"
            lines.append(f"    ↓ {how}")
        lines.append(f"  {facts.called(tensor)} = {value(stop.moment.value(tensor))}")
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN // 2], f"    … {len(lines) - SHOWN} lines …", *lines[-SHOWN // 2 :]]
    return lines
