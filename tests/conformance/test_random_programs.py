"""Short programs, drawn at random, do what they do in PyTorch: values, places in the graph, versions, errors, hooks,
and the gradients of the gradients of some."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from gradviz import engine
from tests.random_programs import drawn, ran

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

AT_ONCE = 50


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (np.isnan(a) and np.isnan(b)) or abs(a - b) <= 1e-6 * max(1, abs(a), abs(b))
    return a == b


@pytest.mark.parametrize("first", range(0, 2000, AT_ONCE))
def test_a_program_drawn_at_random_does_what_it_does_in_pytorch(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + AT_ONCE):
            lines = drawn(seed)
            ours, theirs = ran(engine, lines, seed), ran(torch, lines, seed)
            assert alike(ours, theirs), "\n".join([f"seed {seed}", *lines, f"ours {ours}", f"PyTorch's {theirs}"])
