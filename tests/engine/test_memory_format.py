"""Where a tensor's elements lie in memory, and on which device."""

from __future__ import annotations

import pytest

from gradviz import engine
from gradviz.engine.basics.memory_format import channels_last, contiguous_format, preserve_format


def test_channels_last_orders_memory_and_leaves_values() -> None:
    x = engine.arange(24.0).reshape(1, 2, 3, 4)
    y = x.to(memory_format=channels_last)
    assert y.is_contiguous(memory_format=channels_last)
    assert not y.is_contiguous()
    assert y.array.strides != x.array.strides
    assert (y == x).all()
    assert y.contiguous().is_contiguous()
    assert y.contiguous(memory_format=channels_last) is y


def test_what_lies_so_already_is_returned_itself() -> None:
    x = engine.ones(2, 2)
    assert x.to(memory_format=preserve_format) is x.to(memory_format=contiguous_format) is x
    assert x.to(engine.float32, copy=True) is not x
    assert x.to("cpu") is x


def test_channels_last_is_of_four_dimensions() -> None:
    with pytest.raises(RuntimeError, match="required rank 4 tensor"):
        engine.ones(2, 2).to(memory_format=channels_last)


def test_gradients_flow_through_a_change_of_order() -> None:
    x = engine.ones(1, 2, 3, 4, requires_grad=True)
    (x.contiguous(memory_format=channels_last) * 2).sum().backward()
    assert (x.grad == 2).all()


def test_there_is_no_other_device() -> None:
    with pytest.raises(RuntimeError, match="gradviz computes on the CPU"):
        engine.ones(2).to("cuda")


def test_a_view_that_would_need_a_copy_is_refused_as_in_pytorch() -> None:
    x = engine.randn(3, 4)
    assert x.view(2, -1).shape == (2, 6)
    assert x[:, :2].view(3, 2, 1).shape == (3, 2, 1)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(12)
    assert x.t().reshape(12).shape == (12,)


def test_memory_is_not_seen_as_another_dtype() -> None:
    with pytest.raises(NotImplementedError, match=r"use .to\(dtype\)"):
        engine.ones(2).view(engine.int32)
