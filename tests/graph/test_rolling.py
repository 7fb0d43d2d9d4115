"""Rolling: modules are one box each, and a loop is one box for each place in the program."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import FEW, closed_places, fold, folded
from gradviz.graph.groups import DATA_BOX, PLACE, RUN, SCOPE
from gradviz.graph.joined import beside
from gradviz.graph.model import DATA, GRAD, GROUP, LEAF, OP, TENSOR, Edge, Graph, Node
from gradviz.graph.roll import places
from gradviz.pictures.node_text import lines_of
from gradviz.pictures.scene import scene_of
from tests.graph.graph_samples import programs
from tests.graph.test_fold import computes, has_cycle
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]

STEPS = 10


class Recurrent(torch.nn.Module):
    """A cell at ten steps. At step `cut_at`, the state is detached."""

    def __init__(self, cut_at: int = -1) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 4)
        self.out = torch.nn.Linear(4, 2)
        self.cut_at = cut_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(1, 4)
        for step in range(STEPS):
            h = self.cell(x[step], h)
            if step == self.cut_at:
                h = h.detach()
        return self.out(h)


def rolled_of(model: torch.nn.Module, x: torch.Tensor, traced: Traced) -> Graph:
    def run() -> None:
        model(x).sum().backward()

    with traced(run) as trace:
        return folded(build(trace))


def boxes(graph: Graph) -> dict[str, Node]:
    return {node.name or "": node for node in graph.nodes.values() if node.kind == GROUP}


def between(graph: Graph, kind: str, source: str, target: str) -> list[Edge]:
    names = {node.id: node.name for node in graph.nodes.values()}
    return [e for e in graph.edges if (e.kind, names[e.source], names[e.target]) == (kind, source, target)]


# --- laws


@given(programs())
def test_every_node_is_in_exactly_one_box(graph: Graph) -> None:
    tree = places(graph)
    members = Counter(name for group in tree.values() for name in group.members)
    assert all(count == 1 for count in members.values())
    assert set(members) <= set(graph.nodes)
    assert {group.kind for group in tree.values()} <= {SCOPE, PLACE, DATA_BOX}
    for group in tree.values():
        assert [tree[child].parent for child in group.children] == [group.id] * len(group.children)
    assert places(graph) == tree  # the same ids, whenever it is asked


@given(programs())
def test_without_the_edges_that_close_a_loop_there_is_no_cycle(graph: Graph) -> None:
    tree = places(graph)
    result = fold(graph, tree, closed_places(graph, tree))
    assert not has_cycle(computes(edge for edge in result.edges if not edge.again))


@given(programs())
def test_an_operation_counts_at_its_place(graph: Graph) -> None:
    tree = places(graph)
    counted = sum(group.count for group in tree.values() if group.kind == PLACE)
    in_data = sum(
        graph.nodes[name].kind == OP for group in tree.values() if group.kind == DATA_BOX for name in group.members
    )
    assert counted + in_data == sum(node.kind == OP for node in graph.nodes.values())


# --- loops


def test_a_cell_at_ten_steps_is_one_box_with_an_edge_to_itself(traced: Traced) -> None:
    graph = rolled_of(Recurrent(), torch.randn(STEPS, 1, 3), traced)
    cell = boxes(graph)["cell"]
    assert (cell.count, cell.box and cell.box.type) == (STEPS, "GRUCell")
    (data,), (grad,) = (between(graph, kind, "cell", "cell") for kind in (DATA, GRAD))
    assert (data.again, data.count) == (grad.again, grad.count) == (True, STEPS - 1)
    assert "a box ×n ran n times" in graph.notes


def test_beside_modules_a_box_repeats_neither_its_look_nor_its_neighbour(traced: Traced) -> None:
    scene = scene_of(rolled_of(Recurrent(), torch.randn(STEPS, 1, 3), traced))
    told = {thing.lines[0][1]: [text for _, text in thing.lines[1:]] for thing in scene.things.values()}
    assert told["h"] == ["[1, 4] = [[0, 0, 0, 0]]"]  # grey says that it requires no grad
    assert told["getitem ×10 → [1, 3]"] == []
    assert told["sum"] == []  # its result has a box of its own
    assert any("leaf · requires_grad=False" in thing.tooltip for thing in scene.things.values())


def test_a_step_that_differs_shows_as_its_own(traced: Traced) -> None:
    graph = rolled_of(Recurrent(cut_at=4), torch.randn(STEPS, 1, 3), traced)
    assert boxes(graph)["detach"].count == 1
    (stop,) = between(graph, DATA, "cell", "detach")
    assert stop.cut == "detach"
    (on,) = between(graph, DATA, "detach", "cell")
    assert on.again
    assert between(graph, DATA, "cell", "cell")[0].count == STEPS - 2


def test_a_loop_without_modules_is_rolled_too(traced: Traced) -> None:
    def run() -> None:
        w = torch.randn(3, 3, requires_grad=True)
        h = torch.ones(3)
        for _ in range(40):
            h = torch.tanh(w @ h)
        h.sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace))
    assert {name: box.count for name, box in boxes(graph).items()} == {"mv": 40, "tanh": 40, "sum": 1}
    assert [node.name for node in graph.nodes.values() if node.kind == LEAF] == ["w", "h"]
    assert between(graph, DATA, "tanh", "mv")[0].count == 39


def test_calls_from_different_lines_share_the_box_of_a_module(traced: Traced) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def run() -> None:
        one = net(torch.ones(3, 2))
        two = net(torch.zeros(3, 2))
        (one - two).mean().backward()

    with traced(run) as trace:
        graph = folded(build(trace))
    assert {boxes(graph)[name].count for name in ("0", "1", "2")} == {2}


def test_unrolled_draws_each_step(traced: Traced) -> None:
    def run() -> None:
        Recurrent()(torch.randn(STEPS, 1, 3)).sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace), rolled=False)
    assert not graph.rolled
    assert not any(edge.again for edge in graph.edges)


# --- modules


def test_a_network_opens_as_its_modules(traced: Traced) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    graph = rolled_of(net, torch.ones(2, 4), traced)
    linears = [box for box in boxes(graph).values() if box.box and box.box.type == "Linear"]
    assert len(linears) == 6
    lines = [text for _, text in lines_of(linears[0], "both")]
    assert lines[:3] == ["0 · Linear", "[2, 4] → [2, 4]", "2 parameters, 20 elements"]
    assert lines[3].startswith(".grad norm ")


def test_a_module_without_gradients_says_so(traced: Traced) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))

    def run() -> None:
        net[3:](net[:3](torch.ones(2, 4)).detach()).sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace))
    health = {
        name: lines_of(box, "both")[-1][1] for name, box in boxes(graph).items() if box.box and box.box.parameters
    }
    assert [text.partition(" norm")[0] for text in health.values()] == [".grad = None"] * 3 + [".grad"] * 3


def test_a_frozen_module_says_so(traced: Traced) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    graph = rolled_of(net, torch.ones(2, 4), traced)
    assert [text for _, text in lines_of(boxes(graph)["0"], "both")][-1] == "frozen"


def test_the_data_of_a_network_is_one_box(traced: Traced) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(6)))

    def run() -> None:
        angle = torch.rand(8) * 6.28
        x = torch.stack([torch.cos(angle), torch.sin(angle)], 1) + 0.1 * torch.randn(8, 2)
        net(x).sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace))
    (data,) = [box for box in boxes(graph).values() if box.op == DATA_BOX]
    assert data.held[OP] == 6
    assert not data.requires_grad


def test_a_root_stays_visible(traced: Traced) -> None:
    graph = rolled_of(Recurrent(), torch.randn(STEPS, 1, 3), traced)
    assert [node.shape for node in graph.nodes.values() if node.root and node.kind == TENSOR] == [()]


def test_a_small_network_is_drawn_op_by_op(traced: Traced) -> None:
    graph = rolled_of(torch.nn.Linear(2, 1), torch.ones(1, 2), traced)
    assert not graph.rolled
    assert len(graph.nodes) <= FEW


def test_the_ranks_of_one_training_have_modules_of_their_own_beside_each_other(traced: Traced) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def run() -> None:
        (net(torch.ones(3, 2)) - net(torch.zeros(3, 2))).mean().backward()

    with traced(run) as trace:
        graph = build(trace)
    both = folded(beside([graph, graph], ["rank 0", "rank 1"]))
    linears = [box for box in both.nodes.values() if box.box is not None and box.box.type == "Linear"]
    assert [box.count for box in linears] == [2, 2, 2, 2]
    assert {box.scope.partition("/")[0] for box in linears} == {"rank 0", "rank 1"}


# --- modules without parameters


class Dropping(torch.nn.Module):
    """One dropout and one rectifier behind each of two layers."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(width, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.drop, self.act = torch.nn.Dropout(0.2), torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.act(self.fc1(x)))
        x = self.drop(self.act(self.fc2(x)))
        return self.fc3(x)


def modules_of(graph: Graph) -> list[tuple[str | None, int]]:
    """The modules of a picture in their order, each with how often it ran."""
    return [(node.name, node.count) for node in graph.nodes.values() if node.op == SCOPE]


@pytest.mark.slow
def test_a_dropout_behind_each_layer_is_a_box_behind_each(traced: Traced) -> None:
    graph = rolled_of(Dropping(), torch.randn(2, 3), traced)
    assert not has_cycle({(edge.source, edge.target) for edge in graph.edges if edge.kind == DATA})
    assert modules_of(graph) == [
        ("fc1", 1), ("act", 1), ("drop", 1), ("fc2", 1), ("act", 1), ("drop", 1), ("fc3", 1)
    ]  # fmt: skip


def test_so_it_is_in_a_sequence_that_has_it_twice(traced: Traced) -> None:
    act = torch.nn.Tanh()
    layers = [torch.nn.Linear(3, 4), act, torch.nn.Linear(4, 4), act, act, torch.nn.Linear(4, 1)]
    graph = rolled_of(torch.nn.Sequential(*layers), torch.randn(2, 3), traced)
    assert not has_cycle({(edge.source, edge.target) for edge in graph.edges if edge.kind == DATA})
    assert modules_of(graph) == [("0", 1), ("1", 1), ("2", 1), ("1", 1), ("1", 1), ("5", 1)]


class Looping(torch.nn.Module):
    """A rectifier in a loop over one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.act = (torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(STEPS):
            x = self.act(self.cell(x))
        return x


def test_in_a_loop_over_a_layer_it_is_one_box(traced: Traced) -> None:
    graph = rolled_of(Looping(), torch.randn(2, 4), traced)
    assert modules_of(graph) == [("cell", STEPS), ("0", STEPS), ("1", STEPS)]


def test_the_calls_of_a_box_are_counted(traced: Traced) -> None:
    graph = rolled_of(torch.nn.Sequential(Looping(), Dropping(4)), torch.randn(2, 4), traced)
    counted = Counter(name for name, _ in modules_of(graph))
    assert counted["drop"] == counted["act"] == 2
    assert {count for name, count in modules_of(graph) if name in ("drop", "act")} == {1}


def test_a_parameter_that_was_written_before_is_in_its_module(traced: Traced) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def run() -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)
        net(torch.ones(2, 3)).sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace), depth=0)
    assert boxes(graph).keys() >= {"net", "mul_"}
    assert between(graph, DATA, "mul_", "net")
    assert between(graph, GRAD, "net", "mul_") == []
    assert between(graph, DATA, "net", "net") == []


def test_a_leaf_that_was_written_before_stays_visible(traced: Traced) -> None:
    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            w.mul_(0.5)
        (w * torch.ones(3)).exp().sum().backward()

    with traced(run) as trace:
        graph = build(trace)
    (written,) = (node.id for node in graph.nodes.values() if node.name == "w" and node.has_grad)
    assert any(graph.nodes[e.source].name == "mul_" for e in graph.edges if (e.kind, e.target) == (DATA, written))
    assert written not in {name for group in places(graph).values() for name in group.members}


class Stages(torch.nn.Module):
    """Stages that differ, each with its layers in a sequence."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for stage in range(count):
            size = 2 + stage
            setattr(self, f"stage{stage}", Stage(size))
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in range(self.count):
            x = getattr(self, f"stage{stage}")(x)
        return x


class Stage(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        layers = [torch.nn.Linear(size, size), torch.nn.Tanh(), torch.nn.Linear(size, size + 1), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_a_picture_that_would_be_higher_than_a_page_shows_outer_modules(traced: Traced) -> None:
    shown = boxes(rolled_of(Stages(9), torch.randn(3, 2), traced))
    assert {f"stage{number}" for number in range(9)} <= shown.keys()
    assert not {"net", "0", "1"} & shown.keys()


def test_one_that_fits_shows_the_inner_ones(traced: Traced) -> None:
    shown = boxes(rolled_of(Stages(5), torch.randn(3, 2), traced))
    assert {"0", "1", "2", "3"} <= shown.keys()


def test_depth_is_asked_for_whatever_the_height(traced: Traced) -> None:
    def run() -> None:
        Stages(9)(torch.randn(3, 2)).sum().backward()

    with traced(run) as trace:
        graph = folded(build(trace), depth=3)
    assert {"0", "1", "2", "3"} <= boxes(graph).keys()


class Skipping(torch.nn.Module):
    """Layers that go down, and others that go up, each of which gets what is behind one of the first, too."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.down = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)])
        ups = 1 if shared else 4
        self.up = torch.nn.ModuleList([torch.nn.Linear(8, 4) for _ in range(ups)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = []
        for layer in self.down:
            x = torch.tanh(layer(x))
            held.append(x)
        for number in range(4):
            x = self.up[number % len(self.up)](torch.cat([x, held.pop()], 1))
        return x


def places_called(name: str, shared: bool, traced: Traced) -> list[int]:
    """How often each place of an op of this name ran."""

    def run() -> None:
        Skipping(shared)(torch.ones(2, 4)).sum().backward()

    with traced(run) as trace:
        groups = places(build(trace, 1)).values()
    return [group.count for group in groups if group.kind == PLACE and group.label == name]


def test_an_operation_in_a_loop_over_layers_is_a_box_behind_each(traced: Traced) -> None:
    assert places_called("tanh", False, traced) == [1, 1, 1, 1]
    assert places_called("cat", False, traced) == [1, 1, 1, 1]


def test_one_in_a_loop_that_repeats_a_layer_is_one_box(traced: Traced) -> None:
    assert places_called("cat", True, traced) == [4]


def test_so_it_is_in_a_loop_that_repeats_a_parameter_of_no_module(traced: Traced) -> None:
    def run() -> None:
        w = torch.ones(4, 4, requires_grad=True)
        h = torch.ones(2, 4)
        for _ in range(2):
            h = torch.tanh(torch.relu(h) @ w)
        h.sum().backward()

    with traced(run) as trace:
        groups = places(build(trace, 1)).values()
    counts = {group.label: group.count for group in groups if group.kind == PLACE}
    assert [counts[name] for name in ("relu", "tanh")] == [2, 2]


class Targeted(torch.nn.Module):
    """A network, and one of which only values are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(8)))
        self.target = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.target(x)
        return self.own(x) - wanted


def test_a_network_under_no_grad_is_told_and_not_accused(traced: Traced) -> None:
    graph = rolled_of(Targeted(), torch.ones(2, 4), traced)
    told = {
        node.id: {text: role for role, text in lines_of(node, "both")}
        for node in graph.nodes.values()
        if node.kind == GROUP and node.box is not None and node.box.parameters
    }
    off = [lines for lines in told.values() if "under no_grad" in lines]
    assert off
    for lines in off:
        assert lines[".grad = None"] == "fact"
        assert "a gradient stops inside" not in lines
    assert len(off) < len(told)


def test_a_pass_with_a_network_under_no_grad_is_not_chosen_for_it(traced: Traced) -> None:
    """Of two passes the one that learns is shown, not the one that measures what was learned."""

    def run() -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
        probe = torch.nn.Linear(4, 1)
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            learned = torch.tanh(model(torch.ones(2, 4)))
        probe(learned).sum().backward()
        probe(torch.tanh(model(torch.ones(2, 4))).detach()).mean().backward()

    with traced(run) as trace:
        graph = build(trace)
    assert (graph.pass_number, graph.why) == (3, "with the first cut")


class Adding(torch.nn.Module):
    """Adds to what it begins with, and to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(2, 3)
        return (total + self.layer(x)) * shared


class Sharing(torch.nn.Module):
    """Makes what two modules read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Adding(), Adding()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((2, 3), 2.0)
        return self.two(self.one(x, scale), scale)


def test_what_only_a_module_reads_that_made_it_is_in_its_box(traced: Traced) -> None:
    with traced(lambda: Sharing()(torch.ones(2, 3)).sum().backward()) as trace:
        graph = folded(build(trace), depth=1)
    names = [node.name for node in graph.nodes.values()]
    assert {"one", "two", "scale"} <= set(names)
    assert "total" not in names


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_no_frame_is_around_one_closed_box(traced: Traced) -> None:
    blocks = torch.nn.Sequential()
    for name in "abcdefghijklmnopqrstuvwx":  # with numbers for names they would be one box of equal blocks
        blocks.add_module(name, Wrapped())
    graph = rolled_of(blocks, torch.randn(1, 2), traced)
    closed = [node for node in graph.nodes.values() if node.op == SCOPE]
    assert {node.box.type for node in closed if node.box} == {"Wrapped"}


class Wider(torch.nn.Module):
    """A block of the program's own, wider than the one before it, and so equal to no other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width + 1)
        self.shift = torch.nn.Linear(width, width + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x).tanh() * 2 + self.shift(x)).exp().tanh().sin().abs()


@pytest.mark.slow
def test_blocks_of_one_class_are_all_open_or_all_shut(traced: Traced) -> None:
    opened = {}
    for count in (3, 4, 5, 6):
        net = torch.nn.Sequential(*(Wider(width + 2) for width in range(count)))
        graph = rolled_of(net, torch.ones(2, 2), traced)
        shut = [node.box.type for node in graph.nodes.values() if node.box is not None].count("Wider")
        opened[count] = count - shut
    assert opened == {3: 3, 4: 0, 5: 0, 6: 0}


def learned_in_inner_steps(traced: Traced) -> Graph:
    """Two tasks, each with two inner steps, as in MAML."""

    def run() -> None:
        w = torch.randn(3, 3, requires_grad=True)
        total = torch.zeros(())
        for _ in range(2):
            x, own = torch.randn(4, 3), w
            for _ in range(2):
                inner = (torch.tanh(x @ own) ** 2).mean()
                (step,) = torch.autograd.grad(inner, own, create_graph=True)
                own = own - 0.1 * step
            total = total + (torch.tanh(x @ own) ** 2).mean()
        total.backward()

    with traced(run) as trace:
        return folded(build(trace, 5), rolled=True)


def test_passes_that_ran_the_same_operations_are_one_box(traced: Traced) -> None:
    inner = [node for node in learned_in_inner_steps(traced).nodes.values() if node.op == RUN]
    assert [(node.name, node.count) for node in inner] == [("passes 1 to 4", 4)]


def test_the_same_layer_with_other_weights_is_the_same_layer(traced: Traced) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2), torch.nn.ReLU())

    def run() -> None:
        weights = dict(net.named_parameters())
        for _ in range(4):
            weights = {name: weight * 2 for name, weight in weights.items()}
            loss = torch.func.functional_call(net, weights, (torch.randn(1, 2),)).sum() + net(torch.randn(1, 2)).sum()
        loss.backward()

    with traced(run) as trace:
        shown = [node.name for node in folded(build(trace), rolled=True).nodes.values() if node.op == SCOPE]
    assert sorted(name or "" for name in shown) == ["0", "1", "2", "3"]


class Tied(torch.nn.Module):
    """A language model whose last layer has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 2)
        self.body = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))
        self.head = torch.nn.Linear(2, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(x)))


def test_a_module_says_which_parameter_of_another_it_reads(traced: Traced) -> None:
    shown = boxes(rolled_of(Tied(), torch.tensor([1, 2, 3]), traced))
    assert lines_of(shown["head"], "both")[1:] == [
        ("value", "[3, 2] → [3, 5]"),
        ("fact", "reads model.embedding.weight as weight"),
    ]
    assert lines_of(shown["embedding"], "both")[1] == ("value", "[3] → [3, 2]")


def test_accumulators_are_in_their_modules_where_no_leaf_is_shown(traced: Traced) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))
    with traced(lambda: net(torch.randn(1, 2)).sum().backward()) as trace:
        graph = folded(build(trace, 1, "backward"), depth=1, rolled=True)
    assert not [node for node in graph.nodes.values() if node.grad_fn == "AccumulateGrad"]
    closed = [node for node in graph.nodes.values() if node.op == SCOPE]
    assert len(closed) == 12
    assert all(node.held["grad_fn"] > 2 for node in closed)


@pytest.mark.torch
def test_a_counter_of_a_module_is_no_result_of_it(traced: Traced) -> None:
    pytorch = pytest.importorskip("torch", reason="pip install torch")

    def program() -> None:
        net = pytorch.nn.Sequential(pytorch.nn.Linear(3, 4), pytorch.nn.BatchNorm1d(4), pytorch.nn.Linear(4, 2))
        net(pytorch.randn(5, 3)).pow(2).mean().backward()

    graph = folded(build(traced(program)), 1)
    (norm,) = (node for node in graph.nodes.values() if node.name == "1")
    assert norm.box is not None
    assert list(norm.box.gives) == ["[5, 4]"]
