"""Names that PyTorch has and gradviz has not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gradviz import engine
from gradviz.engine.basics.missing import TENSOR_LACKS


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (engine.nn, "Convv2d", "module 'gradviz.engine.nn' has no attribute 'Convv2d'; the nearest is Conv2d"),
        (engine, "Linear", "module 'gradviz.engine' has no attribute 'Linear'; there is gradviz.engine.nn.Linear"),
        (engine.optim, "AdmW", "module 'gradviz.engine.optim' has no attribute 'AdmW'; the nearest is AdamW"),
        (engine, "fft", "module 'gradviz.engine' has no attribute 'fft', nor one that is much like it"),
        (
            engine.nn.functional,
            "gelo",
            "module 'gradviz.engine.nn.functional' has no attribute 'gelo'; the nearest is gelu",
        ),
        (engine.Tensor, "renorm", "type object 'Tensor' has no attribute 'renorm' in gradviz"),
        (engine.ones(1), "renorm", "'Tensor' object has no attribute 'renorm' in gradviz; the nearest is norm"),
        (
            engine.ones(1),
            "svd",
            "'Tensor' object has no attribute 'svd' in gradviz; there is gradviz.engine.linalg.svd",
        ),
        (
            engine.nn.Parameter(engine.ones(1)),
            "lu",
            "'Parameter' object has no attribute 'lu' in gradviz, nor one that is much like it",
        ),
    ],
)
def test_a_name_that_is_missing_is_said_with_the_nearest_that_is_there(owner: Any, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert str(caught.value) == said


@pytest.mark.torch
def test_every_name_of_pytorchs_tensor_is_there_or_said_to_be_missing() -> None:
    torch = pytest.importorskip("torch")
    pytorchs = {name for name in dir(torch.Tensor) if not name.startswith("_")}
    ours = {name for name in dir(engine.ones(1)) if not name.startswith("_")}
    assert pytorchs - ours == set(TENSOR_LACKS)


@pytest.mark.slow
def test_what_a_tensor_lacks_is_not_among_its_names() -> None:
    x = engine.ones(1)
    assert not set(dir(x)) & set(TENSOR_LACKS)
    assert not any(hasattr(x, name) for name in TENSOR_LACKS)


@pytest.mark.slow
def test_of_a_name_that_is_nobodys_python_says_the_nearest() -> None:
    program = "import gradviz.engine as torch; torch.ones(3).require_grad"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = "AttributeError: 'Tensor' object has no attribute 'require_grad'. Did you mean: 'requires_grad'?"
    assert ended.stderr.splitlines()[-1] == said


@pytest.mark.slow
def test_the_nearest_name_is_said_once() -> None:
    program = "import gradviz.engine as torch; torch.nn.Convv2d"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].endswith("has no attribute 'Convv2d'; the nearest is Conv2d")


def test_reading_a_tensors_attributes_asks_no_python_code() -> None:
    """Python 3.11 reads the attributes of a class with a `__getattr__` five times slower: 1,000 operations on (4,)
    then take 2.7 times as long as NumPy, and 2.5 without."""
    assert not hasattr(engine.Tensor, "__getattr__")
    assert engine.Tensor.__getattribute__ is object.__getattribute__
