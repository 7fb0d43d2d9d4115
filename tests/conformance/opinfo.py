"""gradviz's operations against PyTorch's own samples.

PyTorch tests itself with a database of its operations, each with samples of its arguments. Every sample of every
entry whose name gradviz has is run by both, and these are compared: the value, the gradients for a random
cotangent, the tangent of forward mode, and (for the first small samples) the gradients of the gradients; and
whether a second pass over the graph raises, because what was saved is freed.

    python -m tests.conformance.opinfo            # every entry; rewrites docs/conformance.md and expected.json
    python -m tests.conformance.opinfo add sum    # these entries, each sample that does not pass with its reason
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad as torch_forward

from gradviz import engine
from gradviz.engine.autograd import forward_ad
from tests.torch_samples import operators, take_no_stacks

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
REPORT = HERE.parent.parent / "docs" / "conformance.md"

SAMPLES_DIFFERENTIATED_TWICE = 3
SMALL = 64  # elements: larger samples are not differentiated twice

RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "uniform", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "svd_lowrank", "pca_lowrank",
}  # fmt: skip
UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


NOTES = {
    "logcumsumexp": "PyTorch's tangent is off by up to 6e-6; gradviz's agrees with finite differences",
    "addbmm_": "PyTorch gives the tensor another shape, in place; gradviz refuses, as both do for `addmm_`",
    "linalg.svd": "the columns of U and V beyond the singular values are any orthonormal basis of what is left",
    "nn.functional.scaled_dot_product_attention": "those with dropout, whose draws PyTorch's kernel takes otherwise",
    "as_strided.partial_views": "PyTorch raises this: the sample looks beyond its tensor, of which it is given a copy",
    "linalg.norm.subgradients_at_zero": "at 0 the second derivative has no value: PyTorch's is NaN, gradviz's 0",
    "nn.functional.batch_norm": "an input without channels: gradviz refuses it",
    "acosh_": "PyTorch raises this",
    "asinh_": "PyTorch raises this",
    "atanh_": "PyTorch raises this",
}


SIGNLESS = {"linalg.eigh": (1,), "linalg.svd": (0, 2)}  # outputs unique up to their sign: their squares compare


class Mismatch(Exception):
    """Ours differs from PyTorch's."""


@dataclass
class Result:
    """What became of an entry's samples."""

    name: str
    area: str
    counts: Counter = field(default_factory=Counter)  # passed, failed, not supported
    reasons: Counter = field(default_factory=Counter)
    nodes: set[tuple[str, str]] = field(default_factory=set)  # node names that differ: PyTorch's, ours

    def row(self) -> list[int]:
        return [self.counts[outcome] for outcome in ("passed", "failed", "not supported")]


# --- from PyTorch's database to calls of both


def title(entry: Any) -> str:
    """The entry's name with its variant: `max.binary`."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


# entries whose samples have another order of arguments, or write in place
CALLS: dict[str, Callable] = {
    "einsum": lambda tensors, equation: engine.einsum(equation, tensors),
    "polygamma": lambda x, n: engine.polygamma(n, x),
    "special.polygamma": lambda x, n: engine.special.polygamma(n, x),
    "where": lambda x, condition, other: engine.where(condition, x, other),
    "zero_": lambda x: x.clone().zero_(),
    "fill": lambda x, value: x.clone().fill_(value),
    "nn.functional.embedding": lambda weight, x, **options: engine.nn.functional.embedding(x, weight, **options),
    "nn.functional.embedding_bag": lambda weight, x, **options: engine.nn.functional.embedding_bag(
        x, weight, **options
    ),
    "linalg.pinv.singular": lambda a, b: engine.linalg.pinv(a @ b.mT),
}


def ours(name: str) -> Callable | None:
    """gradviz's function of that name, or its method; None where it has neither."""
    if name in CALLS:
        return CALLS[name]
    found: Any = engine
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if callable(found) and not isinstance(found, type):
        return found
    method = getattr(engine.Tensor, name, None)
    return method if callable(method) else None


def convert(value: Any, tensor: Callable) -> Any:
    """Arguments for gradviz: tensors by `tensor`, dtypes, and all that they may stand in."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, torch.dtype):
        return getattr(engine, str(value).split(".")[1])
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.memory_format):
        return getattr(engine, str(value).split(".")[1])
    if callable(value) and getattr(torch.nn.functional, getattr(value, "__name__", ""), None) is value:
        return getattr(engine.nn.functional, value.__name__)
    if isinstance(value, torch.nn.Module):
        return getattr(engine.nn, type(value).__name__)()
    if isinstance(value, torch.layout):
        raise NotImplementedError(f"gradviz does not support {value}")
    if isinstance(value, dict):
        return {key: convert(part, tensor) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [convert(part, tensor) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


class Sample:
    """One sample, callable in PyTorch and in gradviz, with its differentiable tensors in a fixed order."""

    def __init__(self, entry: Any, raw: Any, function: Callable) -> None:
        self.entry, self.raw, self.function = entry, raw, function
        self.extra = entry.op.keywords if isinstance(entry.op, functools.partial) else {}
        everything = (raw.input, raw.args, raw.kwargs)
        self.leaves = [t for t in tensors_in(everything) if t.requires_grad]

    in_place = False

    def in_torch(self, replaced: list[torch.Tensor]) -> Any:
        args = map_tensors((self.raw.input, self.raw.args, self.raw.kwargs), self.by_leaf(replaced))
        if self.in_place:
            args = (args[0].clone(), *args[1:])
        operation = self.entry.inplace_variant if self.in_place else self.entry.op
        with torch.random.fork_rng():  # both draw the same; the samples to come stay what they are
            torch.manual_seed(1)
            return self.signless(operation(args[0], *args[1], **args[2]))

    def in_gradviz(self, replaced: list[Any]) -> Any:
        look_up = self.by_leaf(replaced)

        def tensor(t: torch.Tensor) -> Any:
            found = look_up(t)
            return mine_of(t) if found is t else found

        input, args, kwargs = convert((self.raw.input, self.raw.args, {**self.extra, **self.raw.kwargs}), tensor)
        engine.manual_seed(1)
        return self.signless(self.function(input.clone() if self.in_place else input, *args, **kwargs))

    def signless(self, out: Any) -> Any:
        which = SIGNLESS.get(self.entry.name, ())
        return [part * part if i in which else part for i, part in enumerate(out)] if which else out

    def by_leaf(self, replaced: list) -> Callable:
        table = {id(leaf): other for leaf, other in zip(self.leaves, replaced, strict=True)}
        return lambda t: table.get(id(t), t)

    def torch_leaves(self) -> list[torch.Tensor]:
        return [leaf.detach().clone().requires_grad_() for leaf in self.leaves]

    def our_leaves(self) -> list[Any]:
        return [mine_of(leaf).requires_grad_() for leaf in self.leaves]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument, each once."""
    found: dict[int, torch.Tensor] = {}
    map_tensors(value, lambda t: found.setdefault(id(t), t))
    return iter(found.values())


def map_tensors(value: Any, function: Callable) -> Any:
    """`value` with each tensor in it replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [map_tensors(part, function) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def flat(out: Any) -> list[Any]:
    """An operation's outputs, one after another."""
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, (list, tuple)) and not isinstance(out, torch.Size):
        return [part for each in out for part in flat(each)]
    return [out]


# --- comparing


def array_of(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        if value._is_zerotensor():
            return np.zeros(value.shape, str(value.dtype).split(".")[1])
        return value.detach().resolve_conj().resolve_neg().numpy()
    return value.array if isinstance(value, engine.Tensor) else np.asarray(value)


def same(what: str, theirs: Any, mine: Any, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Raise Mismatch where two values differ in kind, shape, dtype or by more than rounding."""
    if isinstance(theirs, torch.Tensor) != isinstance(mine, engine.Tensor):
        raise Mismatch(f"{what}: {type(mine).__name__} for {type(theirs).__name__}")
    a, b = array_of(theirs), array_of(mine)
    if a.shape != b.shape:
        raise Mismatch(f"{what}: shape {b.shape} for {a.shape}")
    if a.dtype != b.dtype:
        raise Mismatch(f"{what}: {b.dtype} for {a.dtype}")
    if not np.allclose(a, b, rtol, atol, equal_nan=True):
        raise Mismatch(f"{what} differs")


def cotangents(outs: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outs]


def mine_of(tensor: torch.Tensor) -> Any:
    return engine.from_numpy(tensor.detach().numpy().copy(order="K"))


def filled(gradients: Any, leaves: Any) -> list:
    zeros = torch.zeros_like if isinstance(leaves[0], torch.Tensor) else engine.zeros_like
    return [zeros(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True)]


def check(sample: Sample, result: Result, twice: bool) -> None:
    """Compare one sample in every way; raises Mismatch where they differ."""
    theirs, mine = sample.torch_leaves(), sample.our_leaves()
    out, our_out = sample.in_torch(theirs), sample.in_gradviz(mine)
    outs, our_outs = flat(out), flat(our_out)
    if len(outs) != len(our_outs):
        raise Mismatch(f"{len(our_outs)} outputs for {len(outs)}")
    for a, b in zip(outs, our_outs, strict=True):
        if a is not None or b is not None:
            same("value", a, b)
    pairs = [(a, b) for a, b in zip(outs, our_outs, strict=True) if isinstance(a, torch.Tensor)]
    for a, b in pairs:
        if a.requires_grad != b.requires_grad:
            raise Mismatch(f"requires_grad is {b.requires_grad} for {a.requires_grad}")
        if a.layout == torch.strided and a.is_contiguous() and not b.is_contiguous():
            raise Mismatch("memory: not contiguous")
        if a.grad_fn is not None and b.grad_fn is not None and a.grad_fn.name() != b.grad_fn.name():
            result.nodes.add((a.grad_fn.name(), b.grad_fn.name()))
    pairs = [(a, b) for a, b in pairs if a.requires_grad]
    if not pairs:
        return
    ways = [a for a, _ in pairs], [b for _, b in pairs]
    compare_gradients(sample, theirs, mine, *ways, twice=twice)
    compare_freeing(theirs, mine, *ways)
    if sample.entry.supports_forward_ad:
        compare_tangents(sample)


def compare_gradients(sample: Sample, theirs: list, mine: list, outs: list, our_outs: list, twice: bool) -> None:
    weights = cotangents(outs)
    our_weights = [mine_of(w) for w in weights]
    if twice:
        weights = [w.requires_grad_() for w in weights]
        our_weights = [w.requires_grad_() for w in our_weights]
    options: Any = {"allow_unused": True, "create_graph": twice}
    gradients = filled(torch.autograd.grad(outs, theirs, weights, **options), theirs)
    our_gradients = filled(engine.autograd.grad(our_outs, mine, our_weights, **options), mine)
    for a, b in zip(gradients, our_gradients, strict=True):
        same("gradient", a, b, 1e-6, 1e-8)
    if not twice:
        return
    pairs = [(a, b) for a, b in zip(gradients, our_gradients, strict=True) if a.requires_grad]
    if not pairs:
        return
    second = cotangents([a for a, _ in pairs])
    wanted, our_wanted = [*theirs, *weights], [*mine, *our_weights]
    expected = filled(torch.autograd.grad([a for a, _ in pairs], wanted, second, allow_unused=True), wanted)
    ours_connected = [(b, mine_of(w)) for (_, b), w in zip(pairs, second, strict=True) if b.requires_grad]
    if not ours_connected:
        raise Mismatch("second gradient: gradients are not differentiable")
    got = engine.autograd.grad(
        [b for b, _ in ours_connected], our_wanted, [w for _, w in ours_connected], allow_unused=True
    )
    for a, b in zip(expected, filled(got, our_wanted), strict=True):
        same("second gradient", a, b, 1e-5, 1e-7)


def compare_freeing(theirs: list, mine: list, outs: list, our_outs: list) -> None:
    """Whether one more pass over a graph that a pass has freed raises: whether anything was saved."""
    weights = cotangents(outs)
    freed = frees(torch.autograd, theirs, outs, weights)
    if freed != frees(engine.autograd, mine, our_outs, [mine_of(w) for w in weights]):
        raise Mismatch(f"a second pass {'goes on' if freed else 'raises'}")


def frees(autograd: Any, leaves: list, outs: list, weights: list) -> bool:
    try:
        for _ in range(2):
            autograd.grad(outs, leaves, weights, allow_unused=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        return True
    return False


def compare_tangents(sample: Sample) -> None:
    tangents = cotangents(sample.leaves)
    with torch_forward.dual_level():
        duals = [
            torch_forward.make_dual(leaf.detach().clone(), t) for leaf, t in zip(sample.leaves, tangents, strict=True)
        ]
        expected = [
            torch_forward.unpack_dual(o).tangent for o in flat(sample.in_torch(duals)) if isinstance(o, torch.Tensor)
        ]
        expected = [None if t is None else t.detach().clone() for t in expected]
    with forward_ad.dual_level():
        our_duals = [
            forward_ad.make_dual(mine_of(leaf), mine_of(t)) for leaf, t in zip(sample.leaves, tangents, strict=True)
        ]
        got = [
            forward_ad.unpack_dual(o).tangent
            for o in flat(sample.in_gradviz(our_duals))
            if isinstance(o, engine.Tensor)
        ]
    for a, b in zip(expected, got, strict=True):
        if a is None and b is None:
            continue
        if a is None or b is None:
            present = a if b is None else b
            if np.any(array_of(present)):
                raise Mismatch(f"tangent is {'missing' if b is None else 'there, and PyTorch has none'}")
            continue
        same("tangent", a, b, 1e-6, 1e-8)


# --- running


def says_unsupported(error: BaseException) -> bool:
    """Whether an exception says that gradviz cannot do this, and not that it went astray."""
    if isinstance(error, (NotImplementedError, TypeError, AttributeError)):
        return True
    return isinstance(error, RuntimeError) and "support" in str(error)


def run_entry(entry: Any, function: Callable, report: Callable | None = None, in_place: bool = False) -> Result:
    """All samples of one entry; in place, on a copy, those that PyTorch can do in place."""
    name = title(entry) + "_" * in_place
    result = Result(name, "in place" if in_place else area_of(entry))
    torch.manual_seed(0)
    np.random.seed(0)
    differentiable = entry.supports_autograd
    twice_left = SAMPLES_DIFFERENTIATED_TWICE
    for raw in entry.sample_inputs("cpu", torch.float64, requires_grad=differentiable):
        sample = Sample(entry, raw, function)
        sample.in_place = in_place
        if in_place and not possible(sample):
            continue
        small = sum(leaf.numel() for leaf in sample.leaves) <= SMALL
        twice = entry.supports_gradgrad and small and twice_left > 0
        twice_left -= twice
        outcome, reason = "passed", ""
        try:
            check(sample, result, twice)
        except Mismatch as mismatch:
            outcome, reason = "failed", str(mismatch)
        except Exception as error:
            outcome = "not supported" if says_unsupported(error) else "failed"
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if report is not None and outcome == "failed":
                import traceback

                traceback.print_exc()
        result.counts[outcome] += 1
        if reason:
            result.reasons[f"{outcome}: {reason}"] += 1
        if reason and report is not None:
            report(f"{name}: {outcome}: {reason}: {raw!r:.200}")
    return result


def possible(sample: Sample) -> bool:
    """Whether PyTorch can do this in place: most cannot where the result is greater or of another dtype."""
    try:
        sample.in_torch(sample.torch_leaves())
    except (RuntimeError, TypeError, ValueError):
        return False
    return isinstance(sample.raw.input, torch.Tensor)


def in_place_form(entry: Any) -> Callable | None:
    """gradviz's in-place method for an entry that PyTorch has in place."""
    return getattr(engine.Tensor, f"{entry.name}_", None) if entry.inplace_variant is not None else None


def entries(names: list[str] | None = None) -> list[tuple[Any, Callable]]:
    """The entries that gradviz has and that can be compared, each with gradviz's function."""
    found = []
    for entry in operators():
        if entry.name in RANDOM | UNDEFINED or torch.float64 not in entry.dtypes:
            continue
        if names and entry.name not in names and title(entry) not in names:
            continue
        function = CALLS.get(title(entry)) or ours(entry.name)
        if function is not None:
            found.append((entry, function))
    return found


def missing() -> list[str]:
    """The names of entries that gradviz has not."""
    return sorted({e.name for e in operators() if ours(e.name) is None and torch.float64 in e.dtypes})


def run(names: list[str] | None = None, report: Callable | None = None) -> list[Result]:
    """The results of all entries (or those named)."""
    take_no_stacks()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = []
        for entry, function in entries(names):
            results.append(run_entry(entry, function, report))
            if (form := in_place_form(entry)) is not None:
                results.append(run_entry(entry, form, report, in_place=True))
        return results


# --- the report

AREAS = [
    "elementwise unary", "elementwise binary", "reductions", "shape", "indexing", "linear algebra",
    "nn.functional", "other", "in place",
]  # fmt: skip
SHAPE = """atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk clone column_stack
    contiguous diag diag_embed diagflat diagonal dsplit dstack expand expand_as flatten flip fliplr flipud hsplit
    hstack meshgrid movedim narrow permute ravel repeat repeat_interleave reshape reshape_as roll rot90 split
    split_with_sizes squeeze stack T H mT mH t tensor_split tile transpose tril triu unbind unflatten unfold
    unsqueeze view view_as vsplit vstack block_diag unsafe_chunk unsafe_split linalg.diagonal as_strided
    sum_to_size""".split()
INDEXING = """__getitem__ gather index_add index_copy index_fill index_put index_select masked_fill masked_scatter
    masked_select put scatter scatter_add scatter_reduce select select_scatter slice slice_scatter take
    take_along_dim where diagonal_scatter index_reduce argwhere nonzero searchsorted bucketize""".split()
REDUCTIONS = """cumsum cumprod cummax cummin logcumsumexp logsumexp max min median nanmedian mode sort argsort topk
    kthvalue norm var_mean std_mean aminmax msort quantile nanquantile trace unique unique_consecutive softmax
    log_softmax renorm dist trapz trapezoid cumulative_trapezoid""".split()
LINALG = """mm mv dot vdot inner bmm addmm addmv addbmm addr baddbmm matmul einsum outer ger kron cross tensordot
    cholesky cholesky_inverse cholesky_solve logdet matrix_exp pinverse qr svd triangular_solve lu linalg_multi_dot
    __rmatmul__ cdist""".split()


def area_of(entry: Any) -> str:
    """Where in the report an entry stands."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    name = entry.name
    for area, names in [("shape", SHAPE), ("indexing", INDEXING), ("reductions", REDUCTIONS)]:
        if name in names:
            return area
    if name in LINALG or name.startswith("linalg."):
        return "linear algebra"
    if name.startswith("nn.functional."):
        return "nn.functional"
    if isinstance(entry, UnaryUfuncInfo):
        return "elementwise unary"
    if isinstance(entry, BinaryUfuncInfo):
        return "elementwise binary"
    return "reductions" if isinstance(entry, ReductionOpInfo) else "other"


def totals(results: list[Result]) -> str:
    """The table by area, as Markdown."""
    lines = ["| area | entries | samples | passed | failed | not supported |", "|-|-:|-:|-:|-:|-:|"]
    for area in [*AREAS, "all"]:
        chosen = [r for r in results if area in (r.area, "all")]
        row = [sum(column) for column in zip(*(r.row() for r in chosen), strict=True)] or [0, 0, 0]
        cells = [area, len(chosen), sum(row), *row]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def markdown(results: list[Result]) -> str:
    """The whole report."""
    lines = [
        "# Conformance with PyTorch",
        "",
        "PyTorch tests itself with a database of its operations and samples of their arguments. Here each sample",
        "of every entry whose name gradviz has is run by both, in float64. A sample has passed when the value (with",
        "its shape and dtype), the gradients for a random cotangent, the tangent of forward mode, and, for the",
        f"first {SAMPLES_DIFFERENTIATED_TWICE} small samples of an entry, the gradients of the gradients are",
        "PyTorch's, and a second pass over the graph raises where PyTorch's does. An operation that both can do",
        "in place is run so too, on a copy.",
        "“Not supported” means that gradviz raised an error saying so. Written by",
        "`python -m tests.conformance.opinfo`; no sample is left out. Entries whose results are random or undefined",
        f"are not compared: {', '.join(sorted((RANDOM | UNDEFINED) & {e.name for e in operators()}))}.",
        "",
        totals(results),
        "",
        "## Entries with samples that did not pass",
        "",
        "| entry | passed | failed | not supported | why |",
        "|-|-:|-:|-:|-|",
    ]
    for result in sorted(results, key=lambda r: (-r.counts["failed"], -r.counts["not supported"], r.name)):
        if result.reasons:
            why = "; ".join(f"{n} × {reason}" for reason, n in result.reasons.most_common(3))
            why += f" ({NOTES[result.name]})" if result.name in NOTES else ""
            cells = [f"`{result.name}`", *result.row(), why.replace("|", "\\|")]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "## Node names that differ", "", "| entry | PyTorch's | gradviz's |", "|-|-|-|"]
    for result in sorted(results, key=lambda r: r.name):
        lines += [f"| `{result.name}` | {theirs} | {ours} |" for theirs, ours in sorted(result.nodes)]
    lines += ["", "## Entries that gradviz has not", "", ", ".join(f"`{name}`" for name in missing()) + ".", ""]
    return "\n".join(lines)


def expected_of(results: list[Result]) -> dict:
    """What a later run has to reach: counts, and the node names that differ, by entry."""
    return {
        r.name: {"counts": r.row(), "nodes": sorted(map(list, r.nodes))} for r in sorted(results, key=lambda r: r.name)
    }


def main(names: list[str]) -> None:
    results = run(names or None, print if names else None)
    print(totals(results))
    if not names:
        REPORT.write_text(markdown(results), encoding="utf-8")
        lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in expected_of(results).items()]
        EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
