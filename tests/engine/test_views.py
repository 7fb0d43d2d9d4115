"""Operations in place on views, and on what views are of: the graph that PyTorch makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch


def leaf(t: Any) -> Any:
    return (t.arange(6.0, dtype=t.float64).reshape(2, 3) / 4).clone().requires_grad_()


def place(tensor: Any) -> tuple:
    """What can be seen of a tensor's place in the graph."""
    node = tensor.grad_fn
    names = [] if node is None else [None if n is None else n.name() for n, _ in node.next_functions]
    return None if node is None else node.name(), names, tensor.requires_grad, tensor.is_leaf, tensor._version


def in_view(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v.mul_(3)
    return y, v


def in_view_of_view(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    w = v[1:]
    w.mul_(3)
    return y, v, w


def in_base(t: Any, x: Any) -> tuple:
    y = x * 2
    v, w = y[0], y.view(-1)
    y.mul_(v[0].item())
    return y, v, w, w[1:]


def with_another_view(t: Any, x: Any) -> tuple:
    y = x * 2
    y[0].mul_(y[1].clone())
    return (y,)


def again_and_again(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v += 1
    v *= 2
    return y, v


def into_zeros(t: Any, x: Any) -> tuple:
    z = t.zeros(2, 3, dtype=t.float64)
    v, w = z[0], z[1]
    v.copy_(x[0])
    return z, v, w


def assigned_through_a_view(t: Any, x: Any) -> tuple:
    z = t.zeros(2, 3, dtype=t.float64)
    v = z[0]
    v[1] = x[0, 1]
    return z, v


def assigned_by_places_through_a_view(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v[t.tensor([0, 2])] = x[1, :2]
    return (v,)


def zeroed(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[:, 1]
    v.zero_()
    return y, v


def filled_with_a_tensor(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v.fill_(x[1, 1])
    return y, v


def transposed(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y.t()
    v.add_(1)
    return y, v


def diagonal(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y.diagonal()
    v.mul_(x[0, :2])
    return y, v


def single_element(t: Any, x: Any) -> tuple:
    y = x[0] * 2
    v = y[1]
    v.mul_(5)
    return y, v


def saved_result(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v.exp_()
    return y, v


def saved_input(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    v.sin_()
    return y, v


def without_grad(t: Any, x: Any) -> tuple:
    y = x * 2
    v = y[0]
    with t.no_grad():
        v.mul_(2)
    return (y,)


def detached(t: Any, x: Any) -> tuple:
    y = x * 2
    d = y.detach()
    d.mul_(2)
    return y, d, d[0]


PROGRAMS = [
    in_view, in_view_of_view, in_base, with_another_view, again_and_again, into_zeros, assigned_through_a_view,
    zeroed, filled_with_a_tensor, transposed, diagonal, single_element, saved_result, saved_input,
    without_grad, detached,
]  # fmt: skip
BY_VALUE = [*PROGRAMS, assigned_by_places_through_a_view]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_graph_is_pytorchs(program: Callable) -> None:
    theirs, ours = program(torch, leaf(torch)), program(engine, leaf(engine))
    assert [place(tensor) for tensor in ours] == [place(tensor) for tensor in theirs]


@pytest.mark.parametrize("program", BY_VALUE)
@pytest.mark.parametrize("which", [0, -1])
def test_gradients_of_both_orders_are_pytorchs(program: Callable, which: int) -> None:
    def run(t: Any) -> list[np.ndarray]:
        x = leaf(t)
        out = program(t, x)[which]
        if not out.requires_grad:
            return [out.detach().numpy()]
        (first,) = t.autograd.grad((out * out).sum(), x, create_graph=True)
        (second,) = t.autograd.grad((first * first).sum(), x, allow_unused=True)
        return [out.detach().numpy(), first.detach().numpy(), 0 if second is None else second.numpy()]

    for mine, theirs in zip(run(engine), run(torch), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("program", BY_VALUE)
def test_gradients_do_not_depend_on_who_watches(program: Callable) -> None:
    """A pass with a hook takes another way than one without."""
    grads = []
    for watched in (False, True):
        x = leaf(engine)
        out = program(engine, x)[0]
        if watched:
            x.register_hook(lambda g: None)
        if out.requires_grad:
            (out * out).sum().backward()
        grads.append(None if x.grad is None else x.grad.numpy())
    np.testing.assert_array_equal(*grads)


def leaf_view(t: Any, x: Any) -> None:
    x[0].mul_(3)


def leaf_of_ones_own(t: Any, x: Any) -> None:
    v = x.detach()[0]
    v.requires_grad_()
    v.mul_(2)


def one_of_unbind(t: Any, x: Any) -> None:
    (x * 2).unbind(0)[0].mul_(2)


def one_of_split(t: Any, x: Any) -> None:
    (x * 2).split(1)[1].mul_(2)


def one_of_chunk_after_its_base(t: Any, x: Any) -> Any:
    y = x * 2
    part = y.chunk(2)[0]
    y.mul_(2)
    return part.grad_fn


def view_from_no_grad(t: Any, x: Any) -> None:
    y = x * 2
    with t.no_grad():
        v = y[0]
    v.mul_(2)


def view_from_no_grad_after_its_base(t: Any, x: Any) -> Any:
    y = x * 2
    with t.no_grad():
        v = y[0]
    y.mul_(2)
    return v.grad_fn


def repeated_elements(t: Any, x: Any) -> None:
    (x * 2).expand(2, 2, 3).mul_(2)


def saved_then_view_modified(t: Any, x: Any) -> None:
    y = x * 2
    v = y[0]
    s = y.sin()
    v.mul_(2)
    s.sum().backward()


def saved_view_then_modified(t: Any, x: Any) -> None:
    y = x * 2
    v = y[0]
    s = v.sin()
    y.mul_(2)
    s.sum().backward()


def other_view_saved_then_modified(t: Any, x: Any) -> None:
    y = x * 2
    y[0].mul_(y[1])
    y.sum().backward()


def view_from_a_function(t: Any, x: Any) -> None:
    class Same(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    Same.apply(x * 2).mul_(2)


def one_of_unbind_without_a_graph(t: Any, x: Any) -> None:
    t.ones(2, 3).unbind(0)[0].mul_(x[0])


def one_of_unbind_without_a_graph_after_its_base(t: Any, x: Any) -> Any:
    y = t.ones(2, 3, dtype=x.dtype)
    part = y.unbind(0)[0]
    y.mul_(x)
    return part.grad_fn


def added_to_what_it_is_part_of(t: Any, x: Any) -> None:
    y = t.ones(2, 3)
    y.add_(y[0:1])


def copied_one_further(t: Any, x: Any) -> None:
    y = t.ones(3, 2)
    y[1:].copy_(y[:-1])


def assigned_one_further(t: Any, x: Any) -> None:
    y = t.ones(3, 2)
    y[1:] = y[:-1]


def cut_by_a_part_of_itself(t: Any, x: Any) -> None:
    y = t.ones(3, 2)
    y.clamp_(min=y[:1])


def multiplied_by_itself_transposed(t: Any, x: Any) -> None:
    y = t.ones(3, 3)
    y.mul_(y.t())


def detached_in_place(t: Any, x: Any) -> None:
    (x * 2)[0].detach_()


def saved_then_detached_in_place(t: Any, x: Any) -> None:
    y = x * 2
    z = y.sin()
    y.detach_()
    z.sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        leaf_view, leaf_of_ones_own, one_of_unbind, one_of_split, one_of_chunk_after_its_base, view_from_no_grad,
        view_from_no_grad_after_its_base, repeated_elements, saved_then_view_modified, saved_view_then_modified,
        other_view_saved_then_modified,
        view_from_a_function, detached_in_place, saved_then_detached_in_place, one_of_unbind_without_a_graph,
        one_of_unbind_without_a_graph_after_its_base, added_to_what_it_is_part_of, copied_one_further,
        assigned_one_further, cut_by_a_part_of_itself, multiplied_by_itself_transposed,
    ],
)  # fmt: skip
def test_what_pytorch_forbids_raises_with_its_words(program: Callable) -> None:
    with pytest.raises(RuntimeError) as theirs:
        program(torch, leaf(torch))
    first = re.split(r"(?<=[a-z])\. ", str(theirs.value))[0].replace("torch.FloatTensor", "torch.DoubleTensor")
    with pytest.raises(RuntimeError, match=re.escape(first)):
        program(engine, leaf(engine))


def test_what_lies_beside_it_may_be_read_while_it_is_written_over() -> None:
    def written(t: Any) -> list:
        y = t.arange(12.0).reshape(3, 4)
        y[0].add_(y[1])
        y[:, 0].copy_(y[:, 1])
        y.mul_(y)
        y.add_(y.detach())
        y.unfold(0, 2, 2)[0, 1].mul_(2)
        y[y > 9] = t.tensor(1)
        return y.tolist()

    assert written(engine) == written(torch)


USES: dict[str, Callable[[Any, Any], Any]] = {
    "times 2": lambda t, part: part * 2,
    "added to": lambda t, part: t.ones_like(part) + part,
    "summed": lambda t, part: part.sum(),
    "cloned": lambda t, part: part.clone(),
    "viewed": lambda t, part: part.view(-1),
    "a row": lambda t, part: part[0],
    "by a layer": lambda t, part: t.nn.functional.linear(part, t.ones(2, 3, dtype=part.dtype)),
    "as a root": lambda t, part: part.backward(t.ones_like(part)),
    "as an input": lambda t, part: t.autograd.grad(t.ones(1, requires_grad=True).sum(), part),
    "written over": lambda t, part: part.mul_(2),
    "its grad_fn": lambda t, part: part.grad_fn,
    "a leaf?": lambda t, part: part.is_leaf,
    "requires grad?": lambda t, part: part.requires_grad,
    "its grad": lambda t, part: part.grad,
    "detached": lambda t, part: part.detach().tolist(),
    "as a list": lambda t, part: part.tolist(),
    "compared": lambda t, part: (part > 0).tolist(),
    "printed": lambda t, part: repr(part),
    "its version": lambda t, part: part._version,
}


@pytest.mark.parametrize("use", USES)
def test_a_view_that_cannot_be_followed_is_refused_where_pytorch_refuses_it(use: str) -> None:
    def used(t: Any) -> Any:
        y = leaf(t) * 2
        part = y.chunk(2)[0]
        y.mul_(2)
        try:
            return USES[use](t, part)
        except RuntimeError as error:
            return str(error)

    assert used(engine) == used(torch)


def test_a_view_that_cannot_be_followed_serves_without_gradients(tmp_path: Path) -> None:
    y = leaf(engine) * 2
    part = y.chunk(2)[0]
    y.mul_(2)
    with gradviz.record(tmp_path / "run.gradviz"), engine.no_grad():
        assert (part * 2).tolist() == (y[:1] * 2).tolist()


def hooks_seen(t: Any) -> list:
    seen: list = []
    y = leaf(t) * 2
    v = y[0]
    v.register_hook(lambda g: seen.append(("view before", g.tolist())))
    y.register_hook(lambda g: seen.append(("base before", g.tolist())))
    y.retain_grad()
    v.mul_(3)
    y.register_hook(lambda g: seen.append(("base after", g.tolist())))
    y.sum().backward()
    return [*seen, y.grad.tolist()]


def test_hooks_stay_where_they_were_and_retained_gradients_move() -> None:
    assert hooks_seen(engine) == hooks_seen(torch)


def test_tangents_go_through_views_written_over() -> None:
    def run(t: Any) -> list:
        forward = t.autograd.forward_ad
        x = leaf(t).detach()
        with forward.dual_level():
            y = forward.make_dual(x, x * x + 1) * 2
            v = y[0]
            v.mul_(y[1])
            return [forward.unpack_dual(tensor).tangent.tolist() for tensor in (y, v)]

    np.testing.assert_allclose(np.concatenate([np.ravel(p) for p in run(engine)]),
                               np.concatenate([np.ravel(p) for p in run(torch)]))  # fmt: skip


def test_a_base_does_not_keep_its_views() -> None:
    y = engine.zeros(3)
    for _ in range(1000):
        y.view(3)
    assert len(y._rare.views) < 40


def test_iteration_gives_outputs_of_unbind() -> None:
    row = next(iter(leaf(engine)))
    assert row.grad_fn.name() == next(iter(leaf(torch))).grad_fn.name() == "UnbindBackward0"


def test_as_strided_is_a_view() -> None:
    def run(t: Any) -> list:
        x = leaf(t)
        y = t.as_strided(x * 2, (2, 2), (1, 2), 1)
        (gradient,) = t.autograd.grad((y * y).sum(), x)
        return [y.tolist(), gradient.tolist(), y.grad_fn.name()]

    assert run(engine) == run(torch)


@pytest.mark.parametrize(
    "change", ["squeeze_()", "squeeze_(0)", "squeeze_((0, 2))", "unsqueeze_(-1)", "transpose_(0, 1)", "swapaxes_(1, 2)"]
)
def test_a_shape_is_changed_in_place(change: str) -> None:
    def run(t: Any) -> list:
        x = t.arange(3.0, dtype=t.float64).reshape(1, 3, 1).requires_grad_()
        y = x * 2
        assert eval(f"y.{change}") is y
        (y * y).sum().backward()
        return [place(y), y.tolist(), x.grad.tolist()]

    assert run(engine) == run(torch)


def test_what_saved_a_tensor_learns_that_its_shape_changed() -> None:
    def run(t: Any) -> str:
        y = leaf(t) * 2
        z = y * y
        y.t_()
        with pytest.raises(RuntimeError) as caught:
            z.sum().backward()
        return str(caught.value).split(".")[0]

    assert run(engine) == run(torch)


def test_a_leaf_keeps_its_shape_where_it_requires_grad() -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        leaf(engine).t_()


def test_comparisons_write_over_what_requires_no_grad() -> None:
    def run(t: Any) -> list:
        x = t.tensor([1.0, 0.0, 2.0])
        return [x.gt_(0.5).tolist(), x.logical_not_().tolist(), x.eq_(1).tolist(), x._version]

    assert run(engine) == run(torch)
    with pytest.raises(NotImplementedError, match="without the underscore"):
        (leaf(engine) * 2).gt_(0)


@pytest.mark.parametrize("retained", [False, True])
@pytest.mark.parametrize("wanted", [(True, False), (True, True), (False, True)])
def test_what_is_copied_over_stays_in_the_graph(wanted: tuple[bool, bool], retained: bool) -> None:
    def run(t: Any) -> list:
        x, v = leaf(t).requires_grad_(wanted[0]), t.ones(3, dtype=t.float32, requires_grad=wanted[1])
        y = x.detach().requires_grad_(wanted[0]) * 2
        if retained and y.requires_grad:
            y.retain_grad()
        y.copy_(v)
        (y * y).sum().backward()
        grads = [
            None if tensor.grad is None else tensor.grad.tolist() for tensor in (v, y) if tensor.is_leaf or retained
        ]
        return [place(y), grads]

    if retained and not wanted[0]:
        return
    assert run(engine) == run(torch)


@pytest.mark.parametrize("index", [slice(None), ..., (slice(None), slice(None)), (), slice(0, 2), (..., slice(0, 3))])
def test_an_index_that_takes_all_is_an_alias_or_a_slice(index: Any) -> None:
    def run(t: Any) -> tuple:
        return place(leaf(t)[index])

    assert run(engine) == run(torch)


def test_a_leaf_that_no_longer_requires_grad_gets_none() -> None:
    def run(t: Any) -> Any:
        x, w = leaf(t), leaf(t)
        y = (x * w).sum()
        x.requires_grad_(False)
        y.backward(retain_graph=True)
        y.backward(inputs=[w])
        return x.grad, w.grad.tolist()

    assert run(engine) == run(torch)


def test_part_of_what_is_expanded_is_written_to() -> None:
    def run(t: Any) -> list:
        y = (leaf(t) * 2).expand(4, 2, 3)
        y[0] = 5.0
        return [place(y), y.tolist()]

    assert run(engine) == run(torch)
