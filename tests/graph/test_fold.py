"""Folding: that whatever is folded, every node is in exactly one thing, no way is lost and no cycle is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import MOST, FoldError, closed_by_default, find_scopes, fold, folded
from gradviz.graph.groups import REPEAT, RUN, SCOPE, Group, ancestors, groups
from gradviz.graph.model import DATA, GRAD, GROUP, LEAF, OP, TENSOR, Edge, Graph, Scope
from tests.graph.graph_samples import chain, program, programs
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]


@st.composite
def folded_somehow(draw: Callable) -> tuple[Graph, dict[str, Group], set[str], Graph]:
    """A graph, its groups, some of them to close, and what that gives."""
    graph = draw(programs())
    tree = groups(graph)
    closed = draw(st.sets(st.sampled_from(sorted(tree)))) if tree else set()
    return graph, tree, closed, fold(graph, tree, closed)


def homes(tree: dict[str, Group]) -> dict[str, str]:
    return {name: group.id for group in tree.values() for name in group.members}


def drawn_as(name: str, tree: dict[str, Group], closed: set[str]) -> str:
    """What stands for a node: the outermost closed group that it is in, or itself."""
    around = [group for group in ancestors(tree, homes(tree).get(name, "")) if group in closed]
    return around[-1] if around else name


def computes(edges: Iterable[Edge]) -> set[tuple[str, str]]:
    """The direction of the computation: data forward, and what gradients come back along, turned round."""
    return {(e.source, e.target) for e in edges if e.kind == DATA} | {
        (e.target, e.source) for e in edges if e.kind == GRAD
    }


def has_cycle(edges: set[tuple[str, str]]) -> bool:
    waits = Counter(target for _, target in edges)
    ready = [name for edge in edges for name in edge if not waits[name]]
    after: dict[str, list[str]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
    ready = list(dict.fromkeys(ready))
    done = 0
    while ready:
        for target in after.get(ready.pop(), ()):
            done += 1
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return done < len(edges)


# --- laws


@given(folded_somehow())
def test_every_node_is_in_exactly_one_thing_that_shows(case: tuple) -> None:
    graph, tree, closed, result = case
    members = Counter(name for group in tree.values() for name in group.members)
    assert all(count == 1 for count in members.values())
    assert set(members) <= set(graph.nodes)
    stands_for = Counter(drawn_as(name, tree, closed) for name in graph.nodes)
    shown = {name: sum(node.held.values()) or 1 for name, node in result.nodes.items()}
    assert shown == stands_for


@given(folded_somehow())
def test_every_edge_between_two_things_shows_and_no_other(case: tuple) -> None:
    graph, tree, closed, result = case
    expected: Counter = Counter()
    for edge in graph.edges:
        ends = drawn_as(edge.source, tree, closed), drawn_as(edge.target, tree, closed)
        if ends[0] != ends[1] or ends[0] == edge.source:
            expected[(*ends, edge.kind)] += 1
    found: Counter = Counter()
    for edge in result.edges:
        found[edge.source, edge.target, edge.kind] += edge.count
    assert found == expected


@given(folded_somehow())
def test_folding_makes_no_cycle(case: tuple) -> None:
    graph, _, _, result = case
    assert not has_cycle(computes(graph.edges))
    assert not has_cycle(computes(result.edges))


@given(folded_somehow())
def test_folding_leaves_the_graph_as_it_was(case: tuple) -> None:
    graph, tree, _, _ = case
    assert all(edge.count == 1 for edge in graph.edges)
    assert all(node.kind != GROUP for node in graph.nodes.values())
    assert fold(graph, tree, set()) is graph


@given(programs())
def test_a_tree_of_groups_is_a_tree(graph: Graph) -> None:
    tree = groups(graph)
    for group in tree.values():
        assert group.parent == "" or group.id in tree[group.parent].children
        assert [tree[child].parent for child in group.children] == [group.id] * len(group.children)
        assert group.members or group.children
        assert group.kind in (SCOPE, REPEAT, RUN)
    assert groups(graph) == tree  # the same ids, whenever it is asked


@given(programs(), st.integers(1, 80))
def test_so_many_things_show_at_most_unless_even_the_outermost_are_more(graph: Graph, most: int) -> None:
    tree = groups(graph)
    least = len(fold(graph, tree, set(tree)).nodes)
    result = fold(graph, tree, closed_by_default(graph, tree, most))
    assert len(result.nodes) <= max(most, least)


@given(programs(), st.integers(0, 4))
def test_depth_opens_so_many_levels(graph: Graph, depth: int) -> None:
    tree = groups(graph)
    result = folded(graph, depth=depth, rolled=False)
    shown = {name for name, node in result.nodes.items() if node.kind == GROUP}
    assert all(len(ancestors(tree, name)) == depth + 1 for name in shown)
    deep = [group for group in tree.values() if len(ancestors(tree, group.id)) == depth + 1]
    holds = {group.id for group in deep if any(group.id in ancestors(tree, home) for home in homes(tree).values())}
    assert shown == holds


@given(programs(), st.data())
def test_what_is_unfolded_shows_and_so_does_what_is_around_it(graph: Graph, data: st.DataObject) -> None:
    tree = groups(graph)
    if not tree:
        return
    name = data.draw(st.sampled_from(sorted(tree)))
    result = folded(graph, depth=0, unfold=[name], rolled=False)
    assert not set(result.nodes) & set(ancestors(tree, name))
    assert set(tree[name].members) <= set(result.nodes)


@settings(max_examples=30)
@given(programs())
def test_a_group_says_what_is_in_it(graph: Graph) -> None:
    tree = groups(graph)
    for group in fold(graph, tree, {name for name in tree if not tree[name].parent}).nodes.values():
        if group.kind == GROUP:
            within = [graph.nodes[n] for n, home in homes(tree).items() if group.id in ancestors(tree, home)]
            assert group.held == Counter(node.kind for node in within)
            assert group.ran == any(node.ran for node in within)
            assert group.requires_grad == any(node.requires_grad for node in within)


# --- what is found


def test_a_block_that_repeats_is_one_group_that_says_how_often() -> None:
    graph = program([(name, "", [0], True) for _ in range(7) for name in ("mul", "add", "relu")])
    tree = groups(graph)
    (outer,) = [group for group in tree.values() if not group.parent]
    assert (outer.kind, outer.label, outer.count) == (REPEAT, "mul · add · relu ×7", 7)
    first, again = (tree[child] for child in outer.children)
    assert (first.label, again.label, again.count) == ("1 of 7", "again ×6", 6)
    assert [graph.nodes[name].name for name in first.members if name.startswith("op")] == ["mul", "add", "relu"]


def test_blocks_in_blocks_are_found() -> None:
    inner = [("mul", "", [0], True), ("add", "", [0], True)] * 3
    graph = program([*inner, ("relu", "", [0], True)] * 4)
    labels = [group.label for group in groups(graph).values()]
    assert labels[0] == "mul · add ×3 · relu ×4"
    assert "mul · add ×3" in labels


@pytest.mark.slow
def test_the_blocks_of_a_network_are_drawn_once(traced: Traced) -> None:
    def transformer() -> None:
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(12)]
        torch.nn.Sequential(*layers)(torch.randn(1, 3, 8)).sum().backward()

    with traced(transformer) as trace:
        graph = build(trace)
    result = folded(graph, rolled=False)
    assert len(graph.nodes) > 2 * MOST > len(result.nodes)
    assert "2–11 ×10" in {node.name for node in result.nodes.values()}  # the first has less to differentiate


def test_ops_of_which_each_only_serves_the_next_are_one_run() -> None:
    names = ["mul", "add", "relu", "sin", "exp"]
    graph = program([(name, "", [0], True) for name in names])
    (group,) = groups(graph).values()
    assert (group.kind, group.label) == (RUN, "mul · add · relu …")


@pytest.mark.slow
@pytest.mark.parametrize("length", [400, 5_000])
def test_a_graph_of_any_size_is_folded_small(length: int) -> None:
    result = folded(chain(length))
    assert len(result.nodes) <= MOST
    hidden = sum(node.held.get(OP, 0) for node in result.nodes.values())
    assert f"folded: {hidden:,} ops into" in result.notes[0]


def test_a_small_graph_is_not_folded() -> None:
    graph = chain(10)
    assert folded(graph) is graph


def test_of_gradients_drawn_as_one_edge_the_odd_one_shows() -> None:
    graph = program([(name, "net", [0, 1], True) for name in ("mul", "add", "relu", "sin")])
    for number, edge in enumerate(graph.edges):
        edge.gradient = number if edge.kind == GRAD else 0
    tree = groups(graph)
    result = fold(graph, tree, set(tree))
    assert all(edge.gradient for edge in result.edges if edge.kind == GRAD)


# --- scopes by name


@pytest.mark.parametrize(("name", "found"), [("net", 1), ("net/1", 1), ("1", 1), ("deep", 1), ("g1", 1)])
def test_a_scope_is_found_by_path_end_of_path_label_and_id(name: str, found: int) -> None:
    steps = [("mul", scope, [0], True) for scope in ("net/0", "net/1", "net/1/deep")]
    assert len(find_scopes(groups(program(steps)), name)) == found


@pytest.mark.parametrize(
    ("name", "found"), [("Linear", ["net/0", "net/1"]), ("net.*", ["net/0", "net/1"]), ("Lin*", ["net/0", "net/1"])]
)
def test_scopes_are_found_by_class_and_by_pattern(name: str, found: list[str]) -> None:
    tree = groups(program([("mul", scope, [0], True) for scope in ("net/0", "net/1", "net/1/deep", "head")]))
    scopes = {"net/0": Scope("Linear", 1), "net/1": Scope("Linear", 1), "net/1/deep": Scope("Tanh", 1)}
    chosen = {tree[group].scope for group in find_scopes(tree, name, scopes)}
    assert chosen - {"net/1/deep"} == set(found)


def test_a_misspelt_class_gets_the_nearest() -> None:
    tree = groups(program([("mul", "net/0", [0], True)]))
    with pytest.raises(FoldError, match="there is no scope 'Liner': did you mean 'Linear'"):
        find_scopes(tree, "Liner", {"net/0": Scope("Linear", 1)})


def test_an_unknown_scope_gets_one_line_that_names_the_nearest() -> None:
    tree = groups(program([("mul", "encoder/layer", [0], True), ("add", "head", [0], True)]))
    with pytest.raises(FoldError, match="there is no scope 'encodr/layer': did you mean 'encoder/layer'"):
        find_scopes(tree, "encodr/layer")
    with pytest.raises(FoldError, match="there is no scope 'zzz': the scopes are encoder, encoder/layer, head"):
        find_scopes(tree, "zzz")
    with pytest.raises(FoldError, match="there is no scope 'zzz' in this graph"):
        find_scopes({}, "zzz")


def test_many_roots_of_one_op_are_one_box(traced: Traced) -> None:
    def run() -> None:
        x = torch.tensor([1.0] * 20, requires_grad=True)
        torch.autograd.grad((x * 2).unbind(), x)

    (roots,) = [node for node in folded(build(traced(run))).nodes.values() if node.kind == GROUP]
    assert (roots.label, roots.root, roots.held) == ("20 roots of unbind", True, {TENSOR: 20})


@pytest.mark.parametrize(("count", "is_folded"), [(4, False), (12, True)])
def test_leaves_that_are_too_many_for_the_width_of_a_page_are_one_box(
    traced: Traced, count: int, is_folded: bool
) -> None:
    def run() -> None:
        leaves = [torch.ones(2, requires_grad=True) for _ in range(count)]
        torch.stack(leaves).square().sum().backward()

    graph = build(traced(run))
    assert len(graph.nodes) < MOST
    shown = folded(graph)
    leaves = [node for node in shown.nodes.values() if node.kind == LEAF]
    assert (len(leaves), shown.rolled) == ((0, True) if is_folded else (count, False))
    assert len(folded(graph, rolled=False).nodes) == len(graph.nodes)
