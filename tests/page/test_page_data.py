"""The data of a page, without a browser: what its views share stays true of each."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
from gradviz import page
from gradviz.engine.autograd import forward_ad
from gradviz.events.kinds import Kind
from gradviz.graph.build import build
from gradviz.page import views
from gradviz.page.views import Trees
from gradviz.query import Query
from gradviz.words import Stop, Words
from gradviz.words.numbers import value_label
from gradviz.words.rows import rows


def trained(steps: int) -> None:
    """A network with a loop in it. Its third step has another structure, its fourth a NaN and no other."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    x = torch.randn(2, 3)
    for step in range(steps):
        h = x
        for _ in range(3 if step == 2 else 2):
            h = torch.tanh(model(h))
        loss = h.sum() * (float("nan") if step == 3 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Query:
    path = tmp_path_factory.mktemp("page") / "run.gradviz"
    with gradviz.record(path):
        trained(6)
    return Query(gradviz.open(path))


def test_the_groups_of_a_pass_are_those_that_it_has_alone(query: Query) -> None:
    shared, asked = Trees(), []
    for number in range(1, 7):
        graph = build(query, number)
        assert shared.of(graph) == Trees().of(graph)
        asked.append(graph)
    members = {name for group in shared.of(asked[1])["each"]["groups"] for name in group["members"]}
    assert members <= set(asked[1].nodes)
    assert len(members) > 20


def test_the_box_of_an_op_has_the_arguments_that_are_not_usual(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        x = torch.tensor([2.0, 3.0], requires_grad=True)
        (x.clamp(min=1) ** 3).sum().backward()
    trace = gradviz.open(tmp_path / "run.gradviz")
    nodes = views.view(build(trace, 1), trace.passes[0], views.Shared(Words(trace)))["nodes"]
    shown = {node["op"]: node.get("shownArgs", "") for node in nodes if node["kind"] == "op"}
    assert shown == {"clamp": "min=1", "pow": "exponent=3", "sum": ""}


def test_graphs_of_one_structure_are_grouped_once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    import gradviz.page.views as trees

    times = []
    known = trees.groups
    monkeypatch.setattr(trees, "groups", lambda graph: times.append(graph.pass_number) or known(graph))
    shared = Trees()
    for number in range(1, 7):
        shared.of(build(query, number))
    assert times == [1, 2, 3, 4]  # 1 is before the first step of SGD; 5 and 6 are like 2


def test_a_name_that_differs_is_another_structure(query: Query) -> None:
    shared = Trees()
    graph = build(query, 1)
    shared.of(graph)
    op = next(node for node in graph.nodes.values() if node.op == "sum")
    op.name = "total"
    assert shared.of(graph) == Trees().of(graph)


@pytest.mark.slow
def test_the_making_of_a_page_says_which_pass_it_is_at(query: Query) -> None:
    said: list[str] = []
    page.html(query.trace, lambda number: build(query, number), doing=said.append)
    count = len(query.trace.passes)
    assert said == [f"pass {turn} of at most {count}" for turn in range(2, count + 1)]


def test_a_page_of_many_passes_is_the_same_when_made_again(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with gradviz.record(path):
        trained(4)

    def made() -> str:
        with gradviz.open(path) as trace:
            asking = Query(trace)
            return page.html(trace, lambda number: build(asking, number))

    assert made() == made()


@pytest.mark.slow
@pytest.mark.parametrize(("passes", "held"), [({4, 5, 9}, [4, 5, 9]), ({7}, [1, 7]), ({30}, [1, 7, 12])])
def test_a_page_holds_the_passes_that_were_recorded_in_detail(
    passes: set[int], held: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_PASSES", 3)
    with gradviz.record(tmp_path / "run.gradviz", passes=passes):
        trained(12)
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        asking = Query(trace)
        text = page.html(trace, lambda number: build(asking, number), held[0])
    assert sorted(json.loads(re.findall(r'"held":(\[[^]]*\])', text)[0])) == held
    assert len(json.loads(re.findall(r'"passes":(\[.*?\]\])', text)[0])) == 12


def test_a_view_has_the_values_at_its_own_events_and_none_of_other_passes(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        x = torch.ones(2) * 3  # made before the first pass, and used in each
        for _ in range(40):
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()
    query = Query(gradviz.open(tmp_path / "run.gradviz"))
    graph, run = build(query, 30), query.trace.find_pass(30)
    shown = views.view(graph, run, views.Shared(views.Words(query.trace)))
    w_number = next(node.number for node in graph.nodes.values() if node.name == "w")
    entries = shown["tensors"][w_number]["v"]
    assert len(entries) <= 4
    for step in shown["steps"]:
        now = [entry for entry in entries if entry[0] <= step["k"]][-1]
        value = query.memory.value(w_number, step["k"])
        assert now[2] == value_label(value)


def chain_of_products() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    y = x
    for _ in range(30):
        y = y * x
    y.backward()


def written_by_a_hook() -> None:
    a, b = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    p, q = a.exp(), b.exp()
    held = []
    (p * 1 + q * 1).register_hook(held.append)
    total = p * 2 + q * 3
    p.register_hook(lambda g: held.append(g))
    q.register_hook(lambda g: held[-1].mul_(2) if held else None)
    (total + p).sum().backward()


def pass_within_a_pass() -> None:
    a, w = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    h = a.exp()

    def inner(g: torch.Tensor) -> None:
        with torch.enable_grad():
            (w * w + w).sum().backward()

    h.register_hook(inner)
    (h * a + h.sin() * a).sum().backward()


def several_outputs() -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    low, high = a.unbind()
    (low * high + low).sum().backward()


WAITING = [chain_of_products, written_by_a_hook, pass_within_a_pass, several_outputs]


@pytest.mark.slow
@pytest.mark.parametrize("program", WAITING, ids=lambda program: program.__name__)
def test_the_page_shows_the_gradients_that_wait_at_each_event(program: Callable, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        program()
    query = Query(gradviz.open(tmp_path / "run.gradviz"))
    graph, words = build(query, whole=True), Words(query.trace, query)
    shown = views.view(graph, None, views.Shared(words))
    seen = 0
    for step in shown["steps"]:
        here = [wait for wait in shown["waits"].get(step.get("pass"), ()) if _stands(wait, step["k"])]
        told = [text for _, since, _, _, text in here if since <= step["k"]]
        assert told == [row.text for row in rows(Stop(words, step["k"])) if row.label == "waiting"]
        waiting = Stop(words, step["k"]).moment.waiting
        assert sum(count for *_, count, _ in here) == sum(map(len, waiting.values()))
        seen += len(told)
    assert seen


def _stands(wait: list[Any], k: int) -> bool:
    since, _, end, *_ = wait
    return since <= k and (end is None or k < end)


def test_no_two_scripts_of_the_page_define_the_same_name() -> None:
    named = re.compile(r"^(?:async )?function (\w+)|^(?:const|let) (\w+) =", re.MULTILINE)
    counts = Counter(
        found[1] or found[2]
        for script in Path(views.__file__).parent.glob("*.js")
        for found in named.finditer(script.read_text(encoding="utf-8"))
    )
    assert len(counts) > 100
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_norms_of_a_page_have_the_digits_for_the_norm_of_several(query: Query) -> None:
    last = query.trace.passes[0].last
    states, moment = views.States(query), query.at(last)
    for leaf in query.trace.parameters:
        *_, entry = states.of({leaf}, np.arange(last + 1))[leaf]["g"]
        grad = moment.value(moment.grad(leaf))
        assert entry[3] == pytest.approx(grad.stats.rms * math.sqrt(math.prod(grad.shape)), rel=1e-8)


def test_a_box_has_its_tangent_from_the_event_at_which_it_came(tmp_path: Path) -> None:
    path = tmp_path / "forward.gradviz"
    with gradviz.record(path), forward_ad.dual_level():
        w1 = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        w3 = w1 * torch.tensor(3.0)
        w3.sum()
    trace = gradviz.open(path)
    pushed = trace.table(Kind.TANGENT).events.tolist()
    nodes = views.view(build(trace), None, views.Shared(Words(trace)))["nodes"]
    shown = {node.get("name"): node["tangent"] for node in nodes if "tangent" in node and "name" in node}
    assert shown == {
        "w1": {"since": pushed[0], "lines": ["tangent = 1"]},
        "w3": {"since": pushed[1], "lines": ["tangent = 3", "= 3 × 1"]},
    }
