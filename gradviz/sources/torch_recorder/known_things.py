"""The records of tensors and nodes, and questions about a tensor that do not raise."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradviz.sources.torch_recorder.pytorchs_own import is_contiguous, numel, stride

_functorch = torch._C._functorch


class Known(weakref.ref):  # type: ignore[type-arg]
    """The record of a tensor: a weak reference with its number and state."""

    __slots__ = ("alias", "base", "depends", "key", "number", "version", "views")
    number: int
    key: int
    version: int
    base: int  # the tensor whose memory it shares; 0 for none
    alias: int  # VIEW and WHOLE, if it shares memory
    views: list["Known"] | None
    depends: bool  # whether it was computed from a leaf that requires grad, although it does not require grad itself


class NodeRecord:
    """The record of a node: its number, its name as PyTorch shows it, and the tensors that it is the `grad_fn` of
    (for an AccumulateGrad: its leaf). `first` is the tensor of its first output, `others` those of other outputs.
    Most nodes have one output, and a dictionary for each node would be more work for Python's garbage collector.
    `retained` are the tensors that keep their gradients. `hooks` are the names of the hooks on the tensors: a tensor
    may be gone when its hooks run."""

    __slots__ = (
        "__weakref__", "after", "call", "first", "hooks", "is_leaf", "key", "name", "number", "of_function", "onward",
        "others", "retained", "sequence",
    )  # fmt: skip

    key: int  # the key of the hook among those of the node
    onward: Any  # the targets of its gradients; for a leaf node, the record of the leaf

    def __init__(self, number: int, name: str, is_leaf: bool, of_function: bool, sequence: int) -> None:
        self.number, self.name, self.is_leaf, self.of_function = number, name, is_leaf, of_function
        self.sequence = sequence
        self.first = 0
        self.others: dict[int, int] | None = None
        self.retained: dict[int, Known] | None = None
        self.hooks: tuple[str, ...] = ()
        # the function that emits the node's events for a pass that watches it
        self.after: Callable[..., None] | None = None
        self.call: Any = None  # the call of a custom Function that is compared with finite differences

    def __call__(self, produced: Sequence[Any], received: Sequence[Any]) -> None:
        """Run as the hook on the node, for the pass that watches it: so a node needs no separate hook object."""
        if self.after is not None:
            self.after(self, self.onward, produced, received)

    def outputs(self) -> tuple[int, ...]:
        """The tensors that it is the `grad_fn` of, by output number."""
        if self.others is None:
            return (self.first,)
        return (self.first, *[self.others.get(nr, 0) for nr in range(1, max(self.others) + 1)])

    def tensor(self, nr: int) -> int:
        """The tensor of an output; 0 if it is not known."""
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


Numbered = tuple[Any, NodeRecord, Any]  # a node, its record, and its `next_functions`


def unbatched(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of all parts, which has the graph, for one that stands for each part inside `vmap`; any other tensor
    itself."""
    if _functorch.peek_interpreter_stack() is not None:
        while _functorch.is_batchedtensor(tensor):
            tensor = _functorch.get_unwrapped(tensor)
    return tensor


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """The node behind a tensor; None if there is none, or if PyTorch raises (for a view made without grad mode, whose
    base was then written with grad mode)."""
    try:
        return tensor.grad_fn or unbatched(tensor).grad_fn
    except RuntimeError:
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf; False if PyTorch raises, as above."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor; 0 if the tensor counts none."""
    try:
        return tensor._version
    except RuntimeError:  # a tensor of inference mode
        return 0


def shows_all(source: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all elements of `source` in their order."""
    try:
        if numel(tensor) != numel(source):
            return False
        if is_contiguous(tensor) and is_contiguous(source):
            return True
        return _steps(tensor) == _steps(source)
    except RuntimeError:  # it has no strides
        return False


def _steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    return [pair for pair in zip(tensor.shape, stride(tensor), strict=True) if pair[0] > 1]
