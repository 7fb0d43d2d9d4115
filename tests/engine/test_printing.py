"""Arrays print as PyTorch prints tensors: by example, and, where PyTorch is installed, against it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gradviz.engine.basics import printing
from gradviz.engine.basics.dtypes import get_default_dtype, set_default_dtype
from gradviz.engine.basics.printing import format_array, format_scalar, format_with_spec, printoptions, set_printoptions


@pytest.fixture(autouse=True)
def _default_options():
    yield
    set_printoptions(profile="default")


def f32(values) -> np.ndarray:
    return np.array(values, dtype=np.float32)


EXAMPLES = [
    (f32(3.0), "tensor(3.)"),
    (f32(0.1), "tensor(0.1000)"),
    (f32([1, 2, 3]), "tensor([1., 2., 3.])"),
    (f32([1, 10, -100]), "tensor([   1.,   10., -100.])"),
    (f32([0.5, -1, 2]), "tensor([ 0.5000, -1.0000,  2.0000])"),
    (f32([0, 0]), "tensor([0., 0.])"),
    (f32([-0.0]), "tensor([-0.])"),
    (f32([1e-5, 1]), "tensor([1.0000e-05, 1.0000e+00])"),
    (f32([1e-4, 0.05]), "tensor([1.0000e-04, 5.0000e-02])"),
    (f32([1, 1000]), "tensor([   1., 1000.])"),
    (f32([1, 1001]), "tensor([1.0000e+00, 1.0010e+03])"),
    (f32([2e8]), "tensor([2.0000e+08])"),
    (f32([0, 1001]), "tensor([   0., 1001.])"),
    (f32([1, np.inf, np.nan]), "tensor([1., inf, nan])"),
    (f32([1.5, -np.inf, np.nan]), "tensor([1.5000,   -inf,    nan])"),
    (f32([np.nan, 0]), "tensor([nan, 0.])"),
    (f32(np.nan), "tensor(nan)"),
    (f32([]), "tensor([])"),
    (f32(np.zeros((0, 3))), "tensor([], size=(0, 3))"),
    (np.zeros(0, np.int64), "tensor([], dtype=torch.int64)"),
    (np.zeros((2, 0), np.float64), "tensor([], size=(2, 0), dtype=torch.float64)"),
    (f32([[1, 2], [3, 4]]), "tensor([[1., 2.],\n        [3., 4.]])"),
    (f32([[[1, 2]], [[3, 4]]]), "tensor([[[1., 2.]],\n\n        [[3., 4.]]])"),
    (np.array([1, -20, 300]), "tensor([  1, -20, 300])"),
    (np.array(7), "tensor(7)"),
    (np.array([True, False]), "tensor([ True, False])"),
    (np.array(True), "tensor(True)"),
    (np.array([1, 2], np.uint8), "tensor([1, 2], dtype=torch.uint8)"),
    (np.array([1, 2], np.int32), "tensor([1, 2], dtype=torch.int32)"),
    (np.array([0.5]), "tensor([0.5000], dtype=torch.float64)"),
    (np.array([0.5], np.float16), "tensor([0.5000], dtype=torch.float16)"),
    (np.array([1 + 2j, 3.5 - 1j], np.complex64), "tensor([1.0000+2.j, 3.5000-1.j])"),
    (np.array(1j), "tensor(0.+1.j, dtype=torch.complex128)"),
]


@pytest.mark.parametrize(("array", "text"), EXAMPLES, ids=[text for _, text in EXAMPLES])
def test_an_array_prints_as_a_tensor(array, text):
    assert format_array(array) == text


def test_a_long_row_breaks_at_the_line_width():
    assert format_array(np.arange(30)) == (
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])"
    )


def test_more_than_a_thousand_elements_are_shortened():
    assert format_array(np.arange(1000)).count("\n") > 20
    assert format_array(np.arange(1001)) == "tensor([   0,    1,    2,  ...,  998,  999, 1000])"


def test_every_long_dimension_of_a_large_array_is_shortened():
    assert format_array(f32(np.arange(1600).reshape(200, 8) % 10)) == (
        "tensor([[0., 1., 2.,  ..., 5., 6., 7.],\n"
        "        [8., 9., 0.,  ..., 3., 4., 5.],\n"
        "        [6., 7., 8.,  ..., 1., 2., 3.],\n"
        "        ...,\n"
        "        [6., 7., 8.,  ..., 1., 2., 3.],\n"
        "        [4., 5., 6.,  ..., 9., 0., 1.],\n"
        "        [2., 3., 4.,  ..., 7., 8., 9.]])"
    )


def test_numbers_that_are_not_shown_do_not_choose_the_format():
    array = np.ones(2000, np.float32)
    array[1000] = 1e-30
    assert format_array(array) == "tensor([1., 1., 1.,  ..., 1., 1., 1.])"


def test_suffixes_follow_the_elements_in_order():
    text = format_array(np.array([1.0]), suffixes=["grad_fn=<MulBackward0>"])
    assert text == "tensor([1.], dtype=torch.float64, grad_fn=<MulBackward0>)"


def test_a_suffix_that_passes_the_line_width_stands_on_a_line_of_its_own():
    assert format_array(f32(np.arange(14)), suffixes=["requires_grad=True"]) == (
        "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.],\n       requires_grad=True)"
    )


def test_a_suffix_may_follow_the_last_of_many_lines():
    text = format_array(f32([[1], [2]]), suffixes=["requires_grad=True"])
    assert text == "tensor([[1.],\n        [2.]], requires_grad=True)"


def test_lines_are_indented_by_the_prefix():
    text = format_array(f32([[1], [2]]), prefix="Parameter(")
    assert text == "Parameter([[1.],\n           [2.]])"


def test_a_number_prints_in_full_within_other_text():
    assert format_scalar(f32(0.1)) == "0.10000000149011612"
    assert format_scalar(f32(0.1)[()]) == "0.10000000149011612"
    assert format_scalar(np.array(True)) == "True"


def test_a_format_is_for_one_number():
    assert format_with_spec(f32(0.125), ".2f") == "0.12"
    assert format_with_spec(np.array(7), "03d") == "007"
    assert format_with_spec(f32([1]), "") == "tensor([1.])"
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor.__format__"):
        format_with_spec(f32([1]), ".2f")


def test_options_change_what_is_printed():
    set_printoptions(precision=2, linewidth=18, threshold=5, edgeitems=1, sci_mode=False)
    assert format_array(f32([1.234, 1e-6])) == "tensor([1.23,\n        0.00])"
    assert format_array(np.arange(10)) == "tensor([0,  ..., 9])"


def test_scientific_notation_can_be_forced_until_the_next_change():
    set_printoptions(sci_mode=True)
    assert format_array(f32([1, 2])) == "tensor([1.0000e+00, 2.0000e+00])"
    set_printoptions(precision=3)
    assert format_array(f32([1, 2])) == "tensor([1., 2.])"


def test_profiles_set_several_options_at_once():
    set_printoptions(profile="short")
    assert format_array(f32([0.123])) == "tensor([0.12])"
    set_printoptions(profile="full")
    assert "..." not in format_array(np.arange(2000))
    set_printoptions(profile="short", precision=3)
    assert format_array(f32([0.1234])) == "tensor([0.123])"
    set_printoptions(profile="default")
    assert printing.get_printoptions() == {
        "precision": 4,
        "threshold": 1000,
        "edgeitems": 3,
        "linewidth": 80,
        "sci_mode": None,
    }


def test_options_can_be_changed_for_a_while():
    with printoptions(precision=1):
        assert format_array(f32([0.5])) == "tensor([0.5])"
    assert format_array(f32([0.5])) == "tensor([0.5000])"


def test_the_default_dtype_goes_without_saying():
    before = get_default_dtype()
    set_default_dtype(np.float64)
    try:
        assert format_array(np.array([0.5])) == "tensor([0.5000])"
        assert format_array(np.array([0.5j])) == "tensor([0.+0.5000j])"
        assert format_array(f32([0.5])) == "tensor([0.5000], dtype=torch.float32)"
    finally:
        set_default_dtype(before)


# --- against PyTorch ---------------------------------------------------------------------------------------

DTYPES = ["float32", "float64", "float16", "int64", "int8", "uint8", "bool", "complex64", "complex128"]


def floats_of_any_size(width: int) -> st.SearchStrategy[float]:
    most = 6e4 if width == 16 else 1e30
    everyday = st.one_of(
        st.integers(-2000, 2000).map(float),
        st.integers(-(10**4), 10**4).map(lambda n: n / 1000),
        st.sampled_from([0.0, -0.0, 1.0, 1e-4, 1e-5, 0.1, 1000.0, 1001.0]),
    )
    odd = st.sampled_from([np.nan, np.inf, -np.inf])
    return st.one_of(everyday, odd, st.floats(-most, most), st.floats())


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    if dtype.kind not in "fc":
        return draw(npst.arrays(dtype, shape))
    pool = draw(st.lists(floats_of_any_size(16 if dtype.itemsize == 2 else 32), min_size=1, max_size=8))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    array = np.empty(shape, dtype)
    with np.errstate(over="ignore"):
        array.real = generator.choice(pool, shape)
        if dtype.kind == "c":
            array.imag = generator.choice(pool[:3], shape)
    return array


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "precision": st.integers(0, 8),
        "threshold": st.integers(0, 50),
        "edgeitems": st.integers(0, 4),
        "linewidth": st.integers(1, 120),
        "profile": st.sampled_from(["default", "short", "full"]),
        "sci_mode": st.booleans(),
    },
)


@pytest.mark.slow
@pytest.mark.torch
@settings(deadline=None, max_examples=100)
@given(array=arrays(), options=st.one_of(st.just({}), OPTIONS), grad=st.booleans())
def test_every_array_prints_as_pytorch_prints_it(array, options, grad):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(array.copy()).reshape(array.shape)
    suffixes = []
    if grad and array.dtype.kind in "fc":
        tensor.requires_grad_()
        suffixes = ["requires_grad=True"]
    with printoptions(**options), torch._tensor_str.printoptions(**options):
        assert format_array(array, suffixes=suffixes) == repr(tensor)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(1001,), (40, 40), (7, 200), (1, 1, 1500), (11, 11, 11), (2000, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64", "bool"])
def test_a_large_array_is_shortened_as_pytorch_does(shape, dtype):
    torch = pytest.importorskip("torch")
    array = (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype)
    assert format_array(array) == repr(torch.from_numpy(array))


@pytest.mark.torch
@given(number=floats_of_any_size(32), spec=st.sampled_from(["", ".2f", "8.3e", "+.1g", ">12"]))
def test_a_number_is_formatted_as_pytorch_formats_it(number, spec):
    torch = pytest.importorskip("torch")
    with np.errstate(over="ignore"):
        array = np.array(number, np.float32)
    assert format_with_spec(array, spec) == format(torch.from_numpy(array), spec)
    assert format_scalar(array) == f"{torch.from_numpy(array)}"
