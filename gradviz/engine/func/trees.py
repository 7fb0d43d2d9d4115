"""Tensors in tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    return [tree]


def rebuilt(tree: Any, leaves: list[Any]) -> Any:
    """A tree of the structure of `tree`. Its leaves are taken from the front of the list."""
    if isinstance(tree, dict):
        return {key: rebuilt(part, leaves) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [rebuilt(part, leaves) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return leaves.pop(0)


def mapped(function: Callable, tree: Any) -> Any:
    return rebuilt(tree, [function(leaf) for leaf in leaves(tree)])
