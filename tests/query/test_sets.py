"""Sets of numbers are what NumPy says that they are."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gradviz
from gradviz.sets import Numbers, common, contained, distinct, distinct_pairs, without

_ROOM = Path(gradviz.__file__).parent
_INDICES = {"return_index", "return_inverse", "return_counts"}  # with one of these `np.unique` loads nothing

few = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1))


@given(arrays(np.int64, st.integers(0, 40), elements=few))
def test_distinct_numbers_are_in_order_and_occur_once(numbers: np.ndarray) -> None:
    assert distinct(numbers).tolist() == sorted(set(numbers.tolist()))


@given(arrays(np.uint32, st.tuples(st.just(2), st.integers(0, 40)), elements=few))
def test_distinct_pairs_are_in_order_and_occur_once(columns: np.ndarray) -> None:
    expected = sorted({(first, second) for first, second in columns.T.tolist()})
    assert [tuple(pair) for pair in distinct_pairs(*columns).tolist()] == expected


@given(
    arrays(np.int64, st.tuples(st.integers(0, 6), st.integers(0, 6)), elements=few.map(lambda n: n * 7)),
    arrays(np.uint32, st.integers(0, 40), elements=few),
)
def test_contained_is_true_of_those_that_are_among(numbers: np.ndarray, among: np.ndarray) -> None:
    expected = [[number in set(among.tolist()) for number in row] for row in numbers.tolist()]
    assert contained(numbers, among).tolist() == expected
    assert contained(among, numbers).tolist() == [n in set(numbers.ravel().tolist()) for n in among.tolist()]


@given(arrays(np.int64, st.integers(0, 40), elements=few), arrays(np.uint32, st.integers(0, 40), elements=few))
def test_differences_and_intersections_are_sets_in_order(numbers: np.ndarray, others: np.ndarray) -> None:
    own, of_others = set(numbers.tolist()), set(others.tolist())
    assert without(numbers, others).tolist() == sorted(own - of_others)
    assert common(numbers, others).tolist() == sorted(own & of_others)


far_apart = st.integers(0, 9).flatmap(lambda page: st.integers(1, 99).map(lambda n: page * 2**16 + n))


@given(st.lists(st.lists(far_apart, max_size=20), max_size=12))
def test_numbers_that_were_added_are_held_and_told_as_new_once(added: Sequence[Sequence[int]]) -> None:
    numbers, expected = Numbers(), set()
    for some in added:
        assert numbers.add(np.array(some, np.int64)) == len(set(some) - expected)
        expected |= set(some)
    asked = [page * 2**16 + n for page in range(11) for n in range(100)]
    assert numbers.holds(np.array(asked)).tolist() == [n in expected for n in asked]


def test_numbers_in_a_pattern_that_comes_again_take_no_more_memory() -> None:
    numbers = Numbers()
    pattern = np.arange(1, 2**16, 3)

    def grown_by(pages: range) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for page in pages:
            numbers.add(pattern + page * 2**16)
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        grown_by(range(10))
        assert grown_by(range(10, 310)) < 200 * 300  # bytes; a page of its own has 8,192
    finally:
        tracemalloc.stop()


LOADING = ("setdiff1d", "union1d", "intersect1d", "setxor1d", "unique")


def loads_masked_arrays(call: ast.AST) -> bool:
    """Whether it is a call of a function of NumPy's that loads `numpy.ma`."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if ast.unparse(call.func) in [f"np.{name}" for name in LOADING[:-1]]:
        return True
    return ast.unparse(call.func) == "np.unique" and not _INDICES & {word.arg for word in call.keywords}


@pytest.mark.slow
def test_nothing_but_the_engine_asks_numpy_for_a_set() -> None:
    files = [path for path in _ROOM.rglob("*.py") if "engine" not in path.relative_to(_ROOM).parts]
    found = [
        f"{path.relative_to(_ROOM)}:{node.lineno}"
        for path in files
        if any(name in (text := path.read_text(encoding="utf-8")) for name in LOADING)
        for node in ast.walk(ast.parse(text))
        if loads_masked_arrays(node)
    ]
    assert len(files) > 100
    assert found == []
