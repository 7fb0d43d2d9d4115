"""The graphs of the ranks of one run as one, with the differences between ranks at each node."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gradviz.graph import model
from gradviz.query.query import Query
from gradviz.query.ranks import alike
from gradviz.query.reduced_gradients import reduced_gradients
from gradviz.query.replicas import Replicas
from gradviz.sets import grouped
from gradviz.tracefile import Snapshot

_Held = Snapshot | str | None
_Key = tuple[object, ...]


def over_ranks(graphs: Mapping[int, model.Graph], queries: Mapping[int, Query]) -> model.Graph:
    """One graph for the same pass of several ranks: the graph of the first rank, with the nodes that only other ranks
    have. A node has the values of the first rank that has it. The parameters, their gradients (after collectives), the
    shapes, the collectives, errors and findings are compared; what each rank computes from its own data is not.

    Ranks that train on what other ranks send them are the stages of a pipeline: each has a frame of its own, and they
    are not compared."""
    (first, joined), *_ = graphs.items()
    are_stages = any(map(_is_stage, graphs.values()))
    scopes = {rank: graph.scopes for rank, graph in graphs.items()}
    keys = {rank: _keys(graph, rank if are_stages else -1) for rank, graph in graphs.items()}
    ids: dict[_Key, str] = {}  # in the joined graph
    for rank, graph in graphs.items():
        for key, id_of_rank in keys[rank].items():
            ids.setdefault(key, id_of_rank if rank == first else f"r{rank}:{id_of_rank}")
        if rank != first:
            _add(joined, graph, {id_of_rank: ids[key] for key, id_of_rank in keys[rank].items()})
    reduced = {rank: _reduced(graph, queries[rank]) for rank, graph in graphs.items()}
    parts = dict(zip(queries, Replicas(queries).own_parts, strict=True))
    for key, joined_id in ids.items():
        own_ids = {rank: keys[rank].get(key, "") for rank in graphs}
        nodes = {rank: graphs[rank].nodes.get(id_of_rank) for rank, id_of_rank in own_ids.items()}
        joined.nodes[joined_id].apart = tuple(_differences(nodes, reduced, parts))
        joined.nodes[joined_id].finding = _finding(nodes)
    if are_stages:
        _frame_ranks(joined, keys, scopes)
    else:
        joined.notes.append(f"values of rank {first}")
    if count := sum(_is_part(first, node, parts) for node in joined.nodes.values() if node.kind == model.LEAF):
        joined.notes.append(
            f"each rank has its own values of {count} {'leaf' if count == 1 else 'leaves'}: not compared"
        )
    return joined


def of_first_rank(joined: model.Graph) -> model.Graph:
    """The part of a joined graph that its first rank has, with the differences at its nodes, and a note of the rest."""
    nodes = {name: node for name, node in joined.nodes.items() if ":" not in name}
    edges = [edge for edge in joined.edges if edge.source in nodes and edge.target in nodes]
    others = len(joined.nodes) - len(nodes)
    notes = [f"{others:,} node{'s' * (others != 1)} only on other ranks"] if others else []
    return replace(joined, nodes=nodes, edges=edges, notes=[*joined.notes, *notes])


def _frame_ranks(
    joined: model.Graph, keys: Mapping[int, Mapping[_Key, str]], scopes: Mapping[int, Mapping[str, model.Scope]]
) -> None:
    """Draw a frame around the nodes of each rank, which are a stage of a pipeline, and edges for what the ranks send to
    one another. Modules of one name are of another class on another rank."""
    joined.scopes = {}
    first = next(iter(keys))
    nodes_of = {
        rank: [joined.nodes[own_id if rank == first else f"r{rank}:{own_id}"] for own_id in of_rank.values()]
        for rank, of_rank in keys.items()
    }
    for rank, nodes in nodes_of.items():
        joined.scopes[f"rank {rank}"] = model.Scope("", 1)
        for node in nodes:
            node.apart = ()
            joined.scopes |= {f"rank {rank}/{path}": scopes[rank][path] for path in model.scopes_around(node.scope)}
            node.scope = f"rank {rank}/{node.scope}".rstrip("/")
    received = {
        (exchange.rank, rank, exchange.whose): node
        for rank, nodes in nodes_of.items()
        for node in nodes
        for exchange in node.exchanges
        if exchange.how == model.RECEIVE
    }
    for rank, nodes in nodes_of.items():
        for node in nodes:
            joined.edges += _edges_to_other_ranks(rank, node, received, joined)


def _edges_to_other_ranks(
    rank: int, node: model.Node, received: Mapping[tuple[int | None, int, str], model.Node], joined: model.Graph
) -> Iterable[model.Edge]:
    """The edges from what a rank sends at a node to where another rank receives it in the same pass: an activation, or
    the gradient of one."""
    for exchange in node.exchanges:
        if exchange.how != model.SEND or exchange.rank is None:
            continue
        is_gradient = exchange.whose == ".grad"
        target = received.get((rank, exchange.rank, "gradient" if is_gradient else ""))
        if target is not None and is_gradient:
            accumulator = node.pair if node.pair in joined.nodes else node.id
            yield model.Edge(accumulator, target.id, model.GRAD, "send", gradient=exchange.tensor, value=node.grad)
        elif target is not None and target.shape == node.shape:
            yield model.Edge(node.id, target.id, model.DATA, "send")


def _is_stage(graph: model.Graph) -> bool:
    """Whether a rank got from another rank a leaf that requires grad, or the gradient of a root."""
    return any(
        one.how == model.RECEIVE and (one.whose == "gradient" or bool(node.requires_grad))
        for node in graph.nodes.values()
        for one in node.exchanges
    )


def _keys(graph: model.Graph, stage: int = -1) -> dict[_Key, str]:
    """The ids of the nodes by a key that is the same on all ranks: the kind, the name, the leaf of an AccumulateGrad,
    the place, and the position among nodes that agree in these. A parameter has no place, since a write on one rank
    moves it to another line. The keys of a `stage` have its number."""
    seen: Counter[_Key] = Counter()
    ids: dict[_Key, str] = {}
    for node in graph.nodes.values():
        leaf = node.base if node.kind == model.GRAD_FN else ""
        is_parameter = node.kind == model.LEAF and node.parameter and node.name
        made = () if is_parameter else (node.op, node.grad_fn, node.file, node.line, node.col)
        key: _Key = (node.kind, node.name, leaf, node.scope, *made)
        ids[stage, *key, seen[key]] = node.id
        seen[key] += 1
    return ids


def _add(joined: model.Graph, graph: model.Graph, ids: Mapping[str, str]) -> None:
    """Add the nodes of a graph that the joined graph lacks, and their edges."""
    for node in graph.nodes.values():
        if ids[node.id] not in joined.nodes:
            pair, maker = ids.get(node.pair, ""), ids.get(node.maker, "")
            joined.nodes[ids[node.id]] = replace(node, id=ids[node.id], pair=pair, maker=maker)
    joined.scopes = {**graph.scopes, **joined.scopes}
    known = {(edge.source, edge.target, edge.kind) for edge in joined.edges}
    for edge in graph.edges:
        source, target = ids.get(edge.source, ""), ids.get(edge.target, "")
        if source and target and (source, target, edge.kind) not in known:
            joined.edges.append(replace(edge, source=source, target=target))
    joined.error = joined.error or graph.error


def _reduced(graph: model.Graph, query: Query) -> dict[int, Snapshot | None]:
    """The gradients of a graph's pass after collectives, by leaf."""
    run = query.trace.find_pass(graph.pass_number) if graph.pass_number is not None else None
    return reduced_gradients(query, run) if run is not None else {}


def _differences(
    nodes: Mapping[int, model.Node | None],
    reduced: Mapping[int, Mapping[int, Snapshot | None]],
    parts: Mapping[int, Collection[int]],
) -> Iterable[model.Apart]:
    """The differences between ranks at a node. `parts` are the parameters that each rank has for itself."""
    there = {rank: node for rank, node in nodes.items() if node is not None}
    if len(there) < len(nodes):
        yield _held("node", {rank: "" if node is not None else None for rank, node in nodes.items()})
    first = next(iter(there.values()))
    if first.kind in (model.LEAF, model.TENSOR, model.OP):
        yield from _unlike(
            "shape", {rank: None if node.shape is None else str(node.shape) for rank, node in there.items()}
        )
    yield from _unlike("error", {rank: node.error or None for rank, node in there.items()})
    if not (first.is_leaf and first.requires_grad) or first.overwritten:
        return
    if any(_is_part(rank, node, parts) for rank, node in there.items()):
        return
    yield from _unlike("value", {rank: node.value for rank, node in there.items()})
    yield from _unlike("collectives", {rank: node.collectives or None for rank, node in there.items()})
    gradients = {
        rank: reduced[rank].get(node.number, node.grad) if node.has_grad else None for rank, node in there.items()
    }
    yield from _unlike(".grad", gradients)


def _is_part(rank: int, node: model.Node, parts: Mapping[int, Collection[int]]) -> bool:
    return node.kind in (model.LEAF, model.TENSOR) and node.number in parts[rank]


def _unlike(what: str, values: Mapping[int, _Held]) -> Iterable[model.Apart]:
    """The values of the ranks, if they are not the same on all."""
    apart = _held(what, values)
    if len(apart.held) > 1:
        yield apart


def _held(what: str, values: Mapping[int, _Held]) -> model.Apart:
    """The values of the ranks, each value with the ranks that have it."""
    held = [*values.values()]
    values_held = [one for one in held if not isinstance(one, str)]
    is_text = len(values_held) < len(held)
    firsts = [held.index(one) for one in held] if is_text else alike(values_held)
    ranks_of = grouped(zip(firsts, values, strict=True))
    return model.Apart(what, tuple((held[first], tuple(ranks)) for first, ranks in ranks_of.items()))


def _finding(nodes: Mapping[int, model.Node | None]) -> str:
    """The finding of the first rank that has one, with the rank unless all ranks have a finding."""
    findings = {rank: node.finding for rank, node in nodes.items() if node is not None and node.finding}
    if not findings:
        return ""
    rank, text = next(iter(findings.items()))
    return text if len(findings) == len(nodes) else f"on rank {rank}: {text}"


# Several graphs as one, side by side: of the ranks of one training, or of several passes of one run.


def beside(graphs: Sequence[model.Graph], labels: Sequence[str]) -> model.Graph:
    """One graph with a scope for each of `graphs`, named by its label. Ids get the number of the graph before them:
    `2:t12`."""
    first = graphs[0]
    joined = model.Graph(first.script, first.pass_number, first.passes, first.show, title=first.title)
    joined.error = next((graph.error for graph in graphs if graph.error), "")
    joined.left_out = sum(graph.left_out for graph in graphs)
    for number, (graph, label) in enumerate(zip(graphs, labels, strict=True), 1):
        joined.notes += [f"{label}: {note}" for note in graph.notes]
        of = f"{number}:".__add__
        for node in graph.nodes.values():
            scope = f"{label}/{node.scope}" if node.scope else label
            pair, maker = (of(name) if name else "" for name in (node.pair, node.maker))
            joined.nodes[of(node.id)] = replace(node, id=of(node.id), scope=scope, pair=pair, maker=maker)
        joined.scopes |= {f"{label}/{path}": known for path, known in graph.scopes.items()}
        joined.edges += [replace(edge, source=of(edge.source), target=of(edge.target)) for edge in graph.edges]
    return joined


def passes_beside(graphs: Sequence[model.Graph]) -> model.Graph:
    """The graphs of several passes of one run, side by side."""
    first = graphs[0]
    joined = beside(graphs, [f"pass {graph.pass_number}" for graph in graphs])
    joined.side_by_side = tuple(graph.pass_number or 0 for graph in graphs)
    joined.title = first.title if all(graph.title == first.title for graph in graphs) else ""
    ops = [{node.id for node in graph.nodes.values() if node.kind == model.OP} for graph in graphs]
    joined.left_out = first.left_out + len(ops[0]) - len(set().union(*ops))
    return joined
