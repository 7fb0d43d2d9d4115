"""Graphs as Hypothesis makes them up: programs of any shape, in nested scopes, with leaves used again and again."""

from __future__ import annotations

from hypothesis import strategies as st

from gradviz.graph.model import DATA, GRAD, GRAD_FN, LEAF, OP, SAVED, TENSOR, Edge, Graph, Node

_SCOPES = ["", "net", "net/0", "net/1", "net/1/deep", "head"]


def program(steps: list[tuple[str, str, list[int], bool]], leaves: int = 3) -> Graph:
    """The graph of a program: each step is an op's name, its scope, which earlier tensors it reads (counted back
    from the newest), and whether a grad_fn belongs to it."""
    graph = Graph(script="made_up.py", pass_number=1, passes=1)
    tensors: list[str] = []
    fn_of: dict[str, str] = {}
    for number in range(1, leaves + 1):
        leaf = Node(f"t{number}", LEAF, number, f"w{number}", is_leaf=True, requires_grad=True, shape=(2,))
        leaf.pair = fn_of[leaf.id] = f"n{number}"
        graph.nodes[leaf.id] = leaf
        graph.nodes[leaf.pair] = Node(leaf.pair, GRAD_FN, number, "AccumulateGrad", grad_fn="AccumulateGrad")
        tensors.append(leaf.id)
    for number, (name, scope, reads, has_fn) in enumerate(steps, leaves + 1):
        op, out, fn = f"op{number}", f"t{number}", f"n{number}"
        graph.nodes[op] = Node(op, OP, number, name, name, scope=scope, line=number, file="made_up.py")
        graph.nodes[out] = Node(out, TENSOR, number, scope=scope, shape=(2,), is_leaf=False)
        graph.nodes[out].requires_grad = has_fn
        sources = [tensors[-1 - back % len(tensors)] for back in reads]
        graph.edges += [Edge(source, op, DATA) for source in sources]
        graph.edges.append(Edge(op, out, DATA))
        if has_fn:
            graph.nodes[op].pair, graph.nodes[op].grad_fn, fn_of[out] = fn, f"{name}Backward0", fn
            graph.nodes[fn] = Node(fn, GRAD_FN, number, f"{name}Backward0", name, scope=scope, ran=True)
            graph.edges += [Edge(fn, fn_of[source], GRAD) for source in sources if source in fn_of]
            graph.edges += [Edge(source, fn, SAVED) for source in dict.fromkeys(sources[:1])]
        tensors.append(out)
    return graph


def programs(most: int = 60) -> st.SearchStrategy[Graph]:
    """Graphs of up to `most` ops: any ops, and blocks of them that repeat."""
    step = st.tuples(
        st.sampled_from(["mul", "add", "relu", "sin"]),
        st.sampled_from(_SCOPES),
        st.lists(st.integers(0, 12), max_size=2),
        st.booleans(),
    )
    block = st.lists(step, min_size=1, max_size=6)
    repeated = st.tuples(block, st.integers(1, 5)).map(lambda found: found[0] * found[1])
    return st.lists(repeated, max_size=8).map(lambda blocks: program([s for b in blocks for s in b][:most]))


def chain(length: int, block: int = 4) -> Graph:
    """A training step's forward and backward: `length` ops one after the other, one leaf used by all of them."""
    names = ["mul", "add", "tanh", "sum"]
    steps = [(names[i % len(names)], f"net/{i // block}", [0, i], True) for i in range(length)]
    return program(steps, leaves=1)
