"""A parameter that two modules share keeps both names."""

from __future__ import annotations

import pytest

import gradviz
from gradviz.events.kinds import Kind
from gradviz.graph.build import build
from gradviz.query import Query
from gradviz.query.overview import model_summary
from gradviz.query.tied_names import tied_names, with_tied_names
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.sentences import sentence
from gradviz.words.stop import subject


@pytest.fixture(scope="module", params=["numpy", "torch"])
def query(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """The trace of a small language model, whose head shares the weight of its embedding."""
    if request.param == "torch":
        torch = pytest.importorskip("torch")
    else:
        import gradviz.engine as torch
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(5, 2)
            self.head = nn.Linear(2, 5, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.head(self.wte(x))

    path = tmp_path_factory.mktemp("tied") / "tied.gradviz"
    model = Model()
    with gradviz.record(path):
        for _ in range(2):
            model(torch.tensor([1, 2, 3])).sum().backward()
    return Query(open_trace(path))


def test_the_first_name_stays_and_the_other_is_kept(query: Query) -> None:
    names = {query.names.of(tensor): others for tensor, others in query.of(tied_names).items()}
    assert names == {"model.wte.weight": ("model.head.weight",)}
    assert [*query.trace.parameters.values()] == ["model.wte.weight"]


def test_either_name_finds_the_parameter(query: Query) -> None:
    words = Words(query.trace, query)
    both = [subject(words, name, query.trace.count - 1) for name in ("model.wte.weight", "model.head.weight.grad")]
    assert both[0].tensor == both[1].tensor
    assert [str(one) for one in both] == ["model.wte.weight", "model.wte.weight.grad"]


def test_the_picture_and_the_summary_show_both_names(query: Query) -> None:
    leaf = next(node for node in build(query, 1).nodes.values() if node.name == "model.wte.weight")
    assert leaf.tied == ("model.head.weight",)
    shapes = {row.path: row.shapes for row in model_summary(query)}
    assert shapes["model.head"] == (("weight = model.wte.weight", (5, 2)),)
    assert shapes["model.wte"] == (("weight", (5, 2)),)


def test_a_message_says_the_second_name_once(query: Query) -> None:
    (tensor,) = query.of(tied_names)
    text = "model.wte.weights and model.wte.weight: model.wte.weight"
    assert (
        with_tied_names(query, text, [tensor])
        == "model.wte.weights and model.wte.weight (= model.head.weight): model.wte.weight"
    )


def test_the_stepper_says_the_second_name(query: Query) -> None:
    events = query.trace.table(Kind.NAMED).events.tolist()
    sentences = [sentence(Stop(Words(query.trace, query), event)) for event in events]
    assert "model.wte.weight has a second name: model.head.weight" in sentences
