"""The tensors that a node saved, known without reading the node.

The nodes of PyTorch's own ops save inputs or results of the op unchanged. Which ones depends on the op, and on which
of its inputs have a history. This holds if PyTorch computes the op directly: an op composed of other ops, such as
`batch_norm`, may save a copy of an input. Autocast saves copies where dtypes differ.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from gradviz.sources.torch_needs import optional
from gradviz.sources.torch_recorder.saved import HAVE_DATA
from gradviz.sources.torch_recorder.shared import PYTORCH

_registered = optional(torch, "_C._dispatch_get_registrations_for_dispatch_key")
_packing_hooks = optional(torch, "_C._autograd._top_saved_tensors_default_hooks")  # not in 2.5
_modes_below = torch._C._len_torch_function_stack
_IN_C = type(torch.add), type(torch.Tensor.add)  # neither is Python code
# Composed ops that hand their tensors on, as they are, to the one op with a derivative, and return its first result.
_OF_ONE = {"layer_norm", "softmax", "log_softmax"}


def of_pytorch(functions: Iterable[Any]) -> set[Any]:
    """The functions that are PyTorch's own Python code: a program may have replaced some by its own."""
    return {
        function
        for function in functions
        if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(PYTORCH)
    }


# Functions that hand their tensors on, as they are, to the op of their name.
_HANDING_ON = of_pytorch(
    (F.relu, F.leaky_relu, F.elu, F.silu, F.mish, F.hardtanh, F.layer_norm, F.softmax, F.log_softmax)
)


class Plan(NamedTuple):
    """The tensors that the node of a call saved: `places` are their positions among the inputs and, after these, the
    result. The next call saves the same if its inputs have these dtypes, and if the same edges of its node lead
    nowhere."""

    dtypes: tuple[torch.dtype, ...]
    nowhere: tuple[int, ...]
    places: tuple[int, ...]


def plan_of(
    func: Any, op: str, inputs: Sequence[torch.Tensor], numbers: Sequence[int], fn: Any, saved: Sequence[int]
) -> Plan | None:
    """The plan of a call of `func`, the op with this name, whose node saved `saved`; `numbers` are the numbers of the
    inputs and the result. None if the next node at the place has to be read."""
    if type(func) not in _IN_C and func not in _HANDING_ON:
        return None
    if op not in _as_they_stand() or is_changed_below():
        return None
    if len(set(numbers)) < len(numbers) or not numbers:
        return None
    dtypes = {tensor.dtype for tensor in inputs}
    places = [numbers.index(number) for number in saved[::2] if number in numbers]
    if len(dtypes) > 1 or 2 * len(places) != len(saved) or places != sorted(places):
        return None
    # If an input is given twice, its last position counts: then the saved tensors have to be the last inputs.
    among = [place for place in places if place < len(inputs)]
    if len(among) > 1 and among != list(range(among[0], len(inputs))):
        return None
    nowhere = [at for at, (target, _) in enumerate(fn.next_functions) if target is None]
    return Plan(tuple([tensor.dtype for tensor in inputs]), tuple(nowhere), tuple(places))


def is_changed_below() -> bool:
    """Whether a mode or hook may change an op's inputs on their way to autograd, or the tensors that its node saves."""
    return bool(_modes_below()) or _packing_hooks is None or _packing_hooks(True) is not None


@cache
def _as_they_stand() -> frozenset[str]:
    """The names of the ops that have their own derivative in each form, and are never composed of several ops."""
    if _registered is None or _packing_hooks is None or not HAVE_DATA:
        return frozenset()
    derived, composed = (
        {name.removeprefix("aten::").partition(".")[0] for name in _registered(key) if name.startswith("aten::")}
        for key in ("Autograd", "CompositeImplicitAutograd")
    )
    return frozenset(derived - composed | _OF_ONE)
