"""Python's operators, and reductions, on every dtype: what they give and write is what PyTorch's give and write."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

DTYPES = ("float64", "float32", "float16", "complex64", "int64", "int32", "int8", "uint8", "bool")
IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
NAMES = ["add", "sub", "mul", "truediv", "pow", "mod", "floordiv", "and_", "or_", "xor", "lt", "eq", *IN_PLACE]
# The engine has no complex32, which PyTorch has for a tensor in float16 beside a complex one without dimensions.
HALF = ("float16", "complex64, (2,)")


def made(library: Any, dtype: str, *elements: float) -> Any:
    """A tensor of these elements; of one element without dimensions."""
    given = elements if len(elements) > 1 else elements[0]
    return library.tensor(given).to(getattr(library, dtype))


def did(library: Any, call: Callable, dtype: str, other: Any) -> Any:
    """What an operator gave and wrote, or the class of its exception. None where the engine has it not."""
    x = made(library, dtype, 3, 1, 2)
    y = other(library) if callable(other) else other
    alias = x.view(-1)
    try:
        result = call(x, y)
    except Exception as error:
        says_so = library is engine and ("gradviz" in str(error) or isinstance(error, NotImplementedError))
        return None if says_so else "an error"
    if not isinstance(result, library.Tensor):
        return None
    values = [[complex(element) for element in one.tolist()] for one in (result, alias)]
    return str(result.dtype), result is x, np.round(values, 2)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_gives_and_writes_what_pytorchs_does(name: str) -> None:
    others: dict[str, Any] = {repr(number): number for number in (2, True, 2.0)}
    for dtype, is_plain in itertools.product(DTYPES, (True, False)):
        elements = (1, 2, 2) if is_plain else (2,)
        others[f"{dtype}, {elements}"] = lambda library, d=dtype, e=elements: made(library, d, *e)
    call, wrong, compared = getattr(operator, name), {}, 0
    for dtype, (shown, other) in itertools.product(DTYPES, others.items()):
        if (dtype, shown) == HALF:
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            theirs, mine = (did(library, call, dtype, other) for library in (torch, engine))
        if theirs is None or mine is None:
            continue
        compared += 1
        if isinstance(theirs, str) or isinstance(mine, str):
            same = theirs is mine
        else:
            same = theirs[:2] == mine[:2] and np.allclose(theirs[2], mine[2], 1e-2, equal_nan=True)
        if not same:
            wrong[f"{dtype} {name} {shown}"] = (mine, theirs)
    assert compared > 50
    assert wrong == {}


def test_whether_an_element_is_in_a_tensor() -> None:
    for library in (torch, engine):
        x = library.tensor([[1.0, 2.0], [3.0, 4.0]])
        assert 3 in x
        assert library.tensor(4.0) in x
        assert 5.0 not in x
        with pytest.raises((RuntimeError, TypeError)):
            "a" in x  # noqa: B015


def test_a_reversed_tensor_is_a_tensor() -> None:
    for library in (torch, engine):
        x = library.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        assert reversed(x).tolist() == [[3.0, 4.0], [1.0, 2.0]]
        assert reversed(x).grad_fn.name() == "FlipBackward0"
        assert reversed(library.tensor(2.0)).item() == 2


def test_a_number_is_shifted_by_a_tensor() -> None:
    for library in (torch, engine):
        x = library.tensor([1, 2])
        assert (2 << x).tolist() == [4, 8]
        assert (8 >> x).tolist() == [4, 2]


@pytest.mark.parametrize("name", ["nansum", "nanmean", "logsumexp", "all", "any", "sum", "prod", "amax", "argmax"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_reduction_has_pytorchs_dtype_and_form(name: str, dtype: str) -> None:
    given = [{}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"dim": ()}, {"dim": 0, "dtype": "float64"}]
    compared = 0
    for keywords in given:
        seen = []
        for library in (torch, engine):
            known = {key: getattr(library, v) if key == "dtype" else v for key, v in keywords.items()}
            try:
                result = getattr(library, name)(library.tensor([[3, 1], [2, 0]]).to(getattr(library, dtype)), **known)
            except Exception as error:
                says_so = library is engine and "gradviz" in str(error)
                seen.append(None if says_so else "an error")
            else:
                seen.append((str(result.dtype), np.round(np.array(result.tolist(), complex), 2).tolist()))
        if None not in seen:
            compared += 1
            assert seen[0] in (seen[1], "an error"), keywords
    assert compared > 2


@pytest.mark.parametrize("exponent", [2, 0.5, 1j, "a tensor"])
@pytest.mark.parametrize("base", ["complex64", "float32", 2, 1j])
def test_float_power_of_complex_numbers_is_complex(base: Any, exponent: Any) -> None:
    seen = []
    for library in (torch, engine):
        x = made(library, base, 3, 1, 2) * (1 + 0.5j if base == "complex64" else 1) if isinstance(base, str) else base
        y = made(library, "float64", 1, 2, 2) if exponent == "a tensor" else exponent
        if isinstance(base, str) or exponent == "a tensor":
            result = library.float_power(x, y)
            seen.append((str(result.dtype), np.round(np.array(result.tolist(), complex), 6).tolist()))
    assert seen[:1] == seen[1:]
