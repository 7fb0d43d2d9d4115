"""The gradients of an existing graph: a backward pass that is emitted to a listener and changes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gradviz.engine.core.backward import initial_gradients
from gradviz.engine.core.tensor import Tensor, give_number
from gradviz.engine.core.watched import WatchedPass
from gradviz.errors import GradvizError

NO_GRAD = "there are no gradients to draw: the tensor does not require grad"
NOT_ONE = "gradients are drawn of a tensor of one element, not of shape {shape}: draw its sum() or mean()"
FREED = (
    "the gradients are gone: a backward() has freed this graph. Call draw(..., gradients=True) before it, or record "
    "it: with gradviz.record(FILE)"
)
_SECOND_TIME = "Trying to backward through the graph a second time"


class NoGradientsError(GradvizError):
    """The gradients of a tensor cannot be computed. The message is one line for the user."""


def check_root(requires_grad: bool, shape: Sequence[int]) -> None:
    """Raise NoGradientsError unless a pass can begin at a tensor of this shape."""
    if not requires_grad:
        raise NoGradientsError(NO_GRAD)
    if any(size != 1 for size in shape):
        raise NoGradientsError(NOT_ONE, shape=list(shape))


@contextmanager
def named_if_freed() -> Iterator[None]:
    """Raise NoGradientsError where the graph of a pass has been freed."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_SECOND_TIME):
            raise
        raise NoGradientsError(FREED) from None


def tell_pass(
    roots: Sequence[Tensor],
    nodes: Sequence[Any],
    tensors: Mapping[tuple[int, int], Tensor],
    numbers: Mapping[tuple[int, int], int],
) -> None:
    """Run the backward pass of `roots` through `nodes`; its events go to the listener that `heard_by` has set.
    `numbers` are the tensors' numbers, by their node's number and output index, as are `tensors`. Leaves do not
    accumulate, tensors that retain their gradients keep the old ones, and the graph is not freed."""
    for key, tensor in tensors.items():
        if key in numbers:
            give_number(tensor, numbers[key])
    with named_if_freed(), _unchanged([node for node in nodes if node.rare is not None], numbers):
        starts = initial_gradients(roots, [None] * len(roots))
        WatchedPass("grad", roots, starts, (), True, False).run()


@contextmanager
def _unchanged(nodes: Sequence[Any], numbers: Mapping[tuple[int, int], int]) -> Iterator[None]:
    """A context in which hooks know their tensors by `numbers`; afterwards the hooks and kept gradients of the nodes
    are restored."""
    hooks = [(node, dict(node.rare.tensor_hooks)) for node in nodes]
    retaining = [reference() for node in nodes for reference in node.rare.retainers.values()]
    grads = [(tensor._rare, tensor._rare.grad) for tensor in retaining if tensor is not None]
    for node, of_tensors in hooks:
        for nr, (_, called) in of_tensors.items():
            node.rare.tensor_hooks[nr] = (numbers.get((node.number, nr), 0), called)
    try:
        yield
    finally:
        for node, of_tensors in hooks:
            node.rare.tensor_hooks.update(of_tensors)
        for rare, grad in grads:
            rare.grad = grad
