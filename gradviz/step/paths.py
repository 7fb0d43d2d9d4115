"""Paths from one tensor to another as text, op by op."""

from __future__ import annotations

from gradviz.query.cuts import count_ways, op_of, shortest_way
from gradviz.words.escape import clean
from gradviz.words.numbers import plural, value
from gradviz.words.stop import Stop
from gradviz.words.subject import subject

SHOWN = 20  # steps of a path


def path(stop: Stop, text: str) -> list[str]:
    """The shortest path from A to B, op by op, with the value of each tensor on it, and the number of paths."""
    names = text.replace("->", " ").replace("→", " ").split()
    if len(names) != 2:
        return ["path takes two tensors: path x loss"]
    start, end = (subject(stop.words, name, stop.k) for name in names)
    if start.tensor == end.tensor:
        return [f"{start.called} and {end.called} are the same tensor"]
    found = shortest_way(stop.query, start.tensor, end.tensor)
    if not found and shortest_way(stop.query, end.tensor, start.tensor):
        start, end = end, start
        found = shortest_way(stop.query, start.tensor, end.tensor)
    if not found:
        return [f"no path leads from {start.called} to {end.called}: neither was computed from the other"]
    ways = count_ways(stop.query, start.tensor, end.tensor)
    shortest = ", the shortest:" if ways > 1 else ""
    lines = [f"{start.called} → {end.called}: {plural(ways, 'path')}{shortest}"]
    lines += _steps(stop, found)
    if ways > 1:
        lines.append(f"  the gradient of {start.called} is the sum over all {ways}")
    return lines


def _steps(stop: Stop, way: list[int]) -> list[str]:
    lines = []
    for position, tensor in enumerate(way):
        op = op_of(stop.query, tensor) if position else None
        if op is not None:
            node = stop.query.nodes.main_of_op(op.index)
            cut = f"{clean(op.op)}, and the gradient is cut off here: no node"
            lines.append(f"    ↓ {stop.words.node_name(node) if node else cut}")
        lines.append(f"  {stop.called(tensor)} = {value(stop.moment.value(tensor))}")
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN // 2], f"    … {len(lines) - SHOWN} lines …", *lines[-SHOWN // 2 :]]
    return lines
