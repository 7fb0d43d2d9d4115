"""Makes the table of what PyTorch gives as gradients at ties, bounds and singular points, by running it.

    python tests/versions/points.py record                                # the installed PyTorch, as JSON
    python tests/versions/points.py build PYTHON...                       # the table of several versions
    python tests/versions/points.py page                                  # docs/at-points.md

`build` writes gradviz/query/at_points.json; each PYTHON is an interpreter with another version of PyTorch. A point is
left out if all versions give what finite differences from both sides give there: then the derivative exists.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

PLACE = Path(__file__).parents[2]
TABLE = PLACE / "gradviz" / "query" / "at_points.json"
PAGE = PLACE / "docs" / "at-points.md"
_INF, _NAN = math.inf, math.nan
_OF_ONE = (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, _INF, -_INF, _NAN)
_OF_TWO = (0.0, 1.0, -1.0, _INF, -_INF, _NAN)
_LISTED = 3  # points in a row of the page
_H = 1e-6  # the step of the differences
_SLOPES_AGREE = 1e-3
_REFUSED = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
_LEFT_OUT = {  # ops of the database whose results are random or not differentiable
    "nn.functional.dropout", "bernoulli", "frexp", "rsub", "__rsub__", "__radd__", "__rmul__", "jiterator_unary",
    "jiterator_binary", "special.zeta", "polygamma", "special.polygamma", "to_sparse", "complex", "polar", "ldexp",
}  # fmt: skip


class Call(NamedTuple):
    """A call of an op, as text with its inputs named x, y and z, and the points at which it runs."""

    op: str
    text: str
    points: Sequence[tuple[Any, ...]]


def hand_given() -> Iterator[Call]:
    """The calls that the database has only with other arguments, or not at values like these."""
    numbers = [(value,) for value in _OF_ONE]
    pairs = [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (_INF, _INF), (-_INF, -_INF), (_NAN, 0.0), (0.0, _NAN)]
    for text in (
        "x.clamp(min=0)",
        "x.clamp(max=0)",
        "x.clamp(min=0, max=1)",
        "x.clamp(min=1, max=1)",
        "x.clamp(min=1, max=0)",
        "x.clip(min=0)",
        "x.clip(min=0, max=1)",
        "x.clamp_min(0)",
        "x.clamp_max(0)",
        "(x * 1).clamp_(min=0)",
        "F.relu6(x)",
        "F.hardtanh(x)",
        "F.hardsigmoid(x)",
        "F.hardswish(x)",
        "F.threshold(x, 0, 0)",
        "F.hardshrink(x, 0.5)",
        "F.softshrink(x, 0.5)",
        "F.leaky_relu(x, 0.1)",
        "F.elu(x)",
        "F.celu(x)",
        "F.selu(x)",
        "F.rrelu(x)",
        "F.gelu(x)",
        "F.silu(x)",
        "F.mish(x)",
        "F.softplus(x)",
        "F.logsigmoid(x)",
        "F.softsign(x)",
        "F.tanhshrink(x)",
        "x ** 0.5",
        "x ** 0",
        "x ** 1",
        "x ** 1.5",
        "x ** 2",
        "x ** -1",
        "2.0 ** x",
        "0.0 ** x",
        "x.nan_to_num()",
        "x.sqrt().sqrt()",
        "torch.where(x > 0, x.sqrt(), 0.0)",
        "torch.where(x > 0, x.log(), 0.0)",
        "torch.special.entr(x)",
        "torch.special.logit(x, eps=0.1)",
        "x / x",
        "x.abs().sqrt()",
        "torch.var(torch.stack([x, x])).sqrt()",
        "x.fmod(1)",
        "x.remainder(1)",
        "x.div(1, rounding_mode='floor')",
        "1 / x",
        "x.square().sqrt()",
        "torch.xlogy(x, 0.0)",
        "F.softplus(x, threshold=0)",
    ):
        yield Call(_op_of(text), text, numbers)
    for text in (
        "x.clamp(min=y)",
        "x.clamp(max=y)",
        "torch.clamp_min(x, y)",
        "torch.clamp_max(x, y)",
        "torch.pow(x, y)",
        "torch.where(x > y, x, y)",
        "F.l1_loss(x, y)",
        "F.smooth_l1_loss(x, y)",
        "F.huber_loss(x, y)",
        "F.mse_loss(x, y)",
        "F.prelu(x, y)",
        "torch.dist(x, y)",
        "torch.special.xlog1py(x, y)",
        "torch.lerp(x, y, 0.5)",
        "x.copysign(y)",
        "F.soft_margin_loss(x, y)",
        "F.poisson_nll_loss(x, y)",
        "F.kl_div(x, y)",
    ):
        yield Call(_op_of(text), text, pairs)
    yield Call("smooth_l1_loss", "F.smooth_l1_loss(x, y)", [(1.0, 0.0), (0.0, 1.0)])
    yield Call("huber_loss", "F.huber_loss(x, y)", [(1.0, 0.0), (0.0, 1.0)])
    yield Call("clamp", "x.clamp(min=y, max=z)", [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.5, 1.0, 0.0)])
    of_target = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.0)]
    yield Call("binary_cross_entropy", "F.binary_cross_entropy(x, y.detach())", of_target)
    logits = [(_INF, 1.0), (_INF, 0.0), (-_INF, 0.0), (-_INF, 1.0), (0.0, 0.0)]
    text = "F.binary_cross_entropy_with_logits(x, y.detach())"
    yield Call("binary_cross_entropy_with_logits", text, logits)
    ranking = [(1.0, 1.0), (0.0, 0.0), (1.0, 0.5)]
    yield Call("margin_ranking_loss", "F.margin_ranking_loss(x, y, torch.ones(()))", ranking)
    text = "F.margin_ranking_loss(x, y, torch.ones(()), margin=0.5)"
    yield Call("margin_ranking_loss", text, ranking)
    hinge = [(1.0,), (0.0,), (2.0,)]
    yield Call("hinge_embedding_loss", "F.hinge_embedding_loss(x, -torch.ones_like(x))", hinge)
    yield Call(
        "gaussian_nll_loss",
        "F.gaussian_nll_loss(x, torch.zeros(1), y)",
        [([0.0], [0.0]), ([1.0], [0.0]), ([0.0], [1e-6])],
    )
    zeros, tie, one, empty = [0.0, 0.0], [1.0, 1.0], [1.0], []
    rows: list[tuple[Any, ...]] = [(zeros,), (tie,), ([1.0, 1.0, 0.0],), ([0.0, 1.0, 1.0],), (one,), ([0.0],), (empty,)]
    rows += [([_NAN, 1.0],), ([_INF, _INF],), ([-_INF, -_INF],), ([_INF, 1.0],)]
    for text in (
        "x.max()",
        "x.min()",
        "x.max(dim=0).values",
        "x.min(dim=0).values",
        "x.amax()",
        "x.amin()",
        "torch.aminmax(x).max",
        "x.median()",
        "x.median(dim=0).values",
        "x.nanmedian()",
        "x.mode(dim=0).values",
        "x.sort().values[0]",
        "x.sort(descending=True).values[0]",
        "x.topk(1).values",
        "x.kthvalue(1).values",
        "x.cummax(dim=0).values",
        "x.cummin(dim=0).values",
        "x.quantile(0.5)",
        "x.nanquantile(0.5)",
        "x.norm()",
        "x.norm(p=1)",
        "x.norm(p=0.5)",
        "x.norm(p=3)",
        "x.norm(p=float('inf'))",
        "torch.linalg.vector_norm(x)",
        "torch.linalg.vector_norm(x, ord=float('inf'))",
        "x.std()",
        "x.std(unbiased=False)",
        "x.var()",
        "x.var(unbiased=False)",
        "x.var().sqrt()",
        "torch.std_mean(x)[0]",
        "x.prod()",
        "x.prod(dim=0)",
        "x.cumprod(dim=0)",
        "x.mean()",
        "x.nanmean()",
        "x.sum()",
        "x.nansum()",
        "x.logsumexp(dim=0)",
        "x.logcumsumexp(dim=0)",
        "x.softmax(dim=0)[0]",
        "x.log_softmax(dim=0)[0]",
        "F.softmin(x, dim=0)[0]",
        "F.normalize(x, dim=0)",
        "F.layer_norm(x, x.shape)",
        "F.rms_norm(x, x.shape)",
        "F.max_pool1d(x[None], 2)",
        "F.adaptive_max_pool1d(x[None], 1)",
        "F.max_pool2d(x[None, None], (1, 2))",
        "F.avg_pool1d(x[None], 2)",
        "F.lp_pool1d(x[None], 2, 2)",
        "F.glu(x, dim=0)",
        "F.local_response_norm(x[None, :, None], 2)",
        "x[None].renorm(2, 0, 1.0)",
        "x.diff().abs()",
        "torch.trapezoid(x)",
        "torch.segment_reduce(x, 'max', lengths=torch.tensor([len(x)]))",
        "torch.zeros(1, dtype=x.dtype).scatter_reduce(0, torch.zeros(len(x), dtype=torch.long), x, 'amax')",
        "torch.zeros(1, dtype=x.dtype).scatter_reduce(0, torch.zeros(len(x), dtype=torch.long), x, 'prod', include_self=False)",  # noqa: E501
        "x.softmax(dim=0).log()[0]",
        "F.cross_entropy(x[None], torch.tensor([0]))",
        "F.cross_entropy(x[None], torch.tensor([-100]))",
        "F.cross_entropy(x[None], torch.tensor([-100]), reduction='sum')",
        "F.nll_loss(x[None], torch.tensor([-100]))",
        "F.cross_entropy(x[None], torch.tensor([0]), label_smoothing=0.1)",
        "F.multi_margin_loss(x[None], torch.tensor([0]))",
        "F.multilabel_soft_margin_loss(x[None], torch.ones(1, len(x)))",
        "F.batch_norm(x[:, None], None, None, training=True)",
        "F.instance_norm(x[None, None])",
        "F.group_norm(x[None], 1)",
        "F.embedding_bag(torch.zeros(1, 2, dtype=torch.long), x[None], mode='max')",
    ):
        yield Call(_op_of(text), text, rows)
    both: list[tuple[Any, ...]] = [
        (zeros, zeros),
        (zeros, tie),
        (tie, zeros),
        (tie, tie),
        ([1.0, 0.0], [0.0, 1.0]),
        (one, one),
    ]
    for text in (
        "F.cosine_similarity(x, y, dim=0)",
        "F.pairwise_distance(x, y)",
        "torch.cdist(x[None], y[None])",
        "torch.dist(x, y)",
        "torch.cdist(x[None], y[None], p=1)",
        "torch.cdist(x[None], y[None], p=float('inf'))",
        "(x - y).norm()",
        "F.triplet_margin_loss(x[None], y[None], y[None])",
        "F.cosine_embedding_loss(x[None], y[None], torch.ones(1))",
        "F.cosine_embedding_loss(x[None], y[None], -torch.ones(1))",
        "F.pdist(torch.stack([x, y]))",
        "F.bilinear(x, y, torch.ones(1, len(x), len(y), dtype=x.dtype))",
    ):
        yield Call(_op_of(text), text, both)
    nothing, equal, singular = [[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]
    matrices: list[tuple[Any, ...]] = [(nothing,), (equal,), (singular,), ([[2.0, 0.0], [0.0, 1.0]],)]
    for text in (
        "torch.linalg.eigh(x).eigenvalues[0]",
        "torch.linalg.eigh(x).eigenvectors[0, 0]",
        "torch.linalg.eigvalsh(x)[0]",
        "torch.linalg.svd(x).S[0]",
        "torch.linalg.svd(x, full_matrices=False).U[0, 0].abs()",
        "torch.linalg.svdvals(x)[0]",
        "torch.linalg.eigvals(x).abs()[0]",
        "torch.linalg.matrix_norm(x)",
        "torch.linalg.matrix_norm(x, ord='nuc')",
        "torch.linalg.matrix_norm(x, ord=2)",
        "torch.linalg.det(x)",
        "torch.linalg.slogdet(x).logabsdet",
        "x.logdet()",
        "torch.linalg.inv(x)[0, 0]",
        "torch.linalg.pinv(x)[0, 0]",
        "torch.linalg.qr(x).R[0, 0]",
        "torch.linalg.cholesky(x)[0, 0]",
        "torch.linalg.cond(x)",
        "torch.linalg.matrix_exp(x)[0, 0]",
        "torch.linalg.solve(x, torch.ones(2, dtype=x.dtype))[0]",
        "torch.corrcoef(x)[0, 1]",
        "torch.cov(x)[0, 1]",
        "F.pdist(x)",
        "x.amax(dim=0)",
        "x.cummax(dim=0).values",
        "F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=torch.tensor([[True, True], [False, False]]))",  # noqa: E501
        "x.masked_fill(torch.tensor([[True, True], [False, False]]), float('-inf')).softmax(dim=1)",
        "x.masked_fill(torch.tensor([[True, True], [False, False]]), float('-inf')).logsumexp(dim=1)",
        "F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2]))",
        "F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2]), zero_infinity=True)",  # noqa: E501
        "F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))",
    ):
        yield Call(_op_of(text), text, matrices)
    yield Call("abs", "torch.complex(x, y).abs()", pairs)
    yield Call("angle", "torch.complex(x, y).angle()", pairs)
    yield Call("sgn", "torch.complex(x, y).sgn().real", pairs)


def of_database() -> Iterator[Call]:
    """The elementwise ops of PyTorch's database that need no argument besides their inputs."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    for info in op_db:
        is_one, is_two = isinstance(info, UnaryUfuncInfo), isinstance(info, BinaryUfuncInfo)
        if not (is_one or is_two) or info.variant_test_name or info.name in _LEFT_OUT:
            continue
        if not info.supports_autograd or torch.float64 not in info.dtypes or info.name.startswith("__"):
            continue
        path = "F." + info.name.removeprefix("nn.functional.") if info.name.startswith("nn.") else f"torch.{info.name}"
        text = f"{path}(x)" if is_one else f"{path}(x, y)"
        yield Call(_op_of(text), text, list(product(_OF_ONE if is_one else _OF_TWO, repeat=1 if is_one else 2)))


def _op_of(text: str) -> str:
    """The name of the op that a call is about: the last function that is called outside of brackets, or `pow`."""
    if "**" in text:
        return "pow"
    depth, end = 0, -1
    for position, letter in enumerate(text):
        if letter == "(" and not depth and position and (text[position - 1].isalnum() or text[position - 1] == "_"):
            end = position
        depth += (letter in "([") - (letter in ")]")
    return text[:end].rpartition(".")[2].rstrip("_") if end > 0 else "div"


def recorded(given: Iterable[Call]) -> dict[str, Any]:
    """What the installed PyTorch gives for calls: at each point the value, the gradient of its sum to each input, and
    whether a derivative exists there."""
    import torch

    calls: dict[str, dict[str, Any]] = {}
    for call in given:
        entry = calls.setdefault(call.text, {"op": call.op, "points": {}})
        for values in call.points:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                entry["points"].setdefault(json.dumps(_plain(list(values))), _at(call.text, values))
    return {"version": torch.__version__.partition("+")[0], "calls": calls}


def _at(text: str, values: Sequence[Any]) -> dict[str, Any]:
    import torch

    inputs = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]
    try:
        out = _ran(text, inputs)
    except _REFUSED as error:
        return {"error": type(error).__name__}
    if not out.requires_grad:
        return {"value": _plain(out.tolist()), "gradients": None, "exists": True}
    try:
        gradients = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    except _REFUSED as error:
        return {"value": _plain(out.tolist()), "error": type(error).__name__}
    gradients = [None if gradient is None else gradient.clone() for gradient in gradients]  # else it has no memory
    given = [None if gradient is None else gradient.tolist() for gradient in gradients]
    return {"value": _plain(out.tolist()), "gradients": _plain(given), "exists": _exists(text, inputs, gradients)}


def _ran(text: str, inputs: Sequence[Any]) -> Any:
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    return eval(text, {"torch": torch, "F": F, **dict(zip("xyz", inputs, strict=False))})


def _exists(text: str, inputs: Sequence[Any], gradients: Sequence[Any]) -> bool:
    """Whether the slopes to both sides agree with each other and with the gradient, for every element."""
    import torch

    def out_at(which: int, element: int, h: float) -> float:
        moved = [x.detach().clone() for x in inputs]
        moved[which].view(-1)[element] += h
        try:
            return float(_ran(text, moved).sum())
        except _REFUSED:  # as a matrix that is not positive definite
            return _NAN

    here = float(_ran(text, [x.detach() for x in inputs]).sum())
    for which, gradient in enumerate(gradients):
        if gradient is None:
            continue
        for element, given in enumerate(gradient.reshape(-1).tolist()):
            x = inputs[which].detach().reshape(-1)[element].item()
            if math.isnan(x) or any(bool(torch.isnan(other).any()) for other in inputs):
                if not math.isnan(given):
                    return False
                continue
            if math.isinf(x) or not math.isfinite(here):
                if math.isnan(given):
                    return False
                continue
            right = (out_at(which, element, _H) - here) / _H
            left = (here - out_at(which, element, -_H)) / _H
            if not all(abs(side - given) <= _SLOPES_AGREE * max(1.0, abs(given)) for side in (left, right)):
                return False
    return True


def _plain(value: Any) -> Any:
    """Numbers with four digits; JSON has no NaN and no infinity, so these are texts."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if not isinstance(value, float):
        return value
    if math.isnan(value) or math.isinf(value):
        return str(value)
    rounded = float(f"{value:.4g}")
    if math.isinf(rounded):  # the largest number of the dtype
        return value
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e6 and str(rounded) != "-0.0" else rounded


def joined(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table of several versions. Each row is a point, the value, and the gradients by the first version that gives
    them; left out is a point with a derivative that all versions give."""
    versions = [record["version"] for record in records]
    calls: dict[str, Any] = {}
    texts = dict.fromkeys(text for record in records for text in record["calls"])
    for text in texts:
        has = [(record["version"], record["calls"][text]["points"]) for record in records if text in record["calls"]]
        rows = []
        for point in has[-1][1]:
            gradients: dict[str, Any] = {}
            last: Any = ...
            for version, points in has:
                now = points[point].get("error") or points[point]["gradients"]
                if now != last:
                    gradients[version], last = now, now
            newest = has[-1][1][point]
            if len(gradients) == 1 and ("gradients" not in newest or _is_plain(newest, point, has[-1][1])):
                continue
            rows.append([json.loads(point), newest.get("value"), gradients])
        op = next(record["calls"][text]["op"] for record in records if text in record["calls"])
        if rows:
            calls[text] = {"op": op, "rows": rows}
    return {"versions": versions, "calls": calls}


def _is_plain(given: dict[str, Any], point: str, points: dict[str, Any]) -> bool:
    """Whether nothing is to be said of a point: the derivative exists there, a number outside of the domain gives NaN,
    or the derivative is the same everywhere."""
    at, gradients = json.loads(point), given["gradients"]
    if given["exists"] or gradients is None:
        return True
    if not any(isinstance(one, list) for one in at) and given["value"] == "nan" and set(gradients) <= {"nan", None}:
        return True
    return "nan" in point and all(one.get("gradients") == gradients for one in points.values() if _alike(one, given))


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the gradients at two points have the same form."""
    form = [[len(x) if isinstance(x, list) else 0 for x in given.get("gradients") or ()] for given in (one, other)]
    return form[0] == form[1]


def written(table: dict[str, Any]) -> str:
    """The table as JSON with a line for each row, so that a new version shows as a difference of lines."""
    calls = []
    for text, call in sorted(table["calls"].items()):
        rows = ",\n".join("  " + json.dumps(row) for row in call["rows"])
        calls.append(f'{json.dumps(text)}: {{"op": {json.dumps(call["op"])}, "rows": [\n{rows}\n]}}')
    return f'{{"versions": {json.dumps(table["versions"])},\n"calls": {{\n' + ",\n".join(calls) + "\n}}\n"


def page(table: dict[str, Any]) -> str:
    """docs/at-points.md, made from the table."""
    sections: dict[str, dict[tuple[str, str], list[str]]] = {title: {} for title in _SECTIONS}
    for text, call in table["calls"].items():
        for at, _, gradients in call["rows"]:
            by_version = [f"{version}: {_said(given)}" for version, given in gradients.items()]
            said = "; ".join(by_version) if len(gradients) > 1 else _said(next(iter(gradients.values())))
            sections[_section(at, gradients)].setdefault((text, said), []).append(_inputs(at))
    lines = [_HEAD.format(versions=", ".join(table["versions"])).rstrip()]
    for title, rows in sections.items():
        lines += ["", f"## {title}", "", _SECTIONS[title], "", "| call | at | gradient |", "|-|-|-|"]
        lines += [f"| `{text}` | {_few(points)} | {said} |" for (text, said), points in rows.items()]
    return "\n".join(lines) + "\n"


def _few(points: Sequence[str]) -> str:
    more = f"; {len(points) - _LISTED} more" if len(points) > _LISTED else ""
    return "; ".join(points[:_LISTED]) + more


_HEAD = """# What PyTorch's gradient is where there is none

At a tie, at a bound, at a corner, at infinity a function has no derivative, and yet `backward()` gives a number. Which
one is a decision of PyTorch, and of its version. This page says what it is, as measured on PyTorch {versions}, in
float64 on the CPU. Formulas of `clamp`, `fmax` and `fmin` in a trace are those of the version that ran.

A gradient is that of the sum of the result, for each input in turn: `1 and 0` means 1 for x and 0 for y. A point stands
here if the slopes to its two sides differ from each other or from what PyTorch gives, if they are not finite, or if
versions differ. Where versions differ, each number holds from its version on. `F` is `torch.nn.functional`.

The page is made by `python tests/versions/points.py page` from `gradviz/query/at_points.json`, which
`python tests/versions/points.py build PYTHON...` measures: give it one interpreter for each version.
"""
_SECTIONS = {
    "Where versions differ": "The same program learns on one version and not on the other.",
    "Ties, bounds and corners": "The slope changes or jumps here. Where the function is continuous, any number between"
    " the slopes of the two sides is a subgradient; a 0 at a point where a parameter starts keeps it there.",
    "Not finite": "A finite gradient becomes NaN or infinite here: one element is enough to lose a parameter.",
    "At infinity and NaN": "An input that is no finite number.",
}


def _section(at: Any, gradients: dict[str, Any]) -> str:
    titles = list(_SECTIONS)
    if len(gradients) > 1:
        return titles[0]
    if "nan" in str(at) or "inf" in str(at):
        return titles[3]
    return titles[2] if "nan" in str(gradients) or "inf" in str(gradients) else titles[1]


def _inputs(at: Sequence[Any]) -> str:
    return ", ".join(f"{name} = {_text(one)}" for name, one in zip("xyz", at, strict=False))


def _said(given: Any) -> str:
    if given is None or isinstance(given, str):
        return str(given or "no gradient")
    return " and ".join(_text(one) for one in given if one is not None)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    number = float(value)
    if math.isnan(number):
        return "NaN"
    text = "∞" if math.isinf(number) else f"{abs(number):.3g}"
    return f"−{text}" if number < 0 else text


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_of_json(one) for one in value]
    return None if value is None else float(value)


def main(verb: str, *pythons: str) -> None:
    """Run one of the commands in the head of this file."""
    if verb == "record":
        print(json.dumps(recorded((*of_database(), *hand_given()))))
    elif verb == "build":
        commands = [[python, __file__, "record"] for python in pythons]
        records = [subprocess.run(command, capture_output=True, check=True).stdout for command in commands]
        records = [json.loads(record) for record in records]
        TABLE.write_text(written(joined(records)), encoding="utf-8")
    elif verb == "page":
        PAGE.write_text(page(json.loads(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
