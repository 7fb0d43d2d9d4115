"""PyTorch programs are recorded as PyTorch runs them, and the recording changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

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
