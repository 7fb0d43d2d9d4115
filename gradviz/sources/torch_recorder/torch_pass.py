"""The gradients of an existing PyTorch graph: a backward pass that is emitted to a listener and changes nothing."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradviz.sources.torch_recorder.backward import Pass
from gradviz.sources.torch_recorder.identity import Identity
from gradviz.sources.torch_recorder.known_things import grad_fn_of
from gradviz.sources.torch_recorder.shared import Source


def tell_pass(roots: Sequence[torch.Tensor], nodes: Sequence[Any], source: Source) -> None:
    """Run the backward pass of `roots` through `nodes`, and emit it. Leaves do not accumulate, tensors that retain
    their gradients keep the old ones, and the graph is not freed."""
    with torch._C.DisableTorchFunction():
        ends = _ends(nodes)
        retaining = _retaining(nodes)
        grads = [(tensor, tensor.grad) for tensor in retaining]
        starts = [torch.ones_like(root) for root in roots]
        _note_hooks(source.identity)
    current = Pass(source, "grad", roots, starts, ends, True, False)
    try:
        current.begin()
        received = torch.autograd.grad(roots, ends, starts, retain_graph=True, allow_unused=True)
        current.returned(received)
    finally:
        current.end()
        with torch._C.DisableTorchFunction():
            _put_back(grads)


def _ends(nodes: Sequence[Any]) -> list[GradientEdge]:
    """The edges at which gradients stop: at leaves, and at nodes that lead nowhere. All nodes have to run to reach
    them."""
    ends: dict[Any, None] = {}
    for fn in nodes:
        onward = [target for target, _ in fn.next_functions if target is not None]
        ends.update(dict.fromkeys([target for target in onward if hasattr(target, "variable")]))
        if not onward:
            ends[fn] = None
    return [GradientEdge(fn, nr) for fn in ends for nr in range(len(fn._input_metadata))]


def _retaining(nodes: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of these nodes that retain their gradients. Nodes do not list them, so all living tensors are
    searched."""
    made_by = set(nodes)
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return [one for one in tensors if one.requires_grad and one.retains_grad and grad_fn_of(one) in made_by]


def _note_hooks(identity: Identity) -> None:
    """Note the tensors with hooks of the program, so that the sum of gradients is emitted before hooks change it."""
    for known in list(identity.known.values()):
        tensor: Any = known()
        if tensor is not None and tensor.requires_grad and tensor._backward_hooks:
            identity.hooked[id(tensor)] = known


def _put_back(grads: Sequence[tuple[torch.Tensor, Any]]) -> None:
    for tensor, grad in grads:
        tensor.grad = grad
