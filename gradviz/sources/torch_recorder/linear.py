"""`linear` of a matrix: told as its two ops, a transpose and `addmm`, each with the node that it made."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from gradviz.events.fields import Saved
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, WHOLE
from gradviz.events.numbers import next_tensor_number
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder.formulas import rules_of_linear
from gradviz.sources.torch_recorder.source import Source
from gradviz.sources.torch_recorder.values import Unseen


def tell_linear(source: Source, args: Any, out: torch.Tensor, frame: FrameType) -> bool:
    """Tell of `out = linear(x, weight, bias)`. The transposed weight is nowhere to be seen but in the graph. False,
    and nothing told, where it was computed in another way."""
    x, weight, bias = args
    identity = source.identity
    listener: Any = source.listener
    if out.dtype is not x.dtype or not _is_plain(out.grad_fn, identity.key):
        return False
    nodes = identity.new_nodes((out.grad_fn,))
    by_name = {record.name: (fn, record, edges) for fn, record, edges in nodes}
    w, given, b = (identity.number_of(tensor, frame) for tensor in (weight, x, bias))
    enabled, in_pass = torch.is_grad_enabled(), source.in_pass
    t = next_tensor_number()
    known = identity.fresh(out)
    state = identity.state(out, known)
    turned, main = by_name.get("TBackward0"), by_name.get("AddmmBackward0")
    flags = VIEW | (REQUIRES_GRAD if turned is not None else LEAF)
    if 1 in weight.shape:
        flags |= WHOLE
    of_t, of_addmm = rules_of_linear()
    listener.op(
        frame, "t", "", of_t, in_pass, enabled, (w,), (t,), (_transposed(weight),), (flags,), (0,), (w,)
    )
    if turned is not None:
        turned[1].tensors[0] = t
        identity.tell_numbered(frame, [turned], -1, (), of_t)
    listener.op(
        frame, "addmm", "", of_addmm, in_pass, enabled, (b, given, t), (state.tensor,), (out,), (state.flags,),
        (state.version,), (0,),
    )  # fmt: skip
    if main is not None:
        fn, record, edges = main
        record.tensors[0] = state.tensor
        saved = [entry for entry in identity.saved_by(fn, (x, weight, bias, out)) if entry.tensor != t]
        if getattr(fn._raw_saved_mat2, "data", None) is not None:
            saved.append(Saved(t, 0))
        told = identity.edges_of(edges, (b, given, t))
        listener.node(frame, record.number, record.name, -1, of_addmm, (state.tensor,), told, saved)
    return True


def _is_plain(fn: Any, key: str) -> bool:
    """Whether the nodes are those of a transpose and of `addmm`, and no others."""
    if fn is None:
        return True
    if fn.name() != "AddmmBackward0":
        return False
    (bias, _), (x, _), (turned, _) = fn.next_functions
    of_weight = None
    if turned is not None:
        if turned.name() != "TBackward0":
            return False
        of_weight = turned.next_functions[0][0]
    return all(
        node is None or hasattr(node, "variable") or key in node.metadata for node in (bias, x, of_weight)
    )


def _transposed(weight: torch.Tensor) -> Any:
    if weight.numel() <= SMALL and weight.is_cpu and type(weight) in (torch.Tensor, torch.nn.Parameter):
        return weight.detach().t()
    return Unseen(weight.shape[::-1], weight.dtype, weight.device)
