"""What is known of a tensor and of a node, and what PyTorch says of a tensor without raising."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
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
    (of an AccumulateGrad, its leaf): that of its first output, and those of others by output number. Mostly there is
    one, and a dictionary for each node would be one thing more for Python's garbage collector to look through.
    `retained` are those of them that keep their gradients. `hooks` are the names of the hooks on them: a tensor may be
    gone when its hooks run."""

    __slots__ = (
        "__weakref__", "after", "call", "first", "hooks", "is_leaf", "key", "name", "number", "of_function", "onward",
        "others", "retained", "sequence",
    )  # fmt: skip

    key: int  # of the hook among those of the node
    onward: Any  # where its gradients go; of a leaf, what is known of the leaf

    def __init__(self, number: int, name: str, is_leaf: bool, of_function: bool, sequence: int) -> None:
        self.number, self.name, self.is_leaf, self.of_function = number, name, is_leaf, of_function
        self.sequence = sequence
        self.first = 0
        self.others: dict[int, int] | None = None
        self.retained: dict[int, Known] | None = None
        self.hooks: tuple[str, ...] = ()
        self.after: Callable[..., None] | None = None  # what a pass tells of the node, while it watches it
        self.call: Any = None  # of a custom Function that is to be compared with finite differences

    def __call__(self, produced: Sequence[Any], received: Sequence[Any]) -> None:
        """The hook on the node, of the pass that watches it: one thing less for each node than a hook of its own."""
        if self.after is not None:
            self.after(self, self.onward, produced, received)

    def outputs(self) -> tuple[int, ...]:
        """The tensors that it is the `grad_fn` of, by output number."""
        if self.others is None:
            return (self.first,)
        return (self.first, *[self.others.get(nr, 0) for nr in range(1, max(self.others) + 1)])

    def tensor(self, nr: int) -> int:
        """The tensor of an output; 0 where none is known."""
        if nr == 0:
            return self.first
        return 0 if self.others is None else self.others.get(nr, 0)

    def put(self, nr: int, tensor: int) -> None:
        """Note the tensor of an output."""
        if nr == 0:
            self.first = tensor
        else:
            self.others = self.others or {}
            self.others[nr] = tensor


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
