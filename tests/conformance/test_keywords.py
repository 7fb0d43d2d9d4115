"""Arguments may be given by the names that PyTorch gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest

from gradviz import engine
from gradviz.engine.basics.keywords import theirs_to_ours

torch = pytest.importorskip("torch", reason="compares names of arguments with PyTorch's")

# PyTorch's own record of its functions' arguments says something else than its documentation, or gradviz lacks them
OTHERWISE = {
    "diag_embed": {"diagonal"}, "heaviside": {"values"}, "isfinite": {"tensor"}, "isin": {"e", "te"},
    "isinf": {"tensor"}, "isreal": {"tensor"}, "logsumexp": {"names"}, "msort": {"descending"},
    "permute": {"dim"}, "prelu": {"weight"}, "qr": {"some"}, "split_with_sizes": {"split_size_or_sections"},
    "swapaxes": {"dim0", "dim1"}, "topk": {"descending"}, "xlogy": {"x", "y"}, "bmm": {"out_dtype"},
    "mse_loss": {"weight"}, "l1_loss": {"weight"}, "huber_loss": {"weight"},
    "embedding": {"max_norm", "norm_type", "scale_grad_by_freq", "sparse"},
}  # fmt: skip
OF_THE_MACHINE = {
    "out", "size_average", "reduce", "generator", "inplace", "device", "layout", "pin_memory", "requires_grad",
    "memory_format", "_stacklevel", "non_blocking",
}  # fmt: skip


def functions() -> Iterator[tuple[str, Callable, Callable]]:
    """Each function of PyTorch that gradviz has too, as PyTorch records its arguments, and gradviz's."""
    for function, recorded in torch.overrides.get_testing_overrides().items():
        name = getattr(function, "__name__", "")
        for theirs, ours in ((torch, engine), (torch.nn.functional, engine.nn.functional)):
            mine = vars(ours).get(name)
            if getattr(theirs, name, None) is function and callable(mine) and not isinstance(mine, type):
                yield name, recorded, mine


def test_every_argument_is_known_by_pytorchs_name() -> None:
    unknown: dict[str, set[str]] = {}
    compared = 0
    for name, recorded, mine in functions():
        known = set(inspect.signature(mine).parameters) | set(theirs_to_ours(mine)) | OF_THE_MACHINE
        missing = {
            parameter.name
            for parameter in inspect.signature(recorded).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        } - known
        compared += 1
        if missing - OTHERWISE.get(name, set()):
            unknown[name] = missing
    assert compared > 250
    assert unknown == {}


@pytest.mark.parametrize("t", [torch, engine], ids=["torch", "gradviz"])
def test_programs_name_their_arguments(t: object) -> None:
    x = t.ones(2, 3)
    assert x.sum(axis=0, keepdims=True).shape == (1, 3)
    assert t.mul(input=x, other=2).sum().item() == 12
    assert t.cat(tensors=[x, x], axis=0).shape == (4, 3)
    loss = t.nn.CrossEntropyLoss()(input=x, target=t.tensor([0, 1]))
    assert loss.shape == t.nn.functional.cross_entropy(input=x, target=t.tensor([0, 1])).shape == ()
    assert t.nn.Linear(3, 2)(input=x).shape == (2, 2)
    assert t.nn.functional.relu(input=x).shape == (2, 3)


def test_one_argument_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="are one"):
        engine.ones(2, 3).sum(dim=0, axis=0)
