"""The memory of saved tensors that graphs of earlier passes hold while they are alive."""

from __future__ import annotations

import math

import numpy as np

from gradviz.events.kinds import GraphsAlive, Kind
from gradviz.query.query import Query
from gradviz.sets import contained
from gradviz.tracefile.sound import dtype_of


def held_bytes(query: Query, alive: GraphsAlive) -> int:
    """The least number of bytes that saved tensors of graphs of earlier passes take, as a pass ends at which these
    graphs are alive.

    Counted are the tensors that an op computed and that were saved by nodes which are alive for certain, because a
    living node leads to them, and through which each pass so far kept the saved tensors (`retain_graph`). Memory that
    several tensors share counts once. Leaves and data are not counted. 0 if a pass was not recorded in detail: it may
    have freed saved tensors."""
    passes = [one for one in query.trace.passes if one.number <= alive.in_pass]
    if not all(one.is_in_detail and one.recorded for one in passes):
        return 0
    memories = {
        _memory_of(query, saved.tensor, query.nodes.made(node) or 0)
        for node in _keeping_nodes(query, alive)
        for saved in query.nodes.saved(node)
        if saved.tensor
    }
    return sum(_size_if_computed(query, tensor) for tensor in memories if tensor > 0)


def _keeping_nodes(query: Query, alive: GraphsAlive) -> list[int]:
    """The nodes of earlier passes that are alive for certain and have their saved tensors."""
    earlier = [living.number for living in alive.graphs]
    beginnings = [alive.in_pass, *(earlier if alive.are_whole else ())]
    roots = [query.passes.began(n).roots for n in beginnings if n in query.passes.by_number]
    # of several roots it is not known which is alive
    living = query.nodes.walk([own[0].node for own in roots if len(own) == 1])
    received, began = query.trace.table(Kind.RECEIVED), query.trace.table(Kind.PASS_BEGAN)
    so_far = received.events < alive.index
    freeing = began["number"][~began["retain_graph"]]
    freed = set(received["node"][so_far & contained(received["in_pass"], freeing)].tolist())
    in_earlier = set(received["node"][contained(received["in_pass"], np.array(earlier))].tolist())
    return [node for node in living if node in in_earlier and node not in freed]


def _memory_of(query: Query, tensor: int, at: int) -> int:
    """The tensor that the memory of a tensor was made for; a negative number if there is none."""
    base = query.trace.states.base(tensor)
    return query.memory.home(base or tensor, at)


def _size_if_computed(query: Query, tensor: int) -> int:
    """The bytes of a tensor; 0 if no op computed it, or if they are not known."""
    maker = query.tensors.maker(tensor)
    if maker is None or query.trace.kinds[maker] != Kind.OP:
        return 0
    form = query.trace.states.form(query.trace.states.first(tensor))
    dtype = None if form is None else dtype_of(form.dtype)
    return 0 if form is None or dtype is None else math.prod(form.shape) * dtype.itemsize
