"""Each edge of PyTorch's nodes has a formula, or says in words what happens along it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradviz.events.kinds import NodeMade  # noqa: E402
from gradviz.query.chain_step import stated  # noqa: E402
from gradviz.sources.record import record  # noqa: E402
from gradviz.sources.torch_recorder.node_formulas import in_words, rule_of_node  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from gradviz.words.chain import formulas  # noqa: E402
from tests.torch_samples import operators, take_no_stacks  # noqa: E402

pytestmark = pytest.mark.torch

_SAMPLES = 6  # of each operator
_LEAVES = "AccumulateGrad"


def nodes_behind(tensor: Any) -> Iterator[Any]:
    """All nodes that backward from a tensor would run."""
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        fn = waiting.pop()
        if fn is not None and fn not in seen:
            seen.add(fn)
            yield fn
            waiting += [edge for edge, _ in fn.next_functions]


def results(op: Any) -> Iterator[Any]:
    """What an operator gives for the first of its samples that PyTorch has, as far as it can be differentiated."""
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), _SAMPLES):
        given = op(sample.input, *sample.args, **sample.kwargs)
        leaves = torch.utils._pytree.tree_leaves(given)
        yield from (one for one in leaves if isinstance(one, torch.Tensor) and one.grad_fn is not None)


@pytest.mark.slow
def test_every_edge_of_every_operator_of_pytorch_says_what_happens_along_it() -> None:
    take_no_stacks()
    met, silent = set(), []
    for op in operators():
        if not op.supports_autograd or torch.float32 not in op.dtypes:
            continue
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")
            patch.setattr(torch, "set_printoptions", lambda **options: None)
            try:
                made = [fn for tensor in results(op) for fn in nodes_behind(tensor)]
            except (RuntimeError, NotImplementedError, ImportError):
                continue  # a library that this build of PyTorch lacks
        for fn in made:
            name, count = fn.name().removeprefix("torch::autograd::"), len(fn.next_functions)
            met.add(name)
            texts = stated(rule_of_node(fn, name, count), count)
            missing = [at for at, edge in enumerate(fn.next_functions) if edge[0] is not None and not texts[at][1]]
            if missing and name != _LEAVES:
                silent.append((op.name, name, missing))
    assert len(met) > 300
    assert silent == []


FUSED = [
    ("CudnnRnnBackward0", 7), ("MkldnnRnnLayerBackward0", 7), ("ThnnFusedLstmCellBackward0", 5),
    ("ThnnFusedGruCellBackward0", 5), ("ScaledDotProductFlashAttentionBackward0", 3),
    ("ScaledDotProductEfficientAttentionBackward0", 4), ("ScaledDotProductCudnnAttentionBackward0", 3),
    ("WeightNormInterfaceBackward0", 2), ("CtcLossBackward0", 1), ("PackPaddedSequenceBackward0", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edges"), FUSED, ids=[name for name, _ in FUSED])
def test_what_runs_as_one_on_a_gpu_says_what_it_does(name: str, edges: int) -> None:
    assert all(text for _, text in stated(in_words(name, edges), edges))


def test_attention_is_said_with_the_names_of_the_program(tmp_path: Path) -> None:
    source, path = tmp_path / "p.py", tmp_path / "run.gradviz"
    source.write_text(
        "import torch\nquery, key, value = (torch.rand(1, 1, 3, 4).requires_grad_() for _ in range(3))\n"
        "mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)\nmixed.sum().backward()\n"
    )
    with record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    with open_trace(path) as trace:
        [made] = [event for event in trace if isinstance(event, NodeMade) and event.grad_fn.startswith("ScaledDot")]
        texts = [text for _, text in formulas(made.rule, ["query", "key", "value"])]
    assert texts[0].startswith("scale · s key, with s = p · (upstream valueᵀ − Σ p · upstream valueᵀ)")
    assert texts[1].startswith("scale · sᵀ query")
    assert texts[2] == "pᵀ upstream, p the weights of attention"


def test_the_formula_of_attention_gives_its_gradients() -> None:
    torch.manual_seed(0)
    q, k, v, g = (torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(4))
    out = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    expected = torch.autograd.grad(out, (q, k, v), g)
    scale = 4**-0.5
    p = torch.softmax(scale * q @ k.T, 1)
    s = p * (g @ v.T - (p * (g @ v.T)).sum(1, keepdim=True))
    for found, wanted in zip((scale * s @ k, scale * s.T @ q, p.T @ g), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("call", "node", "formula"),
    [
        (lambda x: torch.nn.functional.normalize(x), "LinalgVectorNormBackward0", "x / norm, spread"),
        (lambda x: torch.nn.functional.normalize(x, p=1.0), "LinalgVectorNormBackward0", "sign(x), spread"),
        (lambda x: torch.nn.functional.pairwise_distance(x, x + 1), "NormBackward1", "x / norm, spread"),
        (lambda x: torch.dist(x, torch.ones(2, 3), 3), "DistBackward0", "sign(x − y) · |x − y|² / norm², spread"),
        (lambda x: torch.logit(x), "LogitBackward0", "1 / (x (1 − x))"),
        (lambda x: torch.nn.functional.gaussian_nll_loss(x, x + 1, x + 2), "PowBackward0", "2 · x"),
        (lambda x: torch.nn.functional.mse_loss(x, x + 1), "MseLossBackward0", "2 (x − y) / n"),
        (lambda x: torch.nn.functional.mse_loss(x, x + 1, reduction="sum"), "MseLossBackward0", "2 (x − y)"),
    ],
)  # fmt: skip
def test_a_node_is_asked_for_what_its_formula_depends_on(call: Any, node: str, formula: str) -> None:
    result = call(torch.full((2, 3), 0.5, requires_grad=True))
    [made] = [fn for fn in nodes_behind(result) if fn.name() == node]
    assert rule_of_node(made, node, len(made.next_functions)).inputs[0][1] == formula
