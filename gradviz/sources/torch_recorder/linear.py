"""`linear` of a matrix, emitted as its two ops: a transpose and `addmm`, each with the node that it made."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from gradviz.events.counters import next_tensor_number
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, WHOLE
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder.identity import Identity
from gradviz.sources.torch_recorder.known_things import Numbered
from gradviz.sources.torch_recorder.node_formulas import rules_of_linear
from gradviz.sources.torch_recorder.pytorchs_own import data_ptr, detach, is_contiguous, numel, transposed
from gradviz.sources.torch_recorder.saved import data_of, saved_as_is
from gradviz.sources.torch_recorder.saved_again import is_changed_below
from gradviz.sources.torch_recorder.shared import Source
from gradviz.sources.torch_recorder.tensor_values import Unseen, unheard

# the nodes of a `linear` that save tensors, which are matrices
_OF_MATRICES = {"AddmmBackward0", "MmBackward0"}
# Whether the node of `addmm` saves its second and its third input, by whether these have no history. A fact of
# PyTorch's, as is a `Plan`, and read once.
_SAVED: dict[tuple[bool, bool], tuple[bool, bool]] = {}


def tell_linear(source: Source, args: Any, out: torch.Tensor, frame: FrameType) -> bool:
    """Emit `out = linear(x, weight, bias)`, whose tensors are known. The transposed weight appears only in the graph.
    Returns False, and emits nothing, if the result was computed in another way."""
    x, weight, bias = args
    identity = source.identity
    listener = source.listener
    made = _made_by(out.grad_fn, identity) if out.dtype is x.dtype else None
    if made is None:
        return False
    turned, main = made
    tensors = identity.known
    w, x_number, b = tensors[id(weight)].number, tensors[id(x)].number, tensors[id(bias)].number
    enabled, in_pass = torch.is_grad_enabled(), source.in_pass
    where = listener.place(frame) or frame  # the place of both, looked up once
    t = next_tensor_number()
    known = identity.fresh(out)
    state = identity.state(out, known)
    flags = VIEW | (REQUIRES_GRAD if turned is not None else LEAF)
    if 1 in weight.shape:
        flags |= WHOLE
    of_t, of_addmm = rules_of_linear()
    if turned is None:
        listener.op(where, "t", "", of_t, in_pass, enabled, (w,), (t,), (_transposed(weight),), (flags,), (0,), (w,))
    else:
        _, record, edges = turned
        record.first = t
        listener.differentiated(
            where, "t", "", of_t, in_pass, (w,), t, _transposed(weight), flags, 0, w, record.number, record.name,
            identity.edges_of(edges), (),
        )  # fmt: skip
    if main is None:
        identity.note_dependence(args, (out,))
        listener.op(
            where, "addmm", "", of_addmm, in_pass, enabled, (b, x_number, t), (state.tensor,), (out,), (state.flags,),
            (state.version,), (0,),
        )  # fmt: skip
    else:
        fn, record, edges = main
        record.first = state.tensor
        saved = _saved_by(identity, fn, edges, args, t)
        listener.differentiated(
            where, "addmm", "", of_addmm, in_pass, (b, x_number, t), state.tensor, out, state.flags, state.version, 0,
            record.number, record.name, identity.edges_of(edges, (b, x_number, t)), saved,
        )  # fmt: skip
    return True


def _made_by(fn: Any, identity: Identity) -> tuple[Numbered | None, Numbered | None] | None:
    """The nodes of the transpose and of `addmm` behind `fn`, which get their numbers; None if there are other nodes."""
    if fn is None:
        return None, None
    if fn.name() != "AddmmBackward0":
        return None
    edges = fn.next_functions
    (bias, _), (x, _), (turned, _) = edges
    new, before = [(fn, edges)], [x, bias]
    if turned is not None:
        if turned.name() != "TBackward0":
            return None
        new.insert(0, (turned, turned.next_functions))
        before.insert(0, new[0][1][0][0])
    leaves = []
    for node in before:
        if node is not None and identity.key not in node.metadata:
            if not hasattr(node, "variable"):
                return None
            leaves.append(node)
    for leaf in leaves:
        identity.number_leaf(leaf)
    *of_t, of_addmm = identity.number_made(new)
    return (of_t[0] if of_t else None), of_addmm


def saves_inner(inputs: Sequence[torch.Tensor], saving: Iterable[str] = ()) -> bool:
    """Whether a `linear` of these inputs saves tensors inside it alone, of which the program knows nothing. `saving`
    are the names of the nodes that save any.

    They save matrices. The input has more dimensions, so the matrix that it is turned into is another tensor; and
    neither that nor the transposed weight can be taken for the weight."""
    x, weight = inputs[0], inputs[1]
    try:
        if x.ndim < 3 or numel(weight) < 2 or not is_contiguous(weight) or not _OF_MATRICES.issuperset(saving):
            return False
        return data_ptr(x) != data_ptr(weight)
    except RuntimeError:  # one of them has no memory of its own
        return False


def _saved_by(identity: Identity, fn: Any, edges: Any, args: Any, t: int) -> Sequence[int]:
    """The tensors that the node of `addmm` saved, flat: (number, version, ...); `t` is the number of the transposed
    weight."""
    x, weight, _ = args
    pattern = None
    if x.dtype is weight.dtype and not is_changed_below():
        pattern = edges[1][0] is None, edges[2][0] is None
        known = _SAVED.get(pattern)
        if known is not None:
            of_x = (identity.known[id(x)].number, x._version) if known[0] else ()
            return (*of_x, t, 0) if known[1] else of_x
    saved = tuple(identity.saved.flat(fn, ("_raw_saved_mat1",), (x,)))
    has_t = data_of(saved_as_is(fn, "_raw_saved_mat2", True)) is not None
    if pattern is not None and saved[:1] in ((), (identity.known[id(x)].number,)):
        _SAVED[pattern] = bool(saved), has_t
    return (*saved, t, 0) if has_t else saved


def _transposed(weight: torch.Tensor) -> Any:
    if numel(weight) <= SMALL and weight.is_cpu and type(weight) in (torch.Tensor, torch.nn.Parameter):
        with unheard():
            return transposed(detach(weight))
    return _unseen_transposed(weight.shape, weight.dtype, weight.device)


@lru_cache(maxsize=1000)
def _unseen_transposed(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Unseen:
    return Unseen(shape[::-1], dtype, device)
