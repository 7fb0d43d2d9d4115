"""What is known of a tensor and of a node, and what PyTorch says of a tensor without raising."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Known(weakref.ref):  # type: ignore[type-arg]
    """What is known of a tensor, besides the tensor itself."""

    __slots__ = ("alias", "base", "key", "number", "version", "views")
    number: int
    key: int
    version: int
    base: int  # the tensor whose memory it shares, 0: none
    alias: int  # VIEW and WHOLE, if it does
    views: list[Known] | None


class NodeRecord:
    """What is known of a node: its number, its name as PyTorch shows it, and the tensors that it is the `grad_fn` of
    (of an AccumulateGrad, its leaf) by output number. `retained` are those of them that keep their gradients. `hooks`
    are the names of the hooks on them: a tensor may be gone when its hooks run."""

    __slots__ = (
        "__weakref__", "call", "hooks", "is_leaf", "name", "number", "of_function", "retained", "sequence", "tensors",
    )  # fmt: skip

    def __init__(self, number: int, name: str, is_leaf: bool, of_function: bool, sequence: int) -> None:
        self.number, self.name, self.is_leaf, self.of_function = number, name, is_leaf, of_function
        self.sequence = sequence
        self.tensors: dict[int, int] = {}
        self.retained: dict[int, Known] | None = None
        self.hooks: tuple[str, ...] = ()
        self.call: Any = None  # of a custom Function that is to be compared with finite differences

    def outputs(self) -> tuple[int, ...]:
        """The tensors that it is the `grad_fn` of, by output number."""
        if not self.tensors:
            return (0,)
        return tuple(self.tensors.get(nr, 0) for nr in range(max(self.tensors) + 1))


Numbered = tuple[Any, NodeRecord, Any]  # a node, what is known of it, and its `next_functions`


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """The node behind a tensor; None where it has none, or where PyTorch does not say (a view that was made without
    grad mode, of a base that was then written with it)."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf; False where PyTorch does not say, as above."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor; 0 of one that counts none."""
    try:
        return tensor._version
    except RuntimeError:  # of inference mode
        return 0


def shows_all(source: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all elements of `source` in their order."""
    try:
        if tensor.numel() != source.numel():
            return False
        if tensor.is_contiguous() and source.is_contiguous():
            return True
        return _steps(tensor) == _steps(source)
    except RuntimeError:  # it has no strides
        return False


def _steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return [pair for pair in zip(tensor.shape, tensor.stride(), strict=True) if pair[0] > 1]
