"""Where the random numbers are: kept, restored, and handed over to PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from gradviz import engine


def test_a_restored_state_draws_the_same_again() -> None:
    engine.randn(3)  # leaves the second of two normals behind
    state = engine.get_rng_state()
    first = engine.randn(5).tolist(), engine.rand(700).tolist()
    engine.set_rng_state(state)
    assert (engine.randn(5).tolist(), engine.rand(700).tolist()) == first


def test_a_fork_leaves_the_programs_draws_alone() -> None:
    engine.manual_seed(1)
    expected = engine.rand(2).tolist()
    engine.manual_seed(1)
    with engine.random.fork_rng():
        engine.manual_seed(9)
        engine.rand(5)
    assert engine.rand(2).tolist() == expected
    assert engine.initial_seed() == 1


def test_a_generator_has_its_own_state() -> None:
    generator = engine.Generator().manual_seed(4)
    state = generator.get_state()
    first = engine.rand(3, generator=generator).tolist()
    other = engine.Generator()
    other.set_state(state)
    assert engine.rand(3, generator=other).tolist() == first
    assert other.initial_seed() == 4


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (3, TypeError, "expected a torch.ByteTensor, but got int"),
        (engine.zeros(5056), TypeError, "RNG state must be a torch.ByteTensor"),
        (engine.zeros(3, dtype=engine.uint8), RuntimeError, "size 5056 but found the input RNG state size to be 3"),
        (engine.zeros(5056, dtype=engine.uint8), RuntimeError, "Invalid mt19937 state"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, error: type[Exception], message: str) -> None:
    before = engine.get_rng_state().tolist()
    with pytest.raises(error, match=message):
        engine.set_rng_state(state)
    assert engine.get_rng_state().tolist() == before


@pytest.mark.torch
@pytest.mark.parametrize("normals", [0, 1])
@pytest.mark.parametrize("drawn", [0, 1, 5, 623, 624, 625, 2000])
def test_either_library_goes_on_from_the_others_state(drawn: int, normals: int) -> None:
    torch = pytest.importorskip("torch")

    def state(t: Any) -> Any:
        t.manual_seed(11)
        t.rand(drawn)
        t.randn(normals)
        return t.get_rng_state().numpy().copy()

    def draws_from(t: Any, state: Any) -> list[float]:
        with t.random.fork_rng():
            t.set_rng_state(t.from_numpy(state))
            return [*t.randn(3).tolist(), *t.rand(3).tolist()]

    for found in (state(torch), state(engine)):
        assert draws_from(engine, found) == draws_from(torch, found)
