"""The leaves of a backward pass get their gradients in PyTorch's order, whoever watches the pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz import engine
from gradviz.events.kinds import Accumulated
from gradviz.tracefile import open_trace

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch


def network(t: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """A root that depends on six leaves, each used at several places and depths, and these leaves by name."""
    draw = random.Random(seed)
    leaves = {f"leaf{i}": t.ones(2, requires_grad=True) for i in range(6)}
    known = list(leaves.values())
    for _ in range(12):
        a, b = draw.choice(known), draw.choice(known)
        known.append(draw.choice([a * b, a + b, a.exp(), (a - b) / 2, t.stack([a, b]).sum(0)]))
    root = known[-1]
    for leaf in leaves.values():
        root = root * 1 + leaf if draw.random() < 0.5 else leaf * root
    return root.sum(), leaves


def seen_by_hooks(t: Any, seed: int, **how: Any) -> list[str]:
    root, leaves = network(t, seed)
    order: list[str] = []
    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    root.backward(**how)
    return order


def seen_in_a_trace(seed: int, path: Path) -> list[str]:
    with gradviz.record(path):
        root, leaves = network(engine, seed)
        numbers = {leaf._number: name for name, leaf in leaves.items()}
        root.backward()
    with open_trace(path) as trace:
        return [numbers[event.tensor] for event in trace if isinstance(event, Accumulated)]


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_leaves_accumulate_in_pytorchs_order(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        expected = seen_by_hooks(torch, seed)
        assert len(expected) == 6
        assert seen_by_hooks(engine, seed) == expected, f"seed {seed}, with hooks"
        assert seen_in_a_trace(seed, tmp_path / "run.gradviz") == expected, f"seed {seed}, recorded"
        assert seen_by_hooks(engine, seed, create_graph=True) == expected, f"seed {seed}, create_graph"
