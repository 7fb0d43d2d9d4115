"""Sets of numbers are what NumPy says that they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradviz.sets import contained, distinct

few = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1))


@given(arrays(np.int64, st.integers(0, 40), elements=few))
def test_distinct_numbers_are_in_order_and_occur_once(numbers: np.ndarray) -> None:
    assert distinct(numbers).tolist() == sorted(set(numbers.tolist()))


@given(
    arrays(np.int64, st.tuples(st.integers(0, 6), st.integers(0, 6)), elements=few.map(lambda n: n * 7)),
    arrays(np.uint32, st.integers(0, 40), elements=few),
)
def test_contained_is_true_of_those_that_are_among(numbers: np.ndarray, among: np.ndarray) -> None:
    expected = [[number in set(among.tolist()) for number in row] for row in numbers.tolist()]
    assert contained(numbers, among).tolist() == expected
    assert contained(among, numbers).tolist() == [n in set(numbers.ravel().tolist()) for n in among.tolist()]
