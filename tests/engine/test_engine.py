"""What the engine promises beyond single derivatives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import gradviz.engine as torch


def graph_of(function: Callable[[], object]) -> object:
    return function()


def test_a_chain_of_a_hundred_thousand_operations_needs_no_recursion() -> None:
    x = torch.ones(1, requires_grad=True)
    h = x
    for _ in range(100_000):
        h = h * 1.0
    h.backward(torch.ones(1))
    assert x.grad.tolist() == [1.0]


def test_a_watched_chain_of_a_hundred_thousand_operations_needs_no_recursion() -> None:
    x = torch.ones(1, requires_grad=True)
    h = x
    for _ in range(100_000):
        h = h * 1.0
    (gradient,) = torch.autograd.grad(h, x, torch.ones(1))
    assert gradient.tolist() == [1.0]


def test_a_graph_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        x = torch.ones(2, requires_grad=True)
        y = torch.exp(x * 2).sum()
        nodes = [weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.next_functions[0][0])]
        y.backward()
        del y
        assert [node() for node in nodes] == [None, None]
    finally:
        gc.enable()


def test_two_leaves_never_share_the_memory_of_a_gradient() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    seed = torch.ones(2)
    (a + b).backward(seed)
    a.grad.add_(5)
    assert b.grad.tolist() == [1.0, 1.0]
    assert seed.tolist() == [1.0, 1.0]


def test_a_leaf_keeps_a_gradient_that_nobody_else_holds_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    rule = np.multiply

    def remembered(g: np.ndarray, y: np.ndarray) -> np.ndarray:
        result = rule(g, y)
        made.append(result.ctypes.data)
        return result

    x = torch.ones(100, requires_grad=True)
    y = x * torch.ones(100)
    monkeypatch.setattr(type(y.grad_fn), "vjp", lambda node, g: (remembered(g, node.y.array), None))
    y.backward(torch.ones(100))
    assert x.grad.array.ctypes.data == made[0]


def test_inference_mode_records_no_graph_except_in_a_normal_region_within() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        assert not (x * 2).requires_grad
        with torch.inference_mode(False):
            assert (x * 2).requires_grad

    @torch.inference_mode()
    def called() -> bool:
        return (x * 2).requires_grad

    @torch.inference_mode
    def bare() -> bool:
        return (x * 2).requires_grad

    assert (called(), bare()) == (False, False)
    assert (x * 2).requires_grad


def test_nodes_run_in_the_order_of_their_numbers_and_leaves_as_soon_as_they_can() -> None:
    order: list[str] = []
    x = torch.ones(1, requires_grad=True)
    w = torch.ones(1, requires_grad=True)
    a = x * 2
    b = w * 3
    c = a + b
    for name, t in (("a", a), ("b", b), ("c", c)):
        t.grad_fn.register_prehook(lambda _, name=name: order.append(name))
    for name, leaf in (("x", x), ("w", w)):
        leaf.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    c.backward()
    assert order == ["c", "b", "w", "a", "x"]


def test_gradients_may_be_asked_for_on_the_way() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    y = x * x
    z = y * 2
    gy, gx = torch.autograd.grad(z, [y, x])
    assert (gy.item(), gx.item()) == (2.0, 12.0)
    assert x.grad is None


def test_an_unused_input_is_an_error_unless_allowed() -> None:
    x, u = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad((x * 2).sum(), [u])
    assert torch.autograd.grad((x * 2).sum(), [u], allow_unused=True) == (None,)
    (zeros,) = torch.autograd.grad((x * 2).sum(), [u], allow_unused=True, materialize_grads=True)
    assert zeros.tolist() == [0.0]


def test_backward_with_inputs_fills_only_those() -> None:
    x, w = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    (x * w).backward(inputs=[w])
    assert x.grad is None
    assert w.grad.tolist() == [1.0]


def test_errors_carry_advice_in_a_note() -> None:
    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        torch.ones(1).backward()
    assert any("detach()" in note for note in caught.value.__notes__)


def test_numpy_functions_on_tensors_record_themselves() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = np.sin(x) + np.add(x, np.ones(2, np.float32))
    assert type(y) is torch.Tensor
    y.sum().backward()
    np.testing.assert_allclose(x.grad.array, np.cos([1.0, 2.0]) + 1, rtol=1e-6)


def test_memory_is_shared_with_numpy() -> None:
    array = np.zeros(3, np.float32)
    t = torch.from_numpy(array)
    array[0] = 5
    assert t.tolist() == [5, 0, 0]
    t[1] = 7
    assert array[1] == 7


def test_a_view_and_its_base_share_their_version() -> None:
    x = torch.zeros(4)
    view = x[1:3]
    view.add_(1)
    assert x.tolist() == [0, 1, 1, 0]
    assert x._version == view._version == 1


def test_a_change_through_a_detached_alias_is_found_out() -> None:
    x = torch.ones(2, requires_grad=True)
    y = torch.exp(x)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_assignment_through_an_index_is_differentiated() -> None:
    x, v = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    y = x * 3
    y[1:] = v * v
    assert y.grad_fn.name() == "torch::autograd::CopySlices"
    assert "grad_fn=<CopySlices>" in repr(y)
    y.sum().backward()
    assert y.tolist() == [3.0, 4.0, 4.0]
    assert x.grad.tolist() == [3.0, 0.0, 0.0]
    assert v.grad.item() == 8.0


def test_what_was_saved_is_checked_after_assignment_through_an_index() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.exp(x)
    y[0] = 2.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_floats_of_python_take_the_dtype_of_the_tensor() -> None:
    x = torch.ones(2)
    assert (x * 2.5).dtype == torch.float32
    assert (torch.ones(2, dtype=torch.float64) * 2).dtype == torch.float64
    assert (torch.arange(3) * 0.5).dtype == torch.float32
    assert (torch.ones(2) * torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize("function", [lambda x: 2**x, lambda x: x.max()], ids=["rpow", "max"])
def test_a_gradient_that_is_asked_for_has_the_dtype_of_its_tensor(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    on_the_way = x * 1
    found = torch.autograd.grad(function(on_the_way).sum(), (x, on_the_way))
    assert [gradient.dtype for gradient in found] == [torch.float32, torch.float32]


def test_a_gradient_has_the_dtype_of_its_leaf() -> None:
    x = torch.ones(2, requires_grad=True)
    y = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float32, torch.float64)


def test_the_users_own_numpy_still_warns() -> None:
    with pytest.warns(RuntimeWarning):
        np.log(np.zeros(1))


def test_once_differentiable_refuses_a_second_derivative() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = torch.tensor(3.0, requires_grad=True)
    (g,) = torch.autograd.grad(Square.apply(x) ** 2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.backward()


def test_a_function_of_several_outputs() -> None:
    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, ga, gb):
            return ga * 2 + gb * 3

    x = torch.tensor(1.0, requires_grad=True)
    a, b = Split.apply(x)
    assert (a.output_nr, b.output_nr) == (0, 1)
    b.backward()
    assert x.grad.item() == 3.0  # a's gradient came as zeros
    assert isinstance(a.grad_fn, torch.autograd.graph.Node)


def test_double_backward_through_a_custom_function() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2

    x = torch.tensor(2.0, requires_grad=True)
    (g,) = torch.autograd.grad(Cube.apply(x), x, create_graph=True)
    (gg,) = torch.autograd.grad(g, x)
    assert gg.item() == 12.0


def test_the_operators_reflect() -> None:
    x = torch.tensor([2.0, 4.0], requires_grad=True)
    y = (1 - x) * 3 + 8 / x + 2**x - x / 2 + (-x)
    y.sum().backward()
    expected = -3 - 8 / np.array([4.0, 16.0]) + np.log(2) * 2 ** np.array([2.0, 4.0]) - 0.5 - 1
    np.testing.assert_allclose(x.grad.array, expected, rtol=1e-6)


RANKS = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 2)), ((4, 2, 3), (3, 2)), ((2, 3), (4, 3, 2))]
RANKS += [((5, 1, 2, 3), (4, 3, 2)), ((3,), (4, 3, 2)), ((4, 2, 3), (3,))]


def test_matmul_of_every_rank() -> None:
    rng = np.random.default_rng(1)
    for left, right in RANKS:
        a, b = rng.normal(size=left), rng.normal(size=right)
        x = torch.tensor(a, dtype=torch.float64, requires_grad=True)
        y = torch.tensor(b, dtype=torch.float64, requires_grad=True)
        out = x @ y
        np.testing.assert_allclose(out.array, a @ b, rtol=1e-12)
        out.sum().backward()
        assert (x.grad.shape, y.grad.shape) == (left, right)
        moved = a.copy()
        moved[(0,) * a.ndim] += 1e-6
        slope = (np.sum(moved @ b) - np.sum(a @ b)) / 1e-6
        np.testing.assert_allclose(x.grad.array[(0,) * a.ndim], slope, rtol=1e-4)


def test_an_index_of_several_parts_is_several_nodes() -> None:
    y = torch.ones(3, 4, requires_grad=True) * 1
    node = y[1:, 2].grad_fn
    assert node.name() == "SelectBackward0"
    assert node.next_functions[0][0].name() == "SliceBackward0"


def test_an_integer_beside_a_tensor_in_an_index_is_a_slice() -> None:
    x = torch.arange(24).reshape(2, 3, 4)
    assert x[0, :, torch.tensor([0, 1])].shape == (3, 2)
    x[0, :, torch.tensor([0, 1])] = torch.arange(6).reshape(3, 2)
    assert x[0, :, :2].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_an_op_in_place_keeps_what_its_derivative_needs() -> None:
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    y = x * 1
    y.sin_()
    y.sum().backward()
    assert torch.allclose(x.grad, torch.cos(x.detach()))


def test_a_random_permutation_is_pytorchs() -> None:
    torch.manual_seed(0)
    assert torch.randperm(8).tolist() == [4, 0, 7, 3, 2, 5, 1, 6]


@pytest.mark.parametrize("of", [lambda t: 1 - t, lambda t: -t, lambda t: t * 2, lambda t: t])
def test_a_trace_gives_its_gradient_to_the_diagonal(of: Callable) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    factor = torch.ones((), requires_grad=True)
    of(factor).backward()
    of(torch.trace(x)).backward()
    given = factor.grad.item()
    assert x.grad.tolist() == [[given, 0, 0], [0, given, 0]]
