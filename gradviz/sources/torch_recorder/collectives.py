"""Collectives: computations of several processes together. A call of `torch.distributed` is emitted as an op; the
averaging that DistributedDataParallel does at the end of a pass, as a change of the gradients."""

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch

from gradviz.events.listener import NO_RULE
from gradviz.sources.torch_recorder.arguments import tensors_in
from gradviz.sources.torch_recorder.calls import Steps
from gradviz.sources.torch_recorder.known_things import version_of
from gradviz.sources.torch_recorder.shared import Source, safely
from gradviz.sources.torch_recorder.tensor_values import READER, Unseen

# The argument that each collective writes to.
WRITTEN = {
    "all_reduce": "tensor", "broadcast": "tensor", "reduce": "tensor", "scatter": "tensor", "recv": "tensor",
    "all_gather": "tensor_list", "gather": "gather_list", "all_gather_into_tensor": "output_tensor",
    "reduce_scatter": "output", "reduce_scatter_tensor": "output", "all_to_all": "output_tensor_list",
    "all_to_all_single": "output", "send": "", "all_gather_single": "output_tensor", "reduce_scatter_single": "output",
}  # fmt: skip

UNWRITTEN = ("barrier", "monitored_barrier")  # ranks wait in these, and compute nothing

# The modules that average gradients by themselves; empty if PyTorch was built without collectives.
_AVERAGING: Any = torch.nn.parallel.DistributedDataParallel if torch.distributed.is_available() else ()


def modules() -> tuple[ModuleType, ...]:
    """The modules that have the functions for collectives."""
    if not torch.distributed.is_available():
        return ()
    return torch.distributed, torch.distributed.distributed_c10d


class Collectives:
    """Emits the collectives of this process."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.others: set[type] = set()  # the classes of called modules that average none
        self.replicas: weakref.WeakSet[Any] = weakref.WeakSet()  # modules whose gradients are averaged
        self.rank: dict[str, str] = {}  # the rank of this process and the number of ranks, once known
        self.syncing: Any = None  # a replica that is being called and will copy its buffers from rank 0

    def calls(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """The replacements of PyTorch's functions, by name."""
        if torch.distributed.is_available():
            for name in (*WRITTEN, *UNWRITTEN):
                if hasattr(torch.distributed, name):  # not every version has all of them
                    yield name, self._told(name, getattr(torch.distributed, name))

    def _told(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(call)

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            source = self.source
            thread = source.thread
            if source.is_off or thread.in_collective or not source.is_detailed:
                return call(*args, **kwargs)
            thread.in_collective = True  # PyTorch hands the call on to our mode, which makes it again
            try:
                arguments = self._called(name, signature, args, kwargs, sys._getframe(1))
                result = call(*args, **kwargs)
            finally:
                thread.in_collective = False
            if arguments is not None and name not in UNWRITTEN:
                self._tell(name, arguments, sys._getframe(1))
            return result

        return run

    def exchanging(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        """The way of `isend` and `irecv`, which begin a `send` and a `recv`. They are watched and not replaced, since
        PyTorch tells them apart by their identity."""
        if self.source.thread.in_collective or not self.source.is_detailed:
            yield
            return
        arguments = {**inspect.signature(func).bind(*args, **kwargs).arguments, "async_op": True}
        self._announce(name, arguments, frame)
        yield
        self._tell(name, arguments, frame)

    @safely
    def _called(
        self, name: str, signature: inspect.Signature, args: Any, kwargs: Any, frame: FrameType
    ) -> dict[str, Any] | None:
        """Emit that a collective is called. Returns its arguments by name; None once the recording is over."""
        arguments = signature.bind(*args, **kwargs).arguments
        self._announce(name, arguments, frame)
        return None if self.source.listener is None else arguments

    def _announce(self, name: str, arguments: dict[str, Any], frame: FrameType) -> None:
        """Emit that a collective is called, before it runs: it may wait for other ranks for ever."""
        self._note_rank()
        identity, listener = self.source.identity, self.source.listener
        if listener is None:
            return
        with torch._C.DisableTorchFunction():
            identity.tell_pending()
            numbers = [identity.number_of(tensor, frame) for tensor in tensors_in((), arguments)]
            listener.collective(frame, name, _text(arguments, bool(arguments.get("async_op"))), numbers)

    @safely
    def _tell(self, name: str, given: dict[str, Any], frame: FrameType) -> None:
        identity, listener = self.source.identity, self.source.listener
        if listener is None:
            return
        with torch._C.DisableTorchFunction():
            identity.tell_pending()
            writes = WRITTEN[name]
            written = tensors_in((given.get(writes),), {})
            inputs = [tensor for tensor in tensors_in((), given) if not any(tensor is other for other in written)]
            inputs = [*inputs, *(written if len(written) == 1 and not inputs else ())]
            numbers = [identity.number_of(tensor, frame) for tensor in inputs]
            states = [identity.state_of(tensor) for tensor in written]
            late = bool(given.get("async_op"))
            values = [Unseen(t.shape, t.dtype, t.device) if late else t for t in written]
            listener.op(
                frame, name, _text(given, late), NO_RULE, self.source.in_pass, torch.is_grad_enabled(), numbers,
                [state.tensor for state in states], values, [state.flags for state in states],
                [state.version for state in states], [state.base for state in states],
            )  # fmt: skip

    def _note_rank(self) -> None:
        if not self.rank and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
            self.rank = {"rank": str(rank), "world": str(world)}

    def note(self, module: Any, frame: FrameType) -> None:
        """Note a called module, if it averages gradients. It copies its parameters from rank 0 when it is made, and
        its buffers at each call before it calls the inner module; PyTorch does both out of our sight."""
        if isinstance(module, _AVERAGING):
            if module not in self.replicas:
                self._note_rank()
                self.replicas.add(module)
                known, state = self.source.identity.known, [*module.parameters(), *module.buffers()]
                changed = [t for t in state if id(t) in known and known[id(t)].version != version_of(t)]
                self._tell_broadcast(changed, frame)
            self.syncing = module if module.will_sync_module_buffers() else None
            return
        self.others.add(type(module))
        if self.syncing is not None and module is self.syncing.module:
            self.syncing = None
            self._tell_broadcast(list(module.buffers()), frame)

    def _tell_broadcast(self, tensors: list[torch.Tensor], frame: FrameType) -> None:
        """Emit that tensors now have the values of rank 0."""
        identity, listener = self.source.identity, self.source.listener
        if listener is None or not tensors:
            return
        with torch._C.DisableTorchFunction():
            identity.tell_pending()
            READER.recent.clear()  # PyTorch does not count versions for writes to buffers
            for tensor in tensors:
                identity.number_of(tensor, frame)
                listener.mutated(frame, "broadcast", identity.state_of(tensor), 0, self.source.in_pass)

    @safely
    def tell_averages(self, where: Any, number: int, leaves: Callable[[int], bool]) -> None:
        """At the end of a pass, emit the gradients that were averaged over the ranks. `leaves` is the predicate, by
        tensor number, of the leaves that the pass reached."""
        identity, listener = self.source.identity, self.source.listener
        if listener is None:
            return
        with torch._C.DisableTorchFunction():
            for leaf, grad, is_new, how in self._averaged(leaves):
                state = identity.state_of(grad)
                if is_new:
                    listener.grad_assigned(where, leaf, state.tensor)
                listener.mutated(where, how, state, 0, number)

    def _averaged(self, leaves: Callable[[int], bool]) -> Iterator[tuple[int, torch.Tensor, bool, str]]:
        """The leaves whose gradients were averaged: the number of each, the gradient, whether the gradient is a new
        tensor, and the collective's name. They are the leaves that the pass reached, and with
        `find_unused_parameters` those that it reached on another rank only."""
        tensors = self.source.identity.known
        for module in list(self.replicas):
            how = "all_reduce" if not _is_of_some(module.process_group) else "all_reduce in a group"
            for parameter in module.parameters() if module.require_backward_grad_sync else ():
                known, grad = tensors.get(id(parameter)), parameter.grad
                if known is None or grad is None:
                    continue
                known_grad = tensors.get(id(grad))
                if leaves(known.number):
                    yield known.number, grad, False, how
                elif module.find_unused_parameters and (known_grad is None or known_grad.version != version_of(grad)):
                    yield known.number, grad, known_grad is None, how


def _is_of_some(group: Any) -> bool:
    """Whether a group lacks some ranks."""
    if group is None:
        return False
    size = getattr(group, "size", None)
    return not callable(size) or size() < torch.distributed.get_world_size()


def _text(given: dict[str, Any], late: bool) -> str:
    """The arguments that determine a collective's result: `SUM`, `src=0`, `group` if it lacks some ranks."""
    op = given.get("op", "")  # a `ReduceOp`, or a parametrised one: `SUM`, `PREMUL_SUM`
    parts = [str(getattr(op, "op", op)).rpartition(".")[2]] if "op" in given else []
    parts += [f"{name}={rank}" for name in ("src", "dst") if (rank := _rank_in(given, name)) is not None]
    parts += ["group"] if _is_of_some(given.get("group")) else []
    return ", ".join([*parts, "async"] if late else parts)


def _rank_in(given: dict[str, Any], name: str) -> int | None:
    """The rank among all that arguments name, by itself or by its place in a group; None if they name none."""
    in_group = given.get(f"group_{name}")
    if in_group is None:
        return given.get(name)
    group: Any = given.get("group") or torch.distributed.group.WORLD
    return torch.distributed.get_global_rank(group, in_group)
