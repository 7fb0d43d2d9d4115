"""PyTorch programs are recorded as PyTorch runs them, and the recording changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.model import to_json  # noqa: E402
from gradviz.query import Query  # noqa: E402
from tests import torch_programs as programs  # noqa: E402

pytestmark = pytest.mark.torch
NAMES = [program.stem for program in programs.PROGRAMS]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, programs.Recorded]:
    folder = tmp_path_factory.mktemp("traces")
    return {p.stem: programs.recorded(p, folder / f"{p.stem}.gradviz") for p in programs.PROGRAMS}


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=NAMES)
def test_a_recorded_run_is_the_same_bit_by_bit(
    program: Path, recordings: dict[str, programs.Recorded]
) -> None:
    printed, left = programs.run(program)
    traced = recordings[program.stem]
    assert traced.printed == printed
    assert traced.left == left
    assert "random" in left
    assert len(left) > 3


@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_edges_are_those_of_next_functions(
    name: str, recordings: dict[str, programs.Recorded]
) -> None:
    traced = recordings[name]
    query = Query(traced.trace)
    assert len(traced.trace.passes) == len(traced.walked) > 0
    for number, walked in enumerate(traced.walked, 1):
        roots = [root.node for root in query.passes.began(number).roots]
        assert programs.recorded_walk(query, roots) == walked.structure


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_gradient_of_each_leaf_is_its_grad(
    name: str, recordings: dict[str, programs.Recorded]
) -> None:
    traced = recordings[name]
    found = programs.accumulated(traced.trace)
    assert found
    for number, walked in enumerate(traced.walked, 1):
        if walked.gradients:
            assert sorted(found[number]) == sorted(walked.gradients)


# --- the same program on both engines

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def graph_of(trace: gradviz.tracefile.Trace, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The graph's JSON, with ids that count up for each kind."""
    data = to_json(build(trace, **settings))
    counts: Counter[str] = Counter()
    ids = {}
    for node in data["nodes"]:
        ids[node["id"]] = f"{node['kind']} {counts[node['kind']]}"
        counts[node["kind"]] += 1
        node["id"] = ids[node["id"]]
        node["file"] = node["file"] and os.path.basename(node["file"])
    return data["nodes"], [(ids[edge["source"]], ids[edge["target"]], edge["kind"]) for edge in data["edges"]]


@pytest.fixture(scope="module")
def both_engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """The traces of all examples, by gradviz's engine and by PyTorch."""
    folder = tmp_path_factory.mktemp("examples")
    for example in EXAMPLES:
        text = (
            example.read_text().replace("gradviz.engine as torch", "torch").replace("gradviz.engine", "torch")
        )
        (folder / example.name).write_text(text)
    runs = [
        "from gradviz.sources.script import Target, run",
        "import sys",
        "for name in sys.argv[2:]:",
        "    run(Target(f'{name}.py', False, ()), f'{name}.{sys.argv[1]}.gradviz', engine=sys.argv[1])",
    ]
    for engine in ("numpy", "torch"):
        names = [example.stem for example in EXAMPLES]
        subprocess.run(
            [sys.executable, "-c", "\n".join(runs), engine, *names], cwd=folder, check=True, timeout=300
        )
    return {
        example.stem: tuple(
            gradviz.open(folder / f"{example.stem}.{engine}.gradviz") for engine in ("numpy", "torch")
        )
        for example in EXAMPLES
    }


# The derivative of `x³` multiplies by a number: that is MulBackward1 in PyTorch, MulBackward0 in gradviz's engine; and
# PyTorch's graph does not show the gradient that a pass of `create_graph` starts with.
DIFFERENT = {"double_backward"}


@pytest.mark.parametrize("name", [e.stem for e in EXAMPLES if e.stem not in DIFFERENT])
def test_both_engines_give_the_same_graph(name: str, both_engines: dict[str, tuple[Any, Any]]) -> None:
    numpy, pytorch = both_engines[name]
    assert (numpy.meta["engine"], pytorch.meta["engine"]) == ("numpy", "torch")
    for settings in ({}, {"show": "backward"}, {"show": "forward"}, {"whole": True}):
        assert graph_of(pytorch, **settings) == graph_of(numpy, **settings)


def test_a_second_derivative_has_the_nodes_of_pytorch(both_engines: dict[str, tuple[Any, Any]]) -> None:
    numpy, pytorch = both_engines["double_backward"]
    (ours, our_edges), (theirs, their_edges) = (
        graph_of(trace, show="backward") for trace in (numpy, pytorch)
    )
    renamed = [node["grad_fn"].replace("MulBackward1", "MulBackward0") for node in theirs]
    assert renamed == [node["grad_fn"] for node in ours]
    assert their_edges == our_edges
