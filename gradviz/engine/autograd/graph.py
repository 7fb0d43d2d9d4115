"""The graph: nodes, edges, saved tensors. See PyTorch's `torch.autograd.graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.basics.turns import new_turn
from gradviz.engine.core import node as engine
from gradviz.engine.core.edges import GradientEdge, get_gradient_edge
from gradviz.engine.core.function_ctx import FunctionCtx
from gradviz.engine.core.node import HookHandle, edge_node
from gradviz.engine.core.packing import disable_saved_tensors_hooks, pop_hooks, push_hooks
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, counter_of, gradient_edge, new_tensor

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


class _Nodes(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (engine.Node, FunctionCtx))


class Node(metaclass=_Nodes):
    """What `grad_fn` and `next_functions` show. All nodes are instances of it."""


class saved_tensors_hooks:
    """Inside the block, call `pack_hook(tensor)` for each tensor that a node saves.

    What the hook returns is kept in the tensor's place. `unpack_hook` is called with it when the derivative needs the
    tensor, and returns the tensor. Of several pairs of hooks the last is used. Hooks are per thread.

    Raises RuntimeError where hooks are disabled and where a pack hook modifies its tensor in place, TypeError where
    an unpack hook does not return a tensor."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        push_hooks((self.pack_hook, self.unpack_hook))

    def __exit__(self, *_: object) -> None:
        pop_hooks()


class save_on_cpu(saved_tensors_hooks):
    """Keep saved tensors in the memory of the CPU, where gradviz keeps them anyway."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda tensor: tensor, lambda tensor: tensor)


class _AllowMutationOnSavedContext:
    """Whether the block of `allow_mutation_on_saved_tensors` is running."""

    def __init__(self) -> None:
        self.running = True


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[_AllowMutationOnSavedContext]:
    """Inside the block, saved tensors may be modified in place: nodes save copies.

    (PyTorch copies a tensor only when it is modified. The gradients are the same.) A pass over such a graph raises
    AssertionError outside of the block."""
    context = _AllowMutationOnSavedContext()

    def unpack(copy: Tensor) -> Tensor:
        if not context.running:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context"
                "in which the graph was originally recorded."
            )
        return copy

    try:
        with saved_tensors_hooks(lambda tensor: new_tensor(tensor.array.copy()), unpack):
            yield context
    finally:
        context.running = False


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Increment the version of a tensor, or of several, as an in-place operation does. Raises RuntimeError for
    anything else."""
    tensors = (tensor,) if isinstance(tensor, Tensor) else tensor
    if not isinstance(tensors, Iterable):
        raise RuntimeError("increment_version expect a Iterable[Tensor] as input")
    for each in tensors:
        counter_of(each).n += 1


class _MultiHandle:
    """The handles of one hook that is registered on several tensors."""

    def __init__(self, handles: Sequence[HookHandle]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Remove the hook from all tensors."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> _MultiHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor],
    fn: Callable[[Sequence[Tensor | None]], None] | Callable[[Tensor], None],
    *,
    mode: Literal["all", "any"] = "all",
) -> _MultiHandle:
    """Call `fn` once in each pass.

    With mode "all" it is called when the last gradient has arrived, with the gradients of all tensors, None for those
    that the pass does not reach. With mode "any" it is called with the first gradient. Raises ValueError for another
    mode, AssertionError for a tensor that does not require grad."""
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    nodes = [edge_node(gradient_edge(tensor)) for tensor in tensors]
    if None in nodes:
        raise AssertionError("Expected gradient function to be set")
    collect = _for_all(nodes, fn) if mode == "all" else _for_any(fn)
    return _MultiHandle([tensor.register_hook(collect(i)) for i, tensor in enumerate(tensors)])


def _for_all(nodes: Sequence[Any], fn: Callable) -> Callable[[int], Callable]:
    turn = new_turn()
    arrived: dict[int, list[Tensor | None]] = {}  # by the pass

    def collector(i: int) -> Callable:
        def collect(gradient: Tensor) -> None:
            run = state.modes.running
            with turn:
                gradients = arrived.setdefault(run.number, [None] * len(nodes))
                gradients[i] = gradient
                missing = [n for n, g in zip(nodes, gradients, strict=True) if g is None and run.reaches(n)]
                if missing:
                    return
                del arrived[run.number]
            fn(gradients)

        return collect

    return collector


def _for_any(fn: Callable) -> Callable[[int], Callable]:
    turn = new_turn()
    called: set[int] = set()

    def collect(gradient: Tensor) -> None:
        number = state.modes.running.number
        with turn:
            if number in called:
                return
            called.add(number)
        fn(gradient)

    return lambda _: collect


__getattr__ = says_what_is_missing(__name__, globals())
