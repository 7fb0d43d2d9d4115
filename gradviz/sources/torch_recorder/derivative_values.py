"""The intermediate values of a derivative under `create_graph`. The program has no such tensors: they come from nodes
that saved them, and small values are recomputed from what their nodes saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradviz.sources.torch_recorder.identity import Identity
from gradviz.sources.torch_recorder.pytorchs_own import detach, no_grad, numel
from gradviz.sources.torch_recorder.saved import RAW, data_of, saved_as_is

_MOST = 16  # the most elements of a recomputed value
_NUMBERS = (
    "exponent",
    "other",
)  # arguments of ops that are numbers, by their names on nodes
_PLAIN = (int, float, bool, complex)
_OF_SELF: dict[str, Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]] = {
    "PowBackward0": lambda x, numbers: x.pow(numbers["exponent"]),
    "SinBackward0": lambda x, numbers: x.sin(),
    "CosBackward0": lambda x, numbers: x.cos(),
    "LogBackward0": lambda x, numbers: x.log(),
}
_OF_EDGES: dict[str, Callable[[Sequence[torch.Tensor], Mapping[str, Any]], torch.Tensor]] = {
    "MulBackward1": lambda inputs, numbers: inputs[0] * numbers["other"],
    "AddBackward0": lambda inputs, numbers: torch.add(inputs[0], inputs[1], alpha=numbers["alpha"]),
    "NegBackward0": lambda inputs, numbers: -inputs[0],
}
_Key = tuple[int, int]  # the identity of a node, and the index of its output


def inner_values(
    identity: Identity, nodes: Sequence[Any], known: Mapping[_Key, torch.Tensor]
) -> dict[_Key, torch.Tensor]:
    """The values between these new nodes, as far as they can be known. The oldest node comes first; `known` are the
    values that the program has."""
    values = dict(known)
    if torch._C._len_torch_dispatch_stack():  # a dispatch mode of the program would see the reads
        return values
    for fn in nodes:
        for name, saved in _saved(identity, fn).items():
            if saved.grad_fn is not None:
                values.setdefault((id(saved.grad_fn), saved.output_nr), saved)
            elif name == "result" and len(fn._input_metadata) == 1:
                values.setdefault((id(fn), 0), saved)
    for fn in nodes:
        if (id(fn), 0) in values:
            continue
        value, form = _computed_again(identity, fn, values), fn._input_metadata[0]
        if value is not None and value.dtype == form.dtype and tuple(value.shape) == tuple(form.shape):
            values[id(fn), 0] = value
    return values


def _computed_again(identity: Identity, fn: Any, found: Mapping[_Key, torch.Tensor]) -> torch.Tensor | None:
    """The recomputed result of the op of a node, if its inputs are known and small; otherwise None."""
    numbers = numbers_of(fn)
    of_self, of_edges = _OF_SELF.get(fn.name()), _OF_EDGES.get(fn.name())
    with no_grad():
        if of_self is not None:
            x = _saved(identity, fn).get("self")
            return of_self(detach(x), numbers) if x is not None and numel(x) <= _MOST else None
        if of_edges is not None:
            inputs = [_at_edge(target, nr, found) for target, nr in fn.next_functions]
            known = [detach(x) for x in inputs if x is not None and numel(x) <= _MOST]
            return of_edges(known, numbers) if len(known) == len(inputs) else None
    return None


def _at_edge(target: Any, nr: int, found: Mapping[_Key, torch.Tensor]) -> torch.Tensor | None:
    if target is None:
        return None
    return target.variable if hasattr(target, "variable") else found.get((id(target), nr))


def numbers_of(fn: Any) -> dict[str, Any]:
    """The arguments of a node's op that are plain numbers, as far as the node has them."""
    values = {
        name: getattr(fn, f"_saved_{name}", None) for name in _NUMBERS if not hasattr(fn, f"{RAW}{name}")
    }
    return {name: value for name, value in values.items() if type(value) in _PLAIN}


def _saved(identity: Identity, fn: Any) -> dict[str, torch.Tensor]:
    saved = {}
    for attribute in identity.saved.names(fn):
        try:
            data = data_of(saved_as_is(fn, attribute, True))
        except (RuntimeError, AttributeError):  # freed already, or nothing was saved
            continue
        if isinstance(data, torch.Tensor):
            saved[attribute.removeprefix(RAW)] = data
    return saved
