"""What nodes show of what they saved: under PyTorch's names, PyTorch's tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

from tests.conformance.opinfo import (  # noqa: E402
    RANDOM,
    Sample,
    array_of,
    convert,
    flat,
    map_tensors,
    mine_of,
    ours,
    tensors_in,
    title,
)
from tests.torch_samples import operators, take_no_stacks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DIFFERS = {
    "BmmBackward0": "einsum multiplies in another order",
    "EmbeddingBagBackward0": "gradviz leaves the padding out",
    "LinalgEighBackward0": "eigenvectors are unique up to their sign",
    "LinalgSvdBackward0": "singular vectors are unique up to their sign",
    "MaskedScatterBackward0": "gradviz keeps the mask as broadcast",
    "MaskedSelectBackward0": "gradviz keeps the mask as broadcast",
    "MmBackward0": "einsum multiplies in another order",
    "MulBackward0": "functions made of several steps multiply in another order",
    "NativeLayerNormBackward0": "where there is no weight, gradviz keeps 1",
    "NllLoss2DBackward0": "gradviz keeps the target of a loss without dimensions as one image",
}


def nodes(tensor: Any) -> Iterator[Any]:
    """The nodes that lead to a tensor, nearest first."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop(0)
        if node is not None and node not in seen:
            seen.add(node)
            todo += [onward for onward, _ in node.next_functions]
            yield node


def saved_tensors(node: Any, kind: type) -> dict[str, Any]:
    names = [name for name in dir(node) if name.startswith("_saved_")]
    values = {name: getattr(node, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, kind)}


def pairs_of_nodes(entry: Any) -> Iterator[tuple[Any, Any]]:
    """PyTorch's nodes and ours of the entry's first samples, as far as the graphs are the same."""
    for raw in itertools.islice(entry.sample_inputs("cpu", torch.float64, requires_grad=True), 3):
        sample = Sample(entry, raw, ours(entry.name))
        try:
            theirs = flat(sample.in_torch(sample.torch_leaves()))
            mine = flat(sample.in_gradviz(sample.our_leaves()))
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            continue  # test_opinfo.py knows of it
        for a, b in zip(theirs, mine, strict=True):
            if getattr(a, "grad_fn", None) is not None and getattr(b, "grad_fn", None) is not None:
                both = zip(nodes(a), nodes(b), strict=False)
                yield from itertools.takewhile(lambda pair: pair[0].name() == pair[1].name(), both)


def test_saved_tensors_are_pytorchs() -> None:
    take_no_stacks()
    compared, different = 0, set()
    for entry in operators():
        if ours(entry.name) is None or torch.float64 not in entry.dtypes:
            continue
        for node, own in pairs_of_nodes(entry):
            expected, found = saved_tensors(node, torch.Tensor), saved_tensors(own, engine.Tensor)
            for name in expected.keys() & found.keys() if node.name() not in DIFFERS else ():
                compared += 1
                a, b = array_of(expected[name]), found[name].array
                if a.shape != b.shape or not np.allclose(a, b, 1e-7, 1e-9, equal_nan=True):
                    different.add((title(entry), node.name(), name))
    assert not different
    assert compared > 1000


# Entry and the tensor that is changed: PyTorch refuses the pass, gradviz does not.
NOT_SAVED = {
    ("erfinv", 0): "PyTorch saves x, gradviz the result",
    (
        "nn.functional.batch_norm",
        1,
    ): "in training PyTorch saves the running mean, too, which the gradient does not need",
    ("nn.functional.batch_norm", 2): "and the running variance",
    ("tensordot", 1): "a first operand of one element is multiplied by other ops",
    ("nn.functional.layer_norm", 2): "PyTorch saves the bias, too, which the gradient does not need",
}


def refusal(sample: Sample, library: Any, place: int) -> str:
    """How a backward pass is refused if the tensor at that place among the arguments was written to since the forward;
    "" if it runs."""
    tensors: dict[int, Any] = {}

    def tensor(raw: torch.Tensor) -> Any:
        made = raw.detach().clone() if library is torch else mine_of(raw)
        return tensors.setdefault(id(raw), made.requires_grad_() if raw.requires_grad else made)

    args = (sample.raw.input, sample.raw.args, {**sample.extra, **sample.raw.kwargs})
    first, others, named = (map_tensors if library is torch else convert)(args, tensor)
    results = flat((sample.entry.op if library is torch else sample.function)(first, *others, **named))
    with library.no_grad():
        changed = list(tensors.values())[place]
        changed.copy_(changed.clone())
    try:
        for result in results:
            if getattr(result, "requires_grad", False):
                result.abs().sum().backward(retain_graph=True)
    except RuntimeError as error:
        return str(error)[:40]
    return ""


def test_a_pass_is_refused_after_a_change_in_place_where_pytorch_refuses_it() -> None:
    take_no_stacks()
    compared, different = 0, set()
    for entry in operators():
        if ours(entry.name) is None or torch.float64 not in entry.dtypes or entry.name in RANDOM:
            continue
        for raw in itertools.islice(entry.sample_inputs("cpu", torch.float64, requires_grad=True), 2):
            sample = Sample(entry, raw, ours(entry.name))
            for place in range(len(list(tensors_in((raw.input, raw.args, raw.kwargs))))):
                try:
                    expected, found = refusal(sample, torch, place), refusal(sample, engine, place)
                except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
                    continue  # test_opinfo.py knows of it
                compared += 1
                if expected != found and (entry.name, place) not in NOT_SAVED:
                    different.add((title(entry), place, expected, found))
    assert not different
    assert compared > 900
