"""The graphs that functions and modules leave behind: node by node those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch


def R(t: Any, *shape: int) -> Any:
    return t.randn(*shape, requires_grad=True)


def put(t: Any, index: Any, value: Any) -> Any:
    x = R(t, 5) * 1
    x[index] = value
    return x


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "linear 3d": lambda t: t.nn.functional.linear(R(t, 2, 5, 16), R(t, 8, 16), R(t, 8)),
    "linear 3d nobias": lambda t: t.nn.functional.linear(R(t, 2, 5, 16), R(t, 8, 16)),
    "linear 4d": lambda t: t.nn.functional.linear(R(t, 2, 3, 5, 16), R(t, 8, 16), R(t, 8)),
    "linear 2d": lambda t: t.nn.functional.linear(R(t, 5, 16), R(t, 8, 16), R(t, 8)),
    "linear 1d": lambda t: t.nn.functional.linear(R(t, 16), R(t, 8, 16), R(t, 8)),
    "linear noncontig": lambda t: t.nn.functional.linear(R(t, 5, 2, 16).transpose(0, 1), R(t, 8, 16), R(t, 8)),
    "linear noreq": lambda t: t.nn.functional.linear(t.randn(2, 5, 16), R(t, 8, 16), R(t, 8)),
    "maxpool 3d in": lambda t: t.nn.functional.max_pool2d(R(t, 3, 8, 8), 2),
    "nll 1d": lambda t: t.nn.functional.nll_loss(R(t, 5), t.tensor(2)),
    "sort stable": lambda t: t.sort(R(t, 5), stable=True)[0],
    "sort": lambda t: t.sort(R(t, 5))[0],
    "quantile": lambda t: t.quantile(R(t, 5), 0.3),
    "quantile dim": lambda t: t.quantile(R(t, 5, 4), 0.3, dim=1),
    "rsub": lambda t: t.rsub(R(t, 5), R(t, 5)),
    "rsub num": lambda t: t.rsub(R(t, 5), 2),
    "1-x": lambda t: 1 - R(t, 5),
    "add alpha": lambda t: t.add(R(t, 5), R(t, 5), alpha=2),
    "sub alpha in place": lambda t: R(t, 5).clone().sub_(R(t, 5), alpha=2),
    "sub alpha num": lambda t: t.sub(R(t, 5), 3, alpha=2),
    "modulo a number": lambda t: R(t, 5) % 2,
    "modulo": lambda t: R(t, 5) % R(t, 5),
    "fmod a number": lambda t: t.fmod(R(t, 5), 2),
    "floor division": lambda t: R(t, 5) // R(t, 5),
    "floor division by a number": lambda t: R(t, 5) // 2,
    "T": lambda t: R(t, 5, 3).T,
    "mT": lambda t: R(t, 5, 3).mT,
    "H": lambda t: R(t, 5, 3).H,
    "clamp below a tensor": lambda t: R(t, 5).clamp(max=R(t, 5)),
    "clamp above a tensor": lambda t: R(t, 5).clamp(R(t, 5)),
    "put at a mask": lambda t: put(t, R(t, 5).detach() > 0, 1.0),
    "put at a list": lambda t: put(t, [0, 1], 1.0),
    "put a row at a list": lambda t: put(t, [0], R(t, 1)),
    "put at a slice": lambda t: put(t, slice(0, 2), 1.0),
    "put at a number": lambda t: put(t, 0, 1.0),
    "masked scatter": lambda t: (R(t, 5) * 1).masked_scatter_(t.ones(5) > 0, R(t, 5)),
    "cartesian": lambda t: t.cartesian_prod(R(t, 2), R(t, 3)),
    "circular pad": lambda t: t.nn.functional.pad(R(t, 1, 2, 3, 4), (1, 2, -1, 1), mode="circular"),
    "round dec": lambda t: t.round(R(t, 5), decimals=0),
    "round": lambda t: t.round(R(t, 5)),
    "copysign": lambda t: t.copysign(R(t, 5), 2.0),
    "vdot": lambda t: t.vdot(R(t, 5), R(t, 5)),
    "mode": lambda t: t.mode(R(t, 5, 3))[0],
    "nanmedian": lambda t: t.nanmedian(R(t, 5)),
    "cdist": lambda t: t.cdist(R(t, 5, 3), R(t, 4, 3)),
    "pdist": lambda t: t.nn.functional.pdist(R(t, 5, 3)),
    "pairwise": lambda t: t.nn.functional.pairwise_distance(R(t, 5, 3), R(t, 5, 3)),
    "soft margin": lambda t: t.nn.functional.soft_margin_loss(R(t, 5), t.ones(5)),
    "multi margin": lambda t: t.nn.functional.multi_margin_loss(R(t, 5, 3), t.tensor([0, 1, 2, 1, 0])),
    "block_diag": lambda t: t.block_diag(R(t, 2, 3), R(t, 2)),
    "combinations": lambda t: t.combinations(R(t, 4)),
    "trapz": lambda t: t.trapz(R(t, 4)),
    "trapz dx": lambda t: t.trapz(R(t, 4), dx=0.1),
    "matrix norm": lambda t: t.linalg.matrix_norm(R(t, 4, 4), 1),
    "norm inf": lambda t: t.linalg.norm(R(t, 4, 4), float("inf")),
    "cholesky": lambda t: t.linalg.cholesky(t.eye(3, requires_grad=True)),
    "cholesky upper": lambda t: t.linalg.cholesky(t.eye(3, requires_grad=True), upper=True),
    "solve vec": lambda t: t.linalg.solve(R(t, 3, 3), R(t, 3)),
    "solve tri": lambda t: t.linalg.solve_triangular(R(t, 3, 3), R(t, 3, 2), upper=True),
    "matrix power -2": lambda t: t.linalg.matrix_power(R(t, 3, 3), -2),
    "matrix power 3": lambda t: t.linalg.matrix_power(R(t, 3, 3), 3),
    "logdet": lambda t: t.logdet(t.eye(3, requires_grad=True)),
    "einsum mul": lambda t: t.einsum("i,i->i", R(t, 3), R(t, 3)),
    "einsum outer": lambda t: t.einsum("i,j->ij", R(t, 3), R(t, 3)),
    "einsum mm": lambda t: t.einsum("ij,jk->ik", R(t, 3, 2), R(t, 2, 4)),
    "einsum bmm": lambda t: t.einsum("bij,bjk->bik", R(t, 5, 3, 2), R(t, 5, 2, 4)),
    "einsum trace": lambda t: t.einsum("ii", R(t, 3, 3)),
    "einsum sum": lambda t: t.einsum("ij->j", R(t, 3, 3)),
    "einsum dot": lambda t: t.einsum("i,i->", R(t, 3), R(t, 3)),
    "einsum ibf": lambda t: t.einsum("b i, o i -> b o", R(t, 3, 4), R(t, 5, 4)),
    "einsum 3": lambda t: t.einsum("ij,jk,kl->il", R(t, 3, 2), R(t, 2, 4), R(t, 4, 2)),
    "ce probs": lambda t: t.nn.functional.cross_entropy(R(t, 4, 3), t.softmax(t.randn(4, 3), 1)),
    "ce smooth": lambda t: t.nn.functional.cross_entropy(R(t, 4, 3), t.tensor([0, 1, 2, 1]), label_smoothing=0.1),
    "mha": lambda t: t.nn.MultiheadAttention(8, 2, batch_first=True)(*[R(t, 2, 4, 8)] * 3)[0],
    "lstm": lambda t: t.nn.LSTMCell(4, 5)(R(t, 2, 4))[0],
    "gru": lambda t: t.nn.GRUCell(4, 5)(R(t, 2, 4)),
    "rnn": lambda t: t.nn.RNNCell(4, 5)(R(t, 2, 4)),
    "rnn seq": lambda t: t.nn.RNN(4, 5)(R(t, 3, 2, 4))[0],
    "conv1d": lambda t: t.nn.Conv1d(2, 3, 3)(R(t, 2, 2, 8)),
    "bn": lambda t: t.nn.BatchNorm1d(3)(R(t, 4, 3)),
    "ln": lambda t: t.nn.LayerNorm(3)(R(t, 4, 3)),
    "gn": lambda t: t.nn.GroupNorm(2, 4)(R(t, 3, 4)),
    "emb": lambda t: t.nn.Embedding(5, 3)(t.tensor([1, 2])),
    "dropout": lambda t: t.nn.functional.dropout(R(t, 4), 0.5),
    "repeat_interleave": lambda t: t.repeat_interleave(R(t, 4), 2),
    "kron": lambda t: t.kron(R(t, 2, 2), R(t, 2, 2)),
    "ldexp": lambda t: t.ldexp(R(t, 2), t.tensor([1, 2])),
    "bilinear": lambda t: t.nn.functional.bilinear(R(t, 2, 3), R(t, 2, 4), R(t, 5, 3, 4)),
    "gelu": lambda t: t.nn.functional.gelu(R(t, 4)),
    "std": lambda t: R(t, 4).std(),
    "norm": lambda t: R(t, 4).norm(),
    "var mean": lambda t: t.var_mean(R(t, 4, 3), dim=0)[0],
    "clip": lambda t: R(t, 4).clamp(min=0),
    "matmul bcast": lambda t: t.matmul(R(t, 2, 3, 4), R(t, 4, 5)),
    "matmul vec": lambda t: t.matmul(R(t, 2, 3, 4), R(t, 4)),
    "getitem": lambda t: R(t, 4, 4)[1:, 0],
    "getitem bool": lambda t: R(t, 4)[t.tensor([True, False, True, True])],
    "stack": lambda t: t.stack([R(t, 4), R(t, 4)]),
    "upsample": lambda t: t.nn.functional.interpolate(R(t, 1, 1, 4, 4), scale_factor=2),
    "flatten": lambda t: t.flatten(R(t, 2, 3, 4), 1),
    "unfold": lambda t: t.nn.functional.unfold(R(t, 1, 2, 4, 4), 2),
    "huber": lambda t: t.nn.functional.huber_loss(R(t, 4), R(t, 4)),
    "bce logits": lambda t: t.nn.functional.binary_cross_entropy_with_logits(R(t, 4), t.ones(4)),
    "kl": lambda t: t.nn.functional.kl_div(R(t, 4), t.ones(4)),
    "cosine": lambda t: t.nn.functional.cosine_similarity(R(t, 4, 3), R(t, 4, 3)),
    "triplet": lambda t: t.nn.functional.triplet_margin_loss(R(t, 4, 3), R(t, 4, 3), R(t, 4, 3)),
    "normalize": lambda t: t.nn.functional.normalize(R(t, 4, 3)),
    "x**2": lambda t: R(t, 4) ** 2,
    "x/2": lambda t: R(t, 4) / 2,
    "where": lambda t: t.where(R(t, 4) > 0, R(t, 4), 0.0),
    "hinge emb": lambda t: t.nn.functional.hinge_embedding_loss(R(t, 4), t.ones(4)),
    "poisson": lambda t: t.nn.functional.poisson_nll_loss(R(t, 4), t.ones(4)),
    "margin ranking": lambda t: t.nn.functional.margin_ranking_loss(R(t, 4), R(t, 4), t.ones(4)),
    "multilabel soft": lambda t: t.nn.functional.multilabel_soft_margin_loss(R(t, 4, 2), t.ones(4, 2)),
    "adaptive avg": lambda t: t.nn.functional.adaptive_avg_pool2d(R(t, 1, 2, 8, 8), 1),
    "adaptive avg3": lambda t: t.nn.functional.adaptive_avg_pool2d(R(t, 1, 2, 8, 8), 3),
    "softmax": lambda t: R(t, 3, 3).softmax(-1),
    "encoder layer": lambda t: t.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)(R(t, 2, 4, 8)),
    "decoder layer": lambda t: t.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)(R(t, 2, 4, 8), R(t, 2, 3, 8)),
    "mha of keys and values": lambda t: t.nn.MultiheadAttention(8, 2)(R(t, 4, 2, 8), *[R(t, 5, 2, 8)] * 2)[0],
    "mha of three": lambda t: t.nn.MultiheadAttention(8, 2)(R(t, 4, 2, 8), R(t, 5, 2, 8), R(t, 5, 2, 8))[0],
    "mha of other widths": lambda t: t.nn.MultiheadAttention(8, 2, kdim=3, vdim=5)(
        R(t, 4, 2, 8), R(t, 5, 2, 3), R(t, 5, 2, 5)
    )[0],
    "mha without a batch": lambda t: t.nn.MultiheadAttention(8, 2)(*[R(t, 4, 8)] * 3)[0],
    "mha with a mask": lambda t: t.nn.MultiheadAttention(8, 2)(*[R(t, 4, 2, 8)] * 3, attn_mask=t.zeros(4, 4))[0],
    "attention with dropout": lambda t: t.nn.functional.scaled_dot_product_attention(
        *(R(t, 2, 2, 4, 8) for _ in range(3)), dropout_p=0.5
    ),
    "attention of matrices": lambda t: t.nn.functional.scaled_dot_product_attention(*(R(t, 4, 8) for _ in range(3))),
    "two-way RNN": lambda t: t.nn.RNN(4, 5, num_layers=2, bidirectional=True)(R(t, 3, 2, 4))[0],
    "GRU": lambda t: t.nn.GRU(4, 5)(R(t, 3, 2, 4))[0],
    "reshape of a transposed": lambda t: R(t, 4, 6).t().reshape(6, 2, 2),
    "reshape that copies": lambda t: R(t, 4, 6).t().reshape(24),
    "multi-head by view": lambda t: (
        R(t, 2, 4, 8).view(2, 4, 2, 4).transpose(1, 2)
        @ R(t, 2, 4, 8).view(2, 4, 2, 4).transpose(1, 2).transpose(-2, -1)
    ),
}


def graph(node: Any, seen: dict[Any, int]) -> Any:
    """A graph as nested lists: a node's name and what it leads to, or its number where it was met before."""
    if node is None:
        return None
    if node in seen:
        return seen[node]
    seen[node] = len(seen)
    return [node.name(), *((graph(target, seen), nr) for target, nr in node.next_functions)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_graph_is_pytorchs(program: str) -> None:
    ours, theirs = (graph(PROGRAMS[program](t).grad_fn, {}) for t in (engine, torch))
    assert ours == theirs
