"""Paths from one tensor to another as text, op by op."""

from __future__ import annotations

from gradviz.query.flow import count_ways, op_of, shortest_way
from gradviz.query.ops import function_name
from gradviz.words.escape import clean
from gradviz.words.numbers import value
from gradviz.words.stop import Stop, subject

SHOWN = 20  # steps of a path


def path(stop: Stop, text: str) -> list[str]:
    """The shortest path from A to B, op by op, with the value of each tensor on it, and the number of paths."""
    names = text.replace("->", " ").replace("→", " ").split()
    if len(names) != 2:
        return [stop.say("path takes two tensors: path x loss")]
    start, end = (subject(stop.words, name, stop.k) for name in names)
    if start.tensor == end.tensor:
        return [stop.say("{one} and {other} are the same tensor", one=start.called, other=end.called)]
    way = shortest_way(stop.query, start.tensor, end.tensor)
    if not way and shortest_way(stop.query, end.tensor, start.tensor):
        start, end = end, start
        way = shortest_way(stop.query, start.tensor, end.tensor)
    if not way:
        none = "no path leads from {start} to {end}: neither was computed from the other"
        return [stop.say(none, start=start.called, end=end.called)]
    ways = count_ways(stop.query, start.tensor, end.tensor)
    found_told = (
        "{start} → {end}: {count} paths, the shortest:" if ways > 1 else "{start} → {end}: {count} path"
    )
    lines = [stop.say(found_told, start=start.called, end=end.called, count=f"{ways:,}")]
    lines += _steps(stop, way)
    if ways > 1:
        lines.append(
            stop.say("  the gradient of {name} is the sum over all {count}", name=start.called, count=ways)
        )
    return lines


def _steps(stop: Stop, way: list[int]) -> list[str]:
    lines = []
    for position, tensor in enumerate(way):
        op = op_of(stop.query, tensor) if position else None
        if op is not None:
            node = stop.query.nodes.main_of_op(op.index)
            cut = stop.say("{op}, and the gradient is cut off here: no node", op=clean(function_name(op.op)))
            lines.append(f"    ↓ {stop.words.node_name(node) if node else cut}")
        lines.append(f"  {stop.called(tensor)} = {value(stop.moment.value(tensor))}")
    if len(lines) > SHOWN:
        lines = [
            *lines[: SHOWN // 2],
            stop.say("    … {count} lines …", count=len(lines) - SHOWN),
            *lines[-SHOWN // 2 :],
        ]
    return lines
