"""What is raised where shapes, dimensions or indices are wrong: PyTorch's class and first sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

Wrong = Callable[[Any, Any, Any], Any]  # of a library, a tensor (3, 2) and one (2, 2)

SHAPES: dict[str, Wrong] = {
    "mul": lambda t, a, b: a * b,
    "add of three dimensions": lambda t, a, b: t.ones(4, 3, 5) + a,
    "comparison": lambda t, a, b: a > b,
    "maximum": lambda t, a, b: t.maximum(a, b),
    "in place": lambda t, a, b: a.add_(b),
    "in place, larger": lambda t, a, b: a.add_(t.ones(4, 3, 2)),
    "where": lambda t, a, b: t.where(a > 0, a, b),
    "where, by its condition": lambda t, a, b: t.where(t.ones(5) > 0, a, a),
    "addcmul": lambda t, a, b: t.addcmul(a, b, b),
    "lerp": lambda t, a, b: t.lerp(a, b, 0.5),
    "clamp": lambda t, a, b: t.clamp(a, b),
    "masked_fill": lambda t, a, b: a.masked_fill(t.ones(5) > 0, 1.0),
    "masked_select": lambda t, a, b: a.masked_select(t.ones(5) > 0),
    "broadcast_tensors": lambda t, a, b: t.broadcast_tensors(a, b),
    "mse_loss": lambda t, a, b: t.nn.functional.mse_loss(a, b),
    "copy_": lambda t, a, b: a.copy_(b),
    "setitem": lambda t, a, b: a.__setitem__(0, t.ones(3)),
    "cat of other dimensions": lambda t, a, b: t.cat([t.ones(2), a]),
    "cat of other sizes": lambda t, a, b: t.cat([a, t.ones(3, 3)]),
    "cat of nothing": lambda t, a, b: t.cat([]),
    "stack": lambda t, a, b: t.stack([a, b]),
    "stack of nothing": lambda t, a, b: t.stack([]),
    "expand": lambda t, a, b: a.expand(2, 2),
    "expand to fewer": lambda t, a, b: a.expand(2),
    "einsum": lambda t, a, b: t.einsum("ij,ij->ij", a, b),
    "einsum of fewer dimensions": lambda t, a, b: t.einsum("ijk->i", a),
    "einsum of no dimension": lambda t, a, b: t.einsum("i...->i", t.tensor(1.0)),
    "einsum of fewer operands": lambda t, a, b: t.einsum("i,i->i", a),
    "einsum of an unknown letter": lambda t, a, b: t.einsum("ij->k", a),
    "matmul of a number": lambda t, a, b: t.tensor(1.0) @ a,
    "copy_ of more": lambda t, a, b: t.ones(2).copy_(a),
    "part of a leaf": lambda t, a, b: t.ones(2, requires_grad=True).chunk(2)[0].mul_(2),
    "chunk of a number": lambda t, a, b: t.tensor(1.0).chunk(2),
    "split of a number": lambda t, a, b: t.tensor(1.0).split(1),
    "cat of a number": lambda t, a, b: t.cat([a, t.tensor(1.0)]),
    "tril": lambda t, a, b: a[0].tril(),
    "setitem of more": lambda t, a, b: a.__setitem__((0, 0), t.ones(3)),
    "setitem by places": lambda t, a, b: a.__setitem__([0, 1], t.ones(3)),
    "index_add of another shape": lambda t, a, b: t.ones(2).index_add_(0, t.tensor([0]), t.ones(1, 2)),
    "index_add of more": lambda t, a, b: a.index_add_(0, t.tensor([0]), b),
    "linear": lambda t, a, b: t.nn.functional.linear(a, t.ones(3, 3)),
    "sum over one dimension twice": lambda t, a, b: a.sum((0, -2)),
    "mean over one dimension twice": lambda t, a, b: a.mean((1, 1)),
    "masked_scatter of too few": lambda t, a, b: a.masked_scatter(a > 0, b),
    "scatter of a number": lambda t, a, b: a[0].scatter(0, t.zeros(1, 1, dtype=t.int64), 2.0),
    "scatter of another dimension": lambda t, a, b: a.scatter(0, t.zeros(1, dtype=t.int64), t.ones(2)),
    "addmm of vectors": lambda t, a, b: t.addmm(a[0], a[0], a[0]),
    "addmm of a matrix and a vector": lambda t, a, b: t.addmm(a, a, a[0]),
    "addmm of other sizes": lambda t, a, b: t.addmm(a, a, a),
    "mv of matrices": lambda t, a, b: t.mv(a, b),
    "mv of vectors": lambda t, a, b: t.mv(a[0], b[0]),
    "addmv of vectors": lambda t, a, b: t.addmv(a[0], a[0], a[0]),
    "addr of matrices": lambda t, a, b: t.addr(a, a, b),
    "mm of vectors": lambda t, a, b: t.mm(a[0], a[0]),
    "mm of a matrix and a vector": lambda t, a, b: t.mm(a, a[0]),
    "bmm of matrices": lambda t, a, b: t.bmm(a, b),
    "bmm of a batch and a matrix": lambda t, a, b: t.bmm(t.ones(1, 2, 2), b),
    "dot of matrices": lambda t, a, b: t.dot(a, b),
    "trace of a vector": lambda t, a, b: t.trace(a[0]),
    "cdist of vectors": lambda t, a, b: t.cdist(a[0], a[0]),
    "cdist of other sizes": lambda t, a, b: t.cdist(a, t.ones(2, 3)),
    "mT of a vector": lambda t, a, b: a[0].mT,
    "H of a batch": lambda t, a, b: t.ones(2, 2, 2).H,
    "linear of an empty vector": lambda t, a, b: t.nn.functional.linear(t.ones(0), a),
    "setitem with more indices": lambda t, a, b: a[0].__setitem__((slice(None), 0), 1.0),
    "setitem of a number by places": lambda t, a, b: t.tensor(1.0).__setitem__([0], 1.0),
    "layer_norm over nothing": lambda t, a, b: t.nn.functional.layer_norm(t.tensor(1.0), ()),
    "layer_norm of whole numbers": lambda t, a, b: t.nn.functional.layer_norm(t.ones(2).long(), (2,)),
    "softmax of whole numbers": lambda t, a, b: a.long().softmax(1),
    "softmax of whole numbers, not along the last": lambda t, a, b: a.long().softmax(0),
    "log_softmax of a mask": lambda t, a, b: (a > 0).log_softmax(1),
    **{
        f"{name} of whole numbers": lambda t, a, b, name=name: getattr(t.nn.functional, name)(a.int())
        for name in (
            "leaky_relu",
            "elu",
            "selu",
            "celu",
            "gelu",
            "silu",
            "mish",
            "softplus",
            "hardswish",
            "hardsigmoid",
            "hardshrink",
            "softshrink",
            "logsigmoid",
        )
    },
    "dot": lambda t, a, b: t.dot(a[0], t.ones(3)),
    "mv": lambda t, a, b: a @ t.ones(3),
    "mm": lambda t, a, b: b @ a,
    "bmm": lambda t, a, b: t.bmm(t.ones(2, 3, 2), t.ones(2, 3, 2)),
    "matmul of batches": lambda t, a, b: t.ones(2, 3, 2) @ t.ones(3, 2, 2),
    "outer": lambda t, a, b: t.outer(a, b),
    "reshape": lambda t, a, b: a.reshape(5),
    "view": lambda t, a, b: a.view(4),
    "permute": lambda t, a, b: a.permute(0),
    "repeat": lambda t, a, b: a.repeat(2),
    "unflatten": lambda t, a, b: a.unflatten(0, (2, 2)),
    "conv2d": lambda t, a, b: t.nn.functional.conv2d(t.ones(1, 2, 4, 4), t.ones(1, 3, 2, 2)),
    "cross_entropy": lambda t, a, b: t.nn.functional.cross_entropy(a, t.tensor([0, 1])),
    "cross": lambda t, a, b: t.linalg.cross(a[0], a[0]),
    "det": lambda t, a, b: t.linalg.det(a),
    "ragged": lambda t, a, b: t.tensor([[1], [2, 3]]),
    "negative size": lambda t, a, b: t.zeros(-1),
}
DIMENSIONS: dict[str, Wrong] = {
    "sum": lambda t, a, b: a.sum(3),
    "max": lambda t, a, b: a.max(5),
    "logsumexp": lambda t, a, b: t.logsumexp(a, 9),
    "transpose": lambda t, a, b: a.transpose(0, 4),
    "squeeze": lambda t, a, b: a.squeeze(4),
    "flip": lambda t, a, b: a.flip(4),
    "softmax": lambda t, a, b: t.softmax(a, -3),
    "unsqueeze": lambda t, a, b: a.unsqueeze(4),
    "cat": lambda t, a, b: t.cat([a, a], 2),
    "split of nothing": lambda t, a, b: a.split(0),
    "chunk of nothing": lambda t, a, b: a.chunk(0),
}
INDICES: dict[str, Wrong] = {
    "row": lambda t, a, b: a[5],
    "column": lambda t, a, b: a[0, 5],
    "too many": lambda t, a, b: a[0, 0, 0],
    "of a number": lambda t, a, b: t.tensor(1.0)[0],
    "unbind of a number": lambda t, a, b: t.tensor(1.0).unbind(0),
    "mask": lambda t, a, b: a[t.ones(5) > 0],
    "gather": lambda t, a, b: a.gather(0, t.ones(1, 5, 1, dtype=t.int64)),
    "gather, outside": lambda t, a, b: a.gather(0, t.tensor([[7, 0]])),
    "index_select": lambda t, a, b: a.index_select(0, t.tensor([7])),
    "index_add": lambda t, a, b: a.index_add(0, t.tensor([0, 5]), b),
    "scatter": lambda t, a, b: a.scatter(0, t.tensor([[9, 0]]), 1.0),
    "topk": lambda t, a, b: a.topk(7),
    "embedding": lambda t, a, b: t.nn.Embedding(3, 2)(t.tensor([5])),
    "nll_loss": lambda t, a, b: t.nn.functional.nll_loss(a, t.tensor([0, 1, 7])),
}
OTHERS: dict[str, Wrong] = {
    "item": lambda t, a, b: a.item(),
    "bool": lambda t, a, b: bool(a),
    "max of nothing": lambda t, a, b: t.empty(0).max(),
    "arange": lambda t, a, b: t.arange(0, 5, -1),
    "singular": lambda t, a, b: t.linalg.inv(t.zeros(2, 2)),
    "no cholesky": lambda t, a, b: t.linalg.cholesky(-t.eye(2)),
    "singular system": lambda t, a, b: t.linalg.solve(t.zeros(2, 2), t.ones(2)),
    "a string": lambda t, a, b: a + "x",
    "None": lambda t, a, b: a * None,
    "leaf": lambda t, a, b: t.ones(2, requires_grad=True).add_(1),
    "leaf by index": lambda t, a, b: t.ones(2, requires_grad=True).__setitem__(0, 1.0),
    "leaf by mask": lambda t, a, b: t.ones(2, requires_grad=True).__setitem__(t.ones(2) > 0, 1.0),
    "numpy of what requires grad": lambda t, a, b: t.ones(2, requires_grad=True).numpy(),
    "backward of a vector": lambda t, a, b: (t.ones(2, requires_grad=True) * 2).backward(),
    "backward without a graph": lambda t, a, b: a.sum().backward(),
    "integers require grad": lambda t, a, b: t.ones(2, dtype=t.int64, requires_grad=True),
    "mean of integers": lambda t, a, b: t.ones(2, dtype=t.int64).mean(),
    "a soft margin's target that requires grad": lambda t, a, b: t.nn.functional.soft_margin_loss(
        a, t.ones(3, 2, requires_grad=True)
    ),
    "a multi margin's weight that requires grad": lambda t, a, b: t.nn.functional.multi_margin_loss(
        b, t.tensor([0, 1]), weight=t.ones(2, requires_grad=True)
    ),
    "bools subtracted": lambda t, a, b: t.tensor([True]) - t.tensor([True]),
    "1 - a mask": lambda t, a, b: 1 - t.tensor([True]),
    "a mask - 1": lambda t, a, b: t.tensor([True]) - 1,
    "a mask negated": lambda t, a, b: -t.tensor([True]),
    "scatter of another dtype": lambda t, a, b: a.scatter(0, t.tensor([[0, 1]]), b.double()),
    "scatter_add of too few": lambda t, a, b: a.scatter_add(0, t.tensor([[0, 1, 0]]), b),
    "scatter_reduce by what there is not": lambda t, a, b: a.scatter_reduce(0, t.tensor([[0, 1]]), b, "mul"),
    "dtypes of index_add": lambda t, a, b: a.index_add(0, t.tensor([0]), a[:1].double()),
    "dtypes of index_copy": lambda t, a, b: a.index_copy(0, t.tensor([0]), a[:1].long()),
    "dtypes of lerp": lambda t, a, b: t.lerp(a, a.double(), 0.5),
    "dtypes of lerp's weight": lambda t, a, b: t.lerp(a, a, a.double()),
    "dtypes of setitem by places": lambda t, a, b: a.__setitem__([0], a[:1].double()),
    "dtypes of setitem by places, one number": lambda t, a, b: a.__setitem__([0], t.tensor(1)),
    "dtypes of mm": lambda t, a, b: a @ b.double(),
    "a complex root": lambda t, a, b: (t.tensor([1 + 1j], requires_grad=True) * 1).sum().backward(),
    "an input that is not used": lambda t, a, b: t.autograd.grad(
        a.requires_grad_().sum(), [a, t.ones(2, requires_grad=True)]
    ),
    "a step that is differentiated": lambda t, a, b: t.heaviside(a.requires_grad_(), a.detach()).sum().backward(),
}
WRONG = {
    f"{kind}: {name}": wrong
    for kind, cases in (("shape", SHAPES), ("dimension", DIMENSIONS), ("index", INDICES), ("other", OTHERS))
    for name, wrong in cases.items()
}


def said(library: Any, wrong: Wrong) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        wrong(library, library.ones(3, 2), library.ones(2, 2))
    return caught.type.__name__.lstrip("_"), str(caught.value).split(". ")[0].rstrip(".").strip()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", WRONG)
def test_an_error_says_what_pytorchs_says(name: str) -> None:
    assert said(engine, WRONG[name]) == said(torch, WRONG[name])


@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_a_loss_of_two_shapes_is_warned_of_as_in_pytorch(loss: str) -> None:
    def warned(t: Any) -> str:
        with pytest.warns(UserWarning, match="Using a target size") as caught:
            getattr(t.nn.functional, loss)(t.ones(3, 1), t.ones(3))
        return str(caught[0].message)

    assert warned(engine) == warned(torch)


def test_a_distance_and_differences_have_pytorchs_dtype_and_node() -> None:
    def seen(t: Any) -> list[Any]:
        x, nothing = t.tensor([1.0, 2.0], requires_grad=True), t.zeros(0, requires_grad=True)
        distance, differences = t.dist(x, t.tensor([0, 1])), t.diff(nothing)
        distance.backward()
        return [str(distance.dtype).split(".")[-1], x.grad.tolist(), differences.grad_fn, differences is nothing]

    assert seen(engine)[0::2] == seen(torch)[0::2]
    assert seen(engine)[1] == pytest.approx(seen(torch)[1])
    assert seen(engine)[3] is seen(torch)[3] is True


def _put(t: Any, x: Any, index: Any) -> Any:
    y = x * 2
    y[index] = t.ones((), requires_grad=True) * 3
    return y


_OF_INDICES: dict[str, Wrong] = {
    "gather": lambda t, x, i: x.gather(0, i),
    "x[i]": lambda t, x, i: x[i],
    "x[:, i]": lambda t, x, i: t.stack([x, x])[:, i],
    "x[i] = y": _put,
    "take": lambda t, x, i: x.take(i),
    "scatter": lambda t, x, i: t.zeros(2).scatter(0, i, x),
    "scatter_add": lambda t, x, i: t.zeros(2).scatter_add(0, i, x),
    "index_select": lambda t, x, i: x.index_select(0, i),
    "index_add_": lambda t, x, i: t.zeros(2).index_add_(0, i, x * 2),
    "index_fill": lambda t, x, i: x.index_fill(0, i, 5.0),
    "index_put": lambda t, x, i: x.index_put((i,), t.ones(2)),
    "embedding": lambda t, x, i: t.nn.functional.embedding(i, x.view(2, 1)),
    "cross_entropy": lambda t, x, i: t.nn.functional.cross_entropy(t.stack([x, x]), i),
    "multi_margin_loss": lambda t, x, i: t.nn.functional.multi_margin_loss(t.stack([x, x]), i),
}
_OF_A_MASK: dict[str, Wrong] = {
    "where": lambda t, x, m: t.where(m, x, x * 2),
    "x[m]": lambda t, x, m: x[m],
    "x[m] = y": _put,
    "masked_fill": lambda t, x, m: x.masked_fill(m, 0.0),
    "masked_fill_": lambda t, x, m: (x * 2).masked_fill_(m, t.ones(())),
    "masked_select": lambda t, x, m: x.masked_select(m),
}
_OF_NUMBERS: dict[str, Wrong] = {
    "weight of a cross entropy": lambda t, x, w: t.nn.functional.nll_loss(x.view(1, 2), t.tensor([1]), weight=w),
    "weight of a binary one": lambda t, x, w: t.nn.functional.binary_cross_entropy(x / 9, t.ones(2), weight=w),
    "pos_weight": lambda t, x, w: t.nn.functional.binary_cross_entropy_with_logits(x, t.ones(2), pos_weight=w),
    "soft_margin_loss": lambda t, x, y: t.nn.functional.soft_margin_loss(x, y),
    "batch_norm": lambda t, x, v: t.nn.functional.batch_norm(x.view(1, 2), t.zeros(2), v),
}
READ = {
    f"{call}: {said}": (read, change, function)
    for call, read, change, functions in (
        ("indices", [0, 1], lambda i: i.zero_(), _OF_INDICES),
        ("a mask", [True, False], lambda m: m.logical_not_(), _OF_A_MASK),
        ("numbers", [1.0, 2.0], lambda w: w.add_(1), _OF_NUMBERS),
    )
    for said, function in functions.items()
}


@pytest.mark.parametrize("case", READ)
def test_what_an_op_read_beside_its_operands_may_not_change_before_backward(case: str) -> None:
    values, change, function = READ[case]

    def said(library: Any) -> str:
        x, read = library.tensor([1.0, 2.0], requires_grad=True), library.tensor(values)
        result = function(library, x, read)
        change(read)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            result.sum().backward()
        return str(raised.value).split("Hint")[0]

    assert said(engine) == said(torch)


def test_a_pass_with_inputs_fills_the_grad_of_a_non_leaf() -> None:
    def seen(t: Any) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        (y * y).sum().backward(inputs=[y], retain_graph=True)
        (y * y).sum().backward(inputs=[y])
        return [y.grad.tolist(), y.retains_grad, x.grad, bool(t.zeros(0).mean().isnan())]

    assert seen(engine) == seen(torch)
