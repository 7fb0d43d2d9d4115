"""What is shown as the derivative of an op is the derivative that the engine computes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special as special

import gradviz.engine as torch
from gradviz.engine.core.apply import apply
from gradviz.engine.core.broadcasting import sum_to
from gradviz.engine.core.op import Op
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives import TABLE
from gradviz.query.chain_step import evaluated
from tests.engine.derivative_samples import DIFFERENTIABLE, leaves, samples, with_statistics

CASES = [(key, i) for key in DIFFERENTIABLE for i in range(len(samples(key)))]


def given(key: str, i: int) -> tuple[list[np.ndarray], tuple]:
    """The i-th sample of a row, with the statistics among its arguments."""
    arrays, args = samples(key)[i]
    if TABLE[key].name in ("linalg_cholesky", "linalg_eigh"):
        arrays = [(x + np.swapaxes(x, -1, -2)) / 2 for x in arrays]
    return arrays, with_statistics(arrays, args)


def gradients(op: Op, arrays: list[np.ndarray], args: tuple, upstream: Any = None) -> list[np.ndarray]:
    """The engine's gradients, from an upstream gradient for each output."""
    inputs = leaves(arrays)
    out = apply(op, inputs, args)
    outs = [part for part in (out if isinstance(out, tuple) else (out,)) if part.requires_grad]
    upstream = upstream or [np.ones(part.shape) for part in outs]
    found = torch.autograd.grad(outs, inputs, [torch.tensor(g) for g in upstream], materialize_grads=True)
    return [g.numpy() for g in found]


# --- the rule that runs is the one whose text is shown


@pytest.mark.parametrize(("key", "i"), CASES)
def test_the_shown_formula_stands_beside_the_rule_that_runs(key: str, i: int) -> None:
    arrays, args = given(key, i)
    op = TABLE[key]
    ran: list[tuple[str, str]] = []

    def telling(name: str, derivative: Any) -> Any:
        """The derivative, with rules that note the text they stand beside."""

        def noting(variant: Any) -> Any:
            def rule(*needed: Any) -> Any:
                ran.append((name, variant.text))
                return variant.rule(*needed)

            return replace(variant, rule=rule)

        if not hasattr(derivative, "by_value"):
            return noting(derivative)
        table = {value: telling(name, branch) for value, branch in derivative.by_value.items()}
        return replace(derivative, by_value=table, otherwise=telling(name, derivative.otherwise))

    twin = replace(op, derivatives={name: telling(name, rule) for name, rule in op.derivatives.items()})
    gradients(twin, arrays, args)
    assert dict(ran) == {name: op.derivative(name, args).text for name in op.derivatives}
    plain = tuple(arg for arg in args if not isinstance(arg, (int, float, np.number)))
    if len(plain) == len(args):  # no number that would take the place of its name
        assert dict(op.rule(args).inputs) == dict.fromkeys(op.inputs, "") | dict(ran)


@pytest.mark.parametrize("key", DIFFERENTIABLE)
def test_every_value_of_an_argument_that_changes_the_rule_has_a_sample(key: str) -> None:
    op = TABLE[key]
    for name, derivative in op.derivatives.items():
        found = {op.derivative(name, given(key, i)[1]).text for i in range(len(samples(key)))}
        assert found == {variant.text for variant in derivative.variants}


@pytest.mark.parametrize("key", TABLE)
def test_an_op_has_one_formula_for_each_input(key: str) -> None:
    args = samples(key)[0][1] if key in DIFFERENTIABLE else (None,) * len(TABLE[key].args)
    formulas = TABLE[key].rule(args).inputs
    assert tuple(name for name, _ in formulas) == TABLE[key].inputs
    assert all(isinstance(text, str) for _, text in formulas)


@pytest.mark.parametrize(
    ("key", "args", "expected"),
    [
        ("mul", (), [("x", "y"), ("y", "x")]),
        ("pow_number", (3,), [("x", "3 · x²")]),
        ("pow_number", (2,), [("x", "2 · x")]),
        ("pow_number", (1,), [("x", "1")]),
        ("pow_number", (2.5,), [("x", "2.5 · x^1.5")]),
        ("pow_number", (0.5,), [("x", "0.5 · x^(−0.5)")]),
        ("pow_number", (-1.5,), [("x", "−1.5 · x^(−2.5)")]),
        ("pow_number", (0,), [("x", "0")]),
        ("add_scaled", (-2,), [("x", "1"), ("y", "−2")]),
        ("leaky_relu", (0.01,), [("x", "1 where x > 0, else 0.01")]),
        ("elu", (1.0, 1, 1), [("x", "1 where x > 0, else exp(x)")]),
        ("clamp", (0, None), [("x", "x ≥ 0")]),
        ("clamp", (0, 6), [("x", "0 ≤ x ≤ 6")]),
        ("gelu", (), [("x", "Φ(x) + x φ(x)")]),
        ("mse_loss", ("mean",), [("x", "2 (x − y) / n"), ("y", "2 (y − x) / n")]),
        ("mse_loss", ("sum",), [("x", "2 (x − y)"), ("y", "2 (y − x)")]),
        ("binary_cross_entropy", (np.float32(1), "sum"), [("x", "(x − y) / (x (1 − x))"), ("y", "(ln(1 − x) − ln x)")]),
        ("var", (1, 1, False), [("x", "2 (x − mean) / (n − 1), spread")]),
        ("cat", (0,), [("tensors", "1, cut apart")]),
        ("detach", (), [("x", "")]),
        ("floor_divide", (), [("x", ""), ("y", "")]),
    ],
)  # fmt: skip
def test_formulas_have_the_arguments_in_them(key: str, args: tuple, expected: list) -> None:
    assert list(TABLE[key].rule(args).inputs) == expected


def test_batch_norm_in_eval_mode_has_a_formula_of_its_own() -> None:
    training, fixed = TABLE["native_batch_norm"], TABLE["fixed_norm"]
    assert training.node_name == fixed.node_name
    assert training.rule((0,) * 5).inputs[0] != fixed.rule((0,) * 2).inputs[0] == ("x", "weight / σ")


def test_elementwise_ops_say_so() -> None:
    of = [key for key in ("mul", "exp", "where", "clone", "lerp", "sum", "mm", "cat") if TABLE[key].elementwise]
    assert of == ["mul", "exp", "where", "clone", "lerp"]


# --- the formulas, evaluated


REDUCTIONS = "sum sum_dim mean mean_dim nansum var std logsumexp vector_norm norm dist".split()
MATRICES = "mv mm bmm inv det solve solve_vector solve_triangular solve_triangular_right".split()
MATRICES += [f"{name}{end}" for name in "addmm addbmm baddbmm addmv addr".split() for end in ("", "_scaled")]
NORMALIZED = "native_batch_norm native_layer_norm native_group_norm fixed_norm".split()

# Texts that are words, or say it with "…": why nobody evaluates them, and which they are.
NOT_EVALUATED = {
    "the elements go elsewhere, and words say where": """
        1 at each part's maximum; 1 at each window's maximum; 1 for each copy, summed; 1 inside the border;
        1 on the diagonal; 1 where chosen; 1 where chosen, summed; 1 where filled, summed; 1 where it was;
        1 where kept; 1 where not filled; 1 where not written over; 1 where shown, summed; 1 where taken;
        1 where taken, else 0; 1 where taken, summed; 1, added by row; 1, added where windows overlap; 1, by windows;
        1, cut apart; 1, cut out; 1, flipped back; 1, in windows; 1, in x's dtype; 1, in x's shape; 1, joined;
        1, permuted back; 1, put back; 1, rolled back; 1, side by side; 1, summed by channel;
        1, summed over the copies; 1, taken; 1, taken in order; 1, transposed; 1, turned back; 1, windows added;
        alpha, taken; −share at the target; the weights of its pixels, summed""",
    "words say which elements are meant": """
        1 where x is the maximum, shared by ties; 1 where x is the minimum, shared by ties;
        1 where x is the minimum or maximum, shared by ties; 1 where x is the median, shared by ties;
        1 where y is the maximum, shared by ties; 1 where y is the minimum, shared by ties;
        sign(x) where |x| is the maximum, shared by ties, spread;
        sign(x) where |x| is the minimum, shared by ties, spread;
        sign(x − y) where |x − y| is the maximum, shared by ties, spread;
        sign(x − y) where |x − y| is the minimum, shared by ties, spread;
        sign(y − x) where |y − x| is the maximum, shared by ties, spread;
        sign(y − x) where |y − x| is the minimum, shared by ties, spread;
        σ(b) for the first half a, a σ(b)(1 − σ(b)) for the second half b;
        1 / C where a class is in the margin, minus the sum of these at the target;
        1 / C where a class is in the margin, minus the sum of these at the target, over n;
        weight / C where a class is in the margin, minus the sum of these at the target;
        weight / C where a class is in the margin, minus the sum of these at the target, over n;
        2 gap / C where a class is in the margin, minus the sum of these at the target;
        2 gap / C where a class is in the margin, minus the sum of these at the target, over n;
        2 gap · weight / C where a class is in the margin, minus the sum of these at the target;
        2 gap · weight / C where a class is in the margin, minus the sum of these at the target, over n""",
    "a sum or a product over an index": """
        Σ digamma(x − i/2), i < p; Σ g from here on; Σ g up to here; Σ gⱼ exp(x − outⱼ) from here on;
        Σ gⱼ · ∏ of what is multiplied into product j beside x; ∏ of the other elements, spread;
        Σ g w y; g x y; Σ g w x""",
    "a window, a bag, a row or a pair of rows at a time": """
        1 / n, to the window; weightᵀ g, added where windows overlap; g xᵀ over windows; weight g, by windows;
        x gᵀ over windows; x, summed; x / n, summed; x where the row is the bag's first maximum, summed;
        y, added by row; y / n, added by row; y where the row is the bag's first maximum, added by row;
        0, for each pair of rows, summed; sign(x − y), for each pair of rows, summed;
        (x − y) / norm, for each pair of rows, summed;
        sign(x − y) where |x − y| is the maximum, shared by ties, for each pair of rows, summed;
        sign(x − y) where |x − y| is the minimum, shared by ties, for each pair of rows, summed;
        sign(x − y) · |x − y|^(p−1) / norm^(p−1), for each pair of rows, summed;
        sign(y − x), for each pair of rows, summed; (y − x) / norm, for each pair of rows, summed;
        sign(y − x) where |y − x| is the maximum, shared by ties, for each pair of rows, summed;
        sign(y − x) where |y − x| is the minimum, shared by ties, for each pair of rows, summed;
        sign(y − x) · |y − x|^(p−1) / norm^(p−1), for each pair of rows, summed;
        0, for each pair of rows x and y, summed; sign(x − y), for each pair of rows x and y, summed;
        (x − y) / norm, for each pair of rows x and y, summed;
        sign(x − y) where |x − y| is the maximum, shared by ties, for each pair of rows x and y, summed;
        sign(x − y) where |x − y| is the minimum, shared by ties, for each pair of rows x and y, summed;
        sign(x − y) · |x − y|^(p−1) / norm^(p−1), for each pair of rows x and y, summed""",
    "what meets at a place is said in words": """
        1 / n where n elements meet; 1 / n where n elements meet, and 0 where elements are brought in;
        1 / n where n elements meet, taken; 1, and 0 where elements are brought in;
        ∏ of what is brought in; ∏ of what is brought in, and 0 where elements are brought in;
        ∏ of the other elements there, taken;
        1 where x is the maximum, shared by ties, and 0 where elements are brought in;
        1 where x is the minimum, shared by ties, and 0 where elements are brought in""",
    "several outputs": """
        (x − mean) / (n − correction) / std for the first output, 1 / n for the second;
        2 (x − mean) / (n − correction) for the first output, 1 / n for the second;
        0 for the sign, x⁻ᵀ for the logarithm; V (diag(g) + skew(Vᵀ g) / (λⱼ − λᵢ)) Vᵀ; U diag(g) Vᵀ + …;
        (g + Q sym(M)) R⁻ᵀ""",
    "an operator that only words explain": """
        L⁻ᵀ Φ(Lᵀ g) L⁻¹; L⁻ᵀ Φ(Lᵀ gᵀ) L⁻¹, L = outᵀ; −Pᵀ g Pᵀ + …; −x⁻ᵀ g outᵀ, of the triangle;
        −outᵀ g x⁻ᵀ, of the triangle; 1, conjugated""",
}
WORDS = {" ".join(text.split()) for texts in NOT_EVALUATED.values() for text in texts.split(";")}


def is_evaluated(key: str, name: str, args: tuple) -> bool:
    return name in TABLE[key].derivatives and TABLE[key].derivative(name, args).text not in WORDS


def spread(key: str, g: np.ndarray, shape: tuple[int, ...], args: tuple) -> np.ndarray:
    """What a reduction gave, in the shape of its input."""
    named = dict(zip(TABLE[key].args, args, strict=False))
    return np.asarray(k.spread(g, shape, named.get("dim"), named.get("keepdim", False)))


def side_by_side(a: Any, b: Any) -> Any:
    """The product of what stands side by side: of matrices, or of numbers, one for each matrix."""
    return a @ b if np.ndim(a) > 1 and np.shape(a)[-2:] != (1, 1) else a * b


SPECIAL = {
    "digamma": special.psi, "polygamma": special.polygamma, "erfinv": special.erfinv, "erfcx": special.erfcx,
    "ndtri": special.ndtri, "I₀": special.i0, "I₁": special.i1, "I₀ₑ": special.i0e, "I₁ₑ": special.i1e,
}  # fmt: skip


def names_for(key: str, arrays: list[np.ndarray], args: tuple, out: np.ndarray, g: np.ndarray) -> dict[str, Any]:
    """What the names in the formulas of a row stand for."""
    op, x = TABLE[key], arrays[0]
    names = dict(zip(op.args, args, strict=False)) | dict(zip(op.inputs, arrays, strict=False))
    names |= {"out": out, "g": g, "n": x.size}
    if key in MATRICES:
        if key.startswith("solve_triangular"):
            upper, unit = args
            names["x"] = (np.triu if upper else np.tril)(x, 0)
            names["x"] = names["x"] * (1 - np.eye(len(x))) + np.eye(len(x)) if unit else names["x"]
        for name, value in names.items():
            if isinstance(value, np.ndarray) and (value.ndim == 1 or (key == "solve_vector" and name != "x")):
                names[name] = value[..., None]  # a vector is a matrix of one column
        if key == "det":
            names |= {"g": g[..., None, None], "det": lambda a: np.linalg.det(a)[..., None, None]}
        return {**names, "·": side_by_side}
    if key == "linalg_cross":
        wide = dict(zip("xyg", np.broadcast_arrays(*arrays, g), strict=True))
        return {**wide, "×": lambda a, b: np.cross(a, b, axis=args[0])}
    if key.endswith("softmax"):
        return {**names, "Σ": lambda a: a.sum(args[0], keepdims=True)}
    if key == "fixed_norm":
        shape, (mean, rate) = args
        return {"g": g, "weight": arrays[1].reshape(shape), "x̂": (x - mean) * rate, "σ": 1 / rate}
    if key in NORMALIZED:
        view, axes, shape, _, (mean, rate) = args
        return {
            "g": g.reshape(view), "weight": arrays[1].reshape(shape), "x̂": (x.reshape(view) - mean) * rate,
            "σ": 1 / rate, "mean": lambda a: a.mean(axes, keepdims=True),
        }  # fmt: skip
    if key in REDUCTIONS:
        whole = spread(key, out, np.broadcast_shapes(*(array.shape for array in arrays)), args)
        dim = names.get("dim")
        of_x = {"n": k.count(x.shape, dim), "mean": x.mean(dim, keepdims=True)}
        return {**names, **of_x, "out": whole, "norm": whole, "std": whole, "g": spread(key, g, whole.shape, args)}
    return {**names, "I": np.eye(*x.shape)} if key == "trace" else names


def shown_gradient(
    key: str, i: int, text: str, arrays: list[np.ndarray], args: tuple, out: np.ndarray, g: np.ndarray
) -> np.ndarray:
    """The gradient of the i-th input as its formula has it: the whole of it, or what the upstream gradient is
    multiplied by."""
    names = names_for(key, arrays, args, out, g)
    found = evaluated(text.removesuffix(", spread").removesuffix(", summed"), {**SPECIAL, **names})
    if not re.search(r"(?<![A-Za-z_])g(?![A-Za-z_])", text):
        is_bias = key in MATRICES and found.ndim < 2
        found = (g if is_bias else names["g"]) * found
    shape = arrays[i].shape
    if key in NORMALIZED and i:
        shape = args[TABLE[key].args.index("shape")]
    if key == "solve_vector" or (key in MATRICES and found.ndim > len(shape) and found.shape[-1] == 1):
        found = found.reshape(found.shape[:-1]) if found.shape[-1] == 1 and i else found
    return np.reshape(sum_to(found, shape) if found.size != np.prod(shape) else found, arrays[i].shape)


@pytest.mark.parametrize(("key", "i"), CASES)
def test_a_formula_gives_the_gradient_that_the_engine_gives(key: str, i: int) -> None:
    arrays, args = given(key, i)
    op = TABLE[key]
    outs = apply(op, leaves(arrays), args)
    out = outs[0] if isinstance(outs, tuple) else outs
    g = np.random.default_rng(i).normal(size=out.shape)
    for position, (name, text) in enumerate(op.rule(args).inputs):
        if is_evaluated(key, name, args):
            found = gradients(op, arrays, args, [g])[position]
            expected = shown_gradient(key, position, text, arrays, args, out.detach().numpy(), g)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12, err_msg=f"{name}: {text}")


def test_what_is_not_evaluated_is_in_the_table() -> None:
    derivatives = [derivative for op in TABLE.values() for derivative in op.derivatives.values()]
    texts = {variant.text for derivative in derivatives for variant in derivative.variants}
    assert texts >= WORDS
