"""The engine differs from PyTorch nowhere but where docs/engine.md says so: values, dtypes, flags, nodes, hooks,
gradients and exceptions of every function, at ties, bounds, 0, −0, inf and NaN."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

from tests.conformance import differential  # noqa: E402
from tests.conformance.differential import Case, Difference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SHARDS = 12
WHERE = "fix the engine, or list it in differences.json and run `python -m tests.conformance.differential write`"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case with elements, a dtype, a shape, a memory and a cotangent that are drawn each by itself."""
    name = draw(st.sampled_from(differential.to_compare()))
    return Case(
        name,
        draw(st.integers(0, len(differential.samples(name)) - 1)),
        tuple(draw(st.lists(st.sampled_from(differential.POOL), max_size=6))),
        strided=draw(st.booleans()),
        cotangent=draw(st.sampled_from(differential.COTANGENTS)),
    )


def unlisted(case: Case) -> list[Difference]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [d for d in differential.differences(case) if differential.row_of(d, is_drawn=True) is None]


def check(case: Case) -> None:
    assert unlisted(case) == [], WHERE


QUIET = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
test_a_call_differs_only_where_it_is_listed = settings(max_examples=60, **QUIET)(given(cases())(check))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_grid_differs_where_it_is_listed_and_only_there(shard: int) -> None:
    names = differential.to_compare()[shard::SHARDS]
    found = differential.compare(names)
    assert found.cases > 20 * len(names)
    assert found.unlisted() == {}, WHERE
    seen = {(d.function, differential.row_of(d)) for d in found.seen}
    expected = {
        (name, number)
        for number, row in enumerate(differential.listed())
        for name in row["functions"].split()
        if name in names and not {"drawn", "processor"} & row.keys()
    }
    assert expected - seen == set(), "these differences are no more: take them from differences.json"


def test_every_public_function_is_compared_or_has_a_reason() -> None:
    compared = {id(differential.functions()[name]) for name in differential.to_compare()}
    left_out = [
        name
        for name, function in differential.functions().items()
        if id(function) not in compared
        and name.split(".")[-1] not in differential.uncompared()
        and differential.in_pytorch(name) is not None
    ]
    assert len(compared) > 550
    assert left_out == []


@pytest.mark.slow
def test_every_compared_function_has_arguments() -> None:
    assert [name for name in differential.to_compare() if not differential.samples(name)] == []


def test_the_page_prints_what_is_listed() -> None:
    assert differential.table() in differential.PAGE.read_text(encoding="utf-8")
