"""Layers, losses and what a Module promises; beside PyTorch where it is installed."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradviz import engine
from gradviz.engine import nn
from gradviz.engine.nn import functional as F

RNG = np.random.default_rng(3)


def signed(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def run(torch: Any, function: Callable, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The outputs of a function of tensors, and the gradients of its inputs, for a fixed upstream gradient."""
    tensors = [torch.tensor(array) for array in arrays]
    for tensor in tensors:
        if tensor.dtype == torch.float32:
            tensor.requires_grad_()
    results = function(torch, *tensors)
    flat = [part for part in flattened(results) if part is not None and part.requires_grad]
    total = sum((part * torch.tensor(weights(part.shape))).sum() for part in flat)
    total.backward()
    gradients = [t.grad.numpy() if t.grad is not None else np.zeros(()) for t in tensors if t.requires_grad]
    return [part.detach().numpy() for part in flat], gradients


def flattened(results: Any) -> list[Any]:
    if isinstance(results, (tuple, list)):
        return [part for result in results for part in flattened(result)]
    return [results]


def weights(shape: Any) -> np.ndarray:
    n = int(np.prod(tuple(shape)))
    return np.cos(np.arange(n, dtype=np.float32)).reshape(tuple(shape))


def close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=3e-6)


def of_module(make: Callable[[Any], Any]) -> Callable:
    """A module made with seed 0, applied; its parameters' gradients are results too."""

    def function(torch: Any, *tensors: Any) -> Any:
        torch.manual_seed(0)
        return make(torch.nn)(*tensors)

    return function


IMAGE, LINE, ROWS = signed(2, 4, 8, 7), signed(2, 4, 9), signed(5, 6)
CLASSES = np.array([0, 5, 2, -100, 1])
PROBABLE = np.abs(signed(5, 6)) / 4 + 0.05

FUNCTIONS: dict[str, tuple[Callable, list[np.ndarray]]] = {
    "conv2d": (lambda t, x, w, b: t.nn.functional.conv2d(x, w, b, 2, 1), [IMAGE, signed(6, 4, 3, 3), signed(6)]),
    "conv2d dilated": (lambda t, x, w: t.nn.functional.conv2d(x, w, None, 1, (2, 0), 2), [IMAGE, signed(6, 4, 3, 2)]),
    "conv2d groups": (lambda t, x, w: t.nn.functional.conv2d(x, w, groups=2), [IMAGE, signed(6, 2, 3, 3)]),
    "conv2d depthwise": (lambda t, x, w: t.nn.functional.conv2d(x, w, groups=4), [IMAGE, signed(8, 1, 2, 2)]),
    "conv2d same": (lambda t, x, w: t.nn.functional.conv2d(x, w, padding="same"), [IMAGE, signed(3, 4, 2, 3)]),
    "conv2d unbatched": (lambda t, x, w: t.nn.functional.conv2d(x, w), [IMAGE[0], signed(3, 4, 2, 3)]),
    "conv1d": (lambda t, x, w, b: t.nn.functional.conv1d(x, w, b, 2, 1, 2), [LINE, signed(3, 4, 3), signed(3)]),
    "unfold": (lambda t, x: t.nn.functional.unfold(x, (3, 2), 1, (1, 0), 2), [IMAGE]),
    "fold": (lambda t, x: t.nn.functional.fold(x, (4, 4), 2, stride=1), [signed(2, 8, 9)]),
    "pad": (lambda t, x: t.nn.functional.pad(x, (1, 2, -1, 3), value=0.5), [IMAGE]),
    "max_pool2d": (lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "max_pool2d ceil": (lambda t, x: t.nn.functional.max_pool2d(x, (3, 2), 3, 0, 1, True), [IMAGE]),
    "max_pool2d dilated": (lambda t, x: t.nn.functional.max_pool2d(x, 2, 1, 1, 2), [IMAGE]),
    "max_pool2d ties": (lambda t, x: t.nn.functional.max_pool2d(x, 2), [np.zeros((1, 1, 4, 4), np.float32)]),
    "max_pool1d": (lambda t, x: t.nn.functional.max_pool1d(x, 3), [LINE]),
    "avg_pool2d": (lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1), [IMAGE]),
    "avg_pool2d ceil": (lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, True, False), [IMAGE]),
    "avg_pool2d ceil padded": (lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, True, True), [IMAGE]),
    "avg_pool1d": (lambda t, x: t.nn.functional.avg_pool1d(x, 4, 2, 1), [LINE]),
    "adaptive": (lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, (3, None)), [IMAGE]),
    "adaptive 1": (lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1), [IMAGE]),
    "adaptive1d": (lambda t, x: t.nn.functional.adaptive_avg_pool1d(x, 4), [LINE]),
    "layer_norm": (lambda t, x, w, b: t.nn.functional.layer_norm(x, (6,), w, b), [ROWS, signed(6), signed(6)]),
    "layer_norm plain": (lambda t, x: t.nn.functional.layer_norm(x, (8, 7)), [IMAGE]),
    "group_norm": (lambda t, x, w, b: t.nn.functional.group_norm(x, 2, w, b), [IMAGE, signed(4), signed(4)]),
    "rms_norm": (lambda t, x, w: t.nn.functional.rms_norm(x, (6,), w), [ROWS, signed(6)]),
    "batch_norm": (
        lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True),
        [IMAGE, signed(4), signed(4)],
    ),
    "batch_norm eval": (
        lambda t, x: t.nn.functional.batch_norm(x, t.ones(6), t.ones(6) * 2, None, None, False),
        [ROWS],
    ),
    "embedding": (
        lambda t, w: t.nn.functional.embedding(t.tensor([[1, 2, 2], [0, 4, 1]]), w, padding_idx=1),
        [ROWS],
    ),
    "bilinear": (lambda t, x, y, w: t.nn.functional.bilinear(x, y, w), [ROWS, signed(5, 3), signed(2, 6, 3)]),
    "normalize": (lambda t, x: t.nn.functional.normalize(x, dim=1), [ROWS]),
    "attention": (
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v),
        [signed(2, 3, 4), signed(2, 5, 4), signed(2, 5, 6)],
    ),
    "attention causal": (
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [signed(2, 3, 4), signed(2, 3, 4), signed(2, 3, 4)],
    ),
    "attention masked": (
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(
            q, k, v, t.tensor([[True, False, True], [True, True, True]])
        ),
        [signed(2, 2, 4), signed(2, 3, 4), signed(2, 3, 4)],
    ),
    "cross_entropy": (lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(CLASSES)), [ROWS]),
    "cross_entropy weighted": (
        lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(CLASSES), t.tensor(PROBABLE[0])),
        [ROWS],
    ),
    "cross_entropy smoothed": (
        lambda t, x: t.nn.functional.cross_entropy(
            x, t.tensor(CLASSES), t.tensor(PROBABLE[0]), label_smoothing=0.1
        ),
        [ROWS],
    ),
    "cross_entropy smoothed each": (
        lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(CLASSES), reduction="none", label_smoothing=0.1),
        [ROWS],
    ),
    "cross_entropy soft": (
        lambda t, x, y: t.nn.functional.cross_entropy(x, y, t.tensor(PROBABLE[0]), label_smoothing=0.2),
        [ROWS, PROBABLE],
    ),
    "cross_entropy image": (
        lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(np.arange(112).reshape(2, 8, 7) % 4)),
        [IMAGE],
    ),
    "cross_entropy one": (lambda t, x: t.nn.functional.cross_entropy(x, t.tensor(2)), [ROWS[0]]),
    "nll sum": (lambda t, x: t.nn.functional.nll_loss(x, t.tensor(CLASSES), reduction="sum"), [ROWS]),
    "bce": (lambda t, x, y: t.nn.functional.binary_cross_entropy(x, y, y.detach()), [PROBABLE, PROBABLE / 2]),
    "bce logits": (
        lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y, pos_weight=t.tensor(PROBABLE[0])),
        [ROWS, PROBABLE],
    ),
    "hinge": (
        lambda t, x: t.nn.functional.hinge_embedding_loss(x, t.tensor(np.sign(ROWS[::-1].copy()))),
        [ROWS],
    ),
    "margin": (
        lambda t, x, y: t.nn.functional.margin_ranking_loss(x, y, t.tensor(np.sign(ROWS)), 0.5),
        [ROWS, PROBABLE],
    ),
    "kl batchmean": (
        lambda t, x, y: t.nn.functional.kl_div(t.log_softmax(x, 1), y, reduction="batchmean"),
        [ROWS, PROBABLE],
    ),
    "kl log": (lambda t, x, y: t.nn.functional.kl_div(x, y, reduction="sum", log_target=True), [ROWS, PROBABLE]),
}  # fmt: skip
ACTIVATIONS = """relu leaky_relu elu selu celu gelu silu mish hardtanh relu6 softsign logsigmoid hardsigmoid hardswish
    softplus tanhshrink softshrink hardshrink glu tanh sigmoid"""
for name in ACTIVATIONS.split():
    FUNCTIONS[name] = (lambda t, x, name=name: getattr(t.nn.functional, name)(x), [ROWS * 3])
for name in ("softmax", "log_softmax", "softmin"):
    FUNCTIONS[name] = (lambda t, x, name=name: getattr(t.nn.functional, name)(x, dim=0), [ROWS * 3])
FUNCTIONS["soft_margin"] = (lambda t, x: t.nn.functional.soft_margin_loss(x, t.tensor(ROWS)), [PROBABLE])
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
    for how in ("mean", "sum", "none"):
        FUNCTIONS[f"{name} {how}"] = (
            lambda t, x, y, name=name, how=how: getattr(t.nn.functional, name)(x, y, reduction=how),
            [ROWS, PROBABLE],
        )
FUNCTIONS["gelu tanh"] = (lambda t, x: t.nn.functional.gelu(x, approximate="tanh"), [ROWS])
FUNCTIONS["prelu"] = (lambda t, x, w: t.nn.functional.prelu(x, w), [IMAGE, signed(4)])

SEQUENCE, WIDE = signed(4, 3, 6), signed(5, 2, 8)
MODULES: dict[str, tuple[Callable, list[np.ndarray]]] = {
    "Linear": (lambda nn: nn.Linear(6, 4), [ROWS]),
    "Linear without bias": (lambda nn: nn.Linear(6, 4, bias=False), [SEQUENCE]),
    "Bilinear": (lambda nn: nn.Bilinear(6, 6, 2), [ROWS, ROWS * 2]),
    "Conv1d": (lambda nn: nn.Conv1d(4, 3, 3, padding=1), [LINE]),
    "Conv2d": (lambda nn: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), [IMAGE]),
    "Conv2d same": (lambda nn: nn.Conv2d(4, 2, (2, 3), padding="same", bias=False), [IMAGE]),
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(6), [ROWS]),
    "BatchNorm1d of lines": (lambda nn: nn.BatchNorm1d(4, momentum=None, affine=False), [LINE]),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(4), [IMAGE]),
    "BatchNorm2d in evaluation": (lambda nn: nn.BatchNorm2d(4).eval(), [IMAGE]),
    "LayerNorm": (lambda nn: nn.LayerNorm((3, 6), bias=False), [SEQUENCE]),
    "RMSNorm": (lambda nn: nn.RMSNorm(6), [SEQUENCE]),
    "GroupNorm": (lambda nn: nn.GroupNorm(2, 4), [IMAGE]),
    "Dropout": (lambda nn: nn.Dropout(0.3), [IMAGE]),
    "Dropout2d": (lambda nn: nn.Dropout2d(0.4), [IMAGE]),
    "Dropout in evaluation": (lambda nn: nn.Dropout(0.3).eval(), [IMAGE]),
    "PReLU": (lambda nn: nn.PReLU(4), [IMAGE]),
    "MaxPool2d": (lambda nn: nn.MaxPool2d(2, ceil_mode=True), [IMAGE]),
    "AvgPool2d": (lambda nn: nn.AvgPool2d(3, stride=1, padding=1), [IMAGE]),
    "EmbeddingBag": (lambda nn: nn.EmbeddingBag(8, 3, padding_idx=2), [np.array([[1, 2], [7, 1]])]),
    "EmbeddingBag with offsets": (
        lambda nn: nn.EmbeddingBag(8, 3, mode="max"), [np.array([1, 2, 7, 1, 0]), np.array([0, 3, 3])]),
    "Embedding": (lambda nn: nn.Embedding(8, 3, padding_idx=2), [np.array([[1, 2], [7, 1]])]),
    "Conv2d reflecting": (lambda nn: nn.Conv2d(4, 2, 3, padding=(1, 2), padding_mode="reflect"), [IMAGE]),
    "Conv1d circular same": (lambda nn: nn.Conv1d(4, 2, 4, padding="same", padding_mode="circular"), [LINE]),
    "Conv3d": (lambda nn: nn.Conv3d(2, 3, (2, 3, 1), stride=(1, 2, 1)), [signed(1, 2, 3, 5, 2)]),
    "ConvTranspose1d": (lambda nn: nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1), [LINE]),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(4, 6, 3, 2, 1, groups=2, dilation=2, bias=False), [IMAGE]),
    "BatchNorm3d": (lambda nn: nn.BatchNorm3d(2), [signed(2, 2, 3, 2, 2)]),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(4), [LINE]),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), [IMAGE]),
    "LocalResponseNorm": (lambda nn: nn.LocalResponseNorm(3), [IMAGE]),
    "AdaptiveMaxPool2d": (lambda nn: nn.AdaptiveMaxPool2d((3, None)), [IMAGE]),
    "AdaptiveMaxPool1d": (lambda nn: nn.AdaptiveMaxPool1d(4), [LINE]),
    "Upsample": (lambda nn: nn.Upsample(scale_factor=2), [IMAGE]),
    "Upsample bilinear": (lambda nn: nn.Upsample((5, 9), mode="bilinear", align_corners=True), [IMAGE]),
    "Upsample bicubic": (lambda nn: nn.Upsample(scale_factor=1.5, mode="bicubic"), [IMAGE]),
    "PixelShuffle": (lambda nn: nn.PixelShuffle(2), [IMAGE]),
    "PixelUnshuffle": (lambda nn: nn.PixelUnshuffle(2), [signed(1, 2, 4, 6)]),
    "CosineSimilarity": (lambda nn: nn.CosineSimilarity(), [ROWS, ROWS * 2 + 1]),
    "PairwiseDistance": (lambda nn: nn.PairwiseDistance(), [ROWS, ROWS * 2 + 1]),
    "CosineEmbeddingLoss": (lambda nn: nn.CosineEmbeddingLoss(0.2), [ROWS, ROWS * 2 + 1, np.array([1, -1, 1, -1, 1])]),
    "TripletMarginLoss": (lambda nn: nn.TripletMarginLoss(swap=True), [ROWS, ROWS + 1, ROWS * 2]),
    "PoissonNLLLoss": (lambda nn: nn.PoissonNLLLoss(full=True), [ROWS, np.abs(ROWS) * 3]),
    "GaussianNLLLoss": (lambda nn: nn.GaussianNLLLoss(full=True), [ROWS, ROWS * 2, PROBABLE]),
    "MultiLabelSoftMarginLoss": (lambda nn: nn.MultiLabelSoftMarginLoss(), [ROWS, (ROWS > 0).astype(np.float32)]),
    "MultiMarginLoss": (lambda nn: nn.MultiMarginLoss(p=2), [ROWS, np.array([0, 5, 2, 3, 1])]),
    "TransformerEncoder": (
        lambda nn: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2, nn.LayerNorm(8)
        ),
        [WIDE],
    ),
    "RNNCell": (lambda nn: nn.RNNCell(6, 3, nonlinearity="relu"), [ROWS]),
    "LSTMCell": (lambda nn: nn.LSTMCell(6, 3), [ROWS]),
    "GRUCell": (lambda nn: nn.GRUCell(6, 3, bias=False), [ROWS]),
    "RNN": (lambda nn: nn.RNN(6, 4, 2, nonlinearity="relu"), [SEQUENCE]),
    "RNN with a state": (lambda nn: nn.RNN(6, 4), [SEQUENCE, signed(1, 3, 4)]),
    "LSTM": (lambda nn: nn.LSTM(6, 4, num_layers=2, batch_first=True), [SEQUENCE]),
    "LSTM both ways": (lambda nn: nn.LSTM(6, 4, num_layers=2, bidirectional=True, bias=False), [SEQUENCE]),
    "LSTM unbatched": (lambda nn: nn.LSTM(6, 4, batch_first=True), [ROWS]),
    "GRU": (lambda nn: nn.GRU(6, 4, num_layers=2, bidirectional=True), [SEQUENCE]),
    "MultiheadAttention": (lambda nn: nn.MultiheadAttention(8, 2), [WIDE, WIDE * 2, WIDE - 1]),
    "MultiheadAttention of other widths": (
        lambda nn: nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True, bias=False),
        [signed(4, 5, 8), SEQUENCE, SEQUENCE],
    ),
    "TransformerEncoderLayer": (lambda nn: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), [WIDE]),
    "TransformerEncoderLayer, norm first": (
        lambda nn: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", norm_first=True, batch_first=True),
        [WIDE],
    ),
    "TransformerDecoder": (
        lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 2),
        [WIDE, WIDE - 1],
    ),
    "Transformer": (
        lambda nn: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True, norm_first=True), [WIDE, WIDE * 2]
    ),
    "ConstantPad1d": (lambda nn: nn.ConstantPad1d((1, 2), 3.5), [SEQUENCE]),
    "ZeroPad3d": (lambda nn: nn.ZeroPad3d(1), [signed(1, 2, 2, 3, 2)]),
    "ReflectionPad1d": (lambda nn: nn.ReflectionPad1d((1, 2)), [SEQUENCE]),
    "ReflectionPad2d": (lambda nn: nn.ReflectionPad2d(1), [signed(1, 2, 3, 3)]),
    "ReplicationPad2d": (lambda nn: nn.ReplicationPad2d((1, 0, 2, 1)), [signed(1, 2, 3, 3)]),
    "ReplicationPad3d": (lambda nn: nn.ReplicationPad3d(1), [signed(1, 2, 2, 3, 2)]),
    "CircularPad2d": (lambda nn: nn.CircularPad2d((1, 0, 2, 1)), [signed(1, 2, 3, 3)]),
    "Unfold": (lambda nn: nn.Unfold((2, 3), padding=1), [signed(2, 2, 3, 4)]),
    "Fold": (lambda nn: nn.Fold((3, 4), 2), [signed(2, 8, 6)]),
    "InstanceNorm3d": (lambda nn: nn.InstanceNorm3d(2, affine=True), [signed(2, 2, 3, 2, 2)]),
    "Softmax2d": (lambda nn: nn.Softmax2d(), [signed(2, 3, 2, 2)]),
    "UpsamplingNearest2d": (lambda nn: nn.UpsamplingNearest2d(scale_factor=2), [signed(1, 2, 3, 3)]),
    "UpsamplingBilinear2d": (lambda nn: nn.UpsamplingBilinear2d((4, 5)), [signed(1, 2, 3, 3)]),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_gradients_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, arrays = FUNCTIONS[name]
    ours, theirs = run(engine, function, arrays), run(torch, function, arrays)
    close(ours[0], theirs[0])
    close(ours[1], theirs[1])


@pytest.mark.torch
@pytest.mark.parametrize("name", MODULES)
def test_modules_begin_and_compute_and_print_as_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, arrays = MODULES[name]
    seen = []
    for library in (engine, torch):
        library.manual_seed(0)
        module = make(library.nn)
        start = {path: tensor.numpy().copy() for path, tensor in module.state_dict().items()}
        outputs, gradients = run(library, lambda _, *tensors, module=module: module(*tensors), arrays)
        for parameter in module.parameters():
            gradients.append(parameter.grad.numpy())
        after = {path: tensor.numpy() for path, tensor in module.state_dict().items()}
        seen.append((repr(module), start, outputs, gradients, after))
    (ours, start, outputs, gradients, after), theirs = seen[0], seen[1]
    assert ours == theirs[0]
    assert list(start) == list(theirs[1])
    close(list(start.values()), list(theirs[1].values()))
    close(outputs, theirs[2])
    close(gradients, theirs[3])
    close(list(after.values()), list(theirs[4].values()))


@pytest.mark.torch
def test_seeded_weights_are_torchs_to_the_last_bit() -> None:
    torch = pytest.importorskip("torch")
    for make in (lambda nn: nn.Linear(7, 5), lambda nn: nn.Conv2d(3, 5, 3), lambda nn: nn.LSTM(5, 3)):
        pair = []
        for library in (engine, torch):
            library.manual_seed(12)
            pair.append([p.detach().numpy() for p in make(library.nn).parameters()])
        for ours, theirs in zip(*pair, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.torch
@pytest.mark.parametrize(
    "fill",
    [
        lambda init, t: init.uniform_(t, -2, 3),
        lambda init, t: init.normal_(t, 1, 2),
        lambda init, t: init.xavier_uniform_(t, 1.5),
        lambda init, t: init.xavier_normal_(t),
        lambda init, t: init.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"),
        lambda init, t: init.kaiming_normal_(t, 0.2),
        lambda init, t: init.orthogonal_(t, 2),
        lambda init, t: init.constant_(t, 0.3),
        lambda init, t: init.eye_(t),
    ],
)
def test_initial_values_are_torchs(fill: Callable) -> None:
    torch = pytest.importorskip("torch")
    results = []
    for library in (engine, torch):
        library.manual_seed(4)
        results.append(fill(library.nn.init, library.empty(6, 5)).numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


PRINTED = [
    lambda nn: nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Sequential(nn.Tanh(), nn.Softmax(dim=1))),
    lambda nn: nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Linear(2, 3)]),
    lambda nn: nn.ModuleDict({"a": nn.ELU(), "b": nn.ModuleList()}),
    lambda nn: nn.MultiheadAttention(8, 2),
    lambda nn: nn.TransformerEncoderLayer(8, 2, 16),
    lambda nn: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, dilation=2, bias=False),
    lambda nn: nn.Sequential(*[nn.LeakyReLU(0.1), nn.GELU(), nn.SiLU(), nn.LogSoftmax(-1), nn.Softplus(), nn.Hardtanh(),
                               nn.ReLU6(), nn.Softsign(), nn.PReLU(), nn.Mish(), nn.SELU(), nn.CELU(), nn.GLU(),
                               nn.Softshrink(), nn.Hardshrink(0.2), nn.Threshold(0.1, 2), nn.LogSigmoid(),
                               nn.Hardswish(), nn.Hardsigmoid(), nn.Softmin(dim=1), nn.Tanhshrink()]),
    lambda nn: nn.Sequential(nn.MaxPool2d(3), nn.AvgPool1d(2), nn.AdaptiveAvgPool2d((2, None)), nn.MaxPool1d(2, 1),
                             nn.AdaptiveAvgPool1d(3), nn.AvgPool2d(3, stride=2, padding=1)),
    lambda nn: nn.Sequential(nn.ConvTranspose2d(2, 4, 3, 2, 1, 1, 2, False, 2), nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2),
                             nn.Conv1d(1, 2, 3, padding=1, padding_mode="reflect"), nn.InstanceNorm2d(3),
                             nn.Upsample(3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2),
                             nn.PixelUnshuffle(2), nn.AdaptiveMaxPool2d((2, None)), nn.LocalResponseNorm(3),
                             nn.AlphaDropout(0.2), nn.CosineSimilarity(), nn.PairwiseDistance(),
                             nn.TripletMarginLoss(), nn.Dropout3d()),
    lambda nn: nn.Sequential(nn.Dropout(0.1, True), nn.Embedding(3, 4, padding_idx=-1), nn.Flatten(), nn.Identity(3),
                             nn.Unflatten(1, (2, 3)), nn.ZeroPad2d(1), nn.BatchNorm1d(3, affine=False)),
    lambda nn: nn.Sequential(nn.MSELoss(), nn.CrossEntropyLoss(), nn.BCELoss(), nn.HuberLoss(), nn.KLDivLoss(),
                             nn.NLLLoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.BCEWithLogitsLoss()),
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("make", PRINTED)
def test_modules_print_as_torchs(make: Callable) -> None:
    torch = pytest.importorskip("torch")
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.torch
def test_parameter_lists_print_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    for make in (
        lambda t: t.nn.ParameterList([t.ones(2, 3), t.ones(2)]),
        lambda t: t.nn.ParameterDict({"a": t.nn.Parameter(t.ones(2))}),
    ):
        assert repr(make(engine)) == repr(make(torch))


@pytest.mark.torch
@pytest.mark.parametrize("masks", ["padding", "boolean", "float", "both"])
def test_attention_is_masked_as_in_torch(masks: str) -> None:
    torch = pytest.importorskip("torch")
    padding = np.array([[False, False, True], [False, False, False]])
    hidden = np.array([[False, True, True], [False, False, True], [False, False, False]])
    results = []
    for library in (engine, torch):
        library.manual_seed(0)
        attention = library.nn.MultiheadAttention(4, 2, batch_first=True)
        x = library.tensor(np.cos(np.arange(24, dtype=np.float32)).reshape(2, 3, 4))
        given = {}
        if masks in ("padding", "both"):
            given["key_padding_mask"] = library.tensor(padding)
        if masks in ("boolean", "both"):
            given["attn_mask"] = library.tensor(hidden)
        if masks == "float":
            given["attn_mask"] = library.tensor(np.where(hidden, -2.0, 0.5).astype(np.float32))
        out, seen = attention(x, x, x, average_attn_weights=False, **given)
        results.append([out.detach().numpy(), seen.detach().numpy()])
    close(*results)


def names(tensor: Any, depth: int = 4) -> list[Any]:
    def walk(node: Any, depth: int) -> Any:
        if node is None or not depth:
            return None if node is None else node.name()
        return [node.name(), *[walk(following, depth - 1) for following, _ in node.next_functions]]

    return walk(tensor.grad_fn, depth)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        *ACTIVATIONS.split(),
        *[
            "conv1d",
            "conv2d",
            "max_pool1d",
            "max_pool2d",
            "avg_pool1d",
            "avg_pool2d",
            "adaptive",
            "prelu",
            "unfold",
            "fold",
            "pad",
        ],
        *["layer_norm", "group_norm", "batch_norm", "embedding", "cross_entropy", "softmin", "bce"],
        *("adaptive 1", "cross_entropy image", "bce logits", "conv2d groups", "layer_norm plain"),
        *("mse_loss mean", "l1_loss mean", "huber_loss sum", "smooth_l1_loss none"),
    ],
)
def test_nodes_have_torchs_names(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, arrays = FUNCTIONS[name]
    graphs = []
    for library in (engine, torch):
        tensors = [library.tensor(array, requires_grad=True) for array in arrays]
        graphs.append(names(function(library, *tensors)))
    assert graphs[0] == graphs[1]


# --- what a Module promises, with and without PyTorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.rest = nn.Sequential(OrderedDict(act=nn.ReLU(), last=nn.Linear(3, 1)))
        self.register_buffer("scale", engine.ones(1))
        self.register_buffer("scratch", engine.zeros(1), persistent=False)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        return self.rest(self.norm(self.first(x))) * self.scale


PATHS = [
    *["scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"],
    *["norm.num_batches_tracked", "rest.last.weight", "rest.last.bias"],
]


def test_a_module_finds_what_is_assigned_to_it() -> None:
    net = Net()
    assert [name for name, _ in net.named_children()] == ["first", "norm", "rest"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "norm", "rest", "rest.act", "rest.last"]
    assert [name for name, _ in net.named_parameters()] == [p for p in PATHS if p.endswith(("weight", "bias"))]
    assert [name for name, _ in net.named_buffers()] == [
        "scale",
        "scratch",
        *[p for p in PATHS if "running" in p],
        PATHS[7],
    ]
    assert net.get_submodule("rest.last") is net.rest.last is net.rest[1]
    assert net.get_parameter("rest.last.bias") is net.rest[-1].bias
    assert list(net.state_dict()) == PATHS
    with pytest.raises(AttributeError, match="Net has no attribute `nowhere`"):
        net.get_submodule("nowhere")


def test_a_state_dict_goes_round() -> None:
    source, target = Net(), Net()
    source(engine.randn(8, 2))
    assert str(target.load_state_dict(source.state_dict())) == "<All keys matched successfully>"
    for path, tensor in source.state_dict().items():
        assert target.state_dict()[path].tolist() == tensor.tolist()
    assert target.first.weight is not source.first.weight
    assert target.first.weight.requires_grad


def test_a_state_dict_that_does_not_fit_is_told_in_full_and_changes_nothing() -> None:
    net = Net()
    saved = {**net.state_dict(), "extra": engine.ones(1), "first.weight": engine.ones(3, 3)}
    del saved["rest.last.bias"]
    before = net.first.bias.tolist()
    saved["first.bias"] = engine.full((3,), 7.0)
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(saved)
    assert str(caught.value) == (
        "Error(s) in loading state_dict for Net:\n\t"
        'Unexpected key(s) in state_dict: "extra". \n\t'
        'Missing key(s) in state_dict: "rest.last.bias". \n\t'
        "size mismatch for first.weight: copying a param with shape torch.Size([3, 3]) from checkpoint, the shape "
        "in current model is torch.Size([3, 2])."
    )
    assert net.first.bias.tolist() == before
    del saved["first.weight"]
    result = net.load_state_dict(saved, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["first.weight", "rest.last.bias"], ["extra"])
    assert net.first.bias.tolist() == [7.0] * 3


def test_hooks_see_and_change_what_goes_in_and_comes_out() -> None:
    layer, seen = nn.Identity(), []
    before = layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    after = layer.register_forward_hook(lambda module, args, out: seen.append(args[0].item()) or out * 10)
    assert layer(engine.tensor(1.0)).item() == 20.0
    assert seen == [2.0]
    before.remove()
    after.remove()
    assert layer(engine.tensor(1.0)).item() == 1.0


def test_attributes_move_between_kinds_and_go() -> None:
    module = nn.Module()
    module.x = 1
    module.x = nn.Parameter(engine.ones(1))
    assert list(dict(module.named_parameters())) == ["x"]
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'x'"):
        module.x = engine.ones(1)
    module.x = None
    assert list(module.parameters()) == []
    module.x = nn.Linear(1, 1)
    assert [name for name, _ in module.named_children()] == ["x"]
    del module.x
    with pytest.raises(AttributeError, match="'Module' object has no attribute 'x'"):
        module.x  # noqa: B018
    with pytest.raises(KeyError, match=r"parameter name can.*t contain"):
        module.register_parameter("a.b", None)


def test_converting_keeps_the_parameters_and_leaves_integers_alone() -> None:
    net = Net()
    weight = net.first.weight
    net(engine.randn(4, 2)).sum().backward()
    net.double()
    assert net.first.weight is weight
    assert weight.dtype == weight.grad.dtype == engine.float64
    assert net.norm.num_batches_tracked.dtype == engine.int64
    assert net(engine.randn(4, 2, dtype=engine.float64)).dtype == engine.float64


def test_a_copied_module_is_apart() -> None:
    net = Net()
    twin = copy.deepcopy(net)
    with engine.no_grad():
        twin.first.weight.zero_()
    assert net.first.weight.abs().sum().item() > 0
    assert list(twin.state_dict()) == PATHS


def test_apply_train_and_eval_reach_everything() -> None:
    net, visited = Net(), []
    net.apply(lambda module: visited.append(type(module).__name__))
    assert visited == ["Linear", "BatchNorm1d", "ReLU", "Linear", "Sequential", "Net"]
    net.eval()
    assert not any(module.training for module in net.modules())
    count = net.norm.num_batches_tracked.item()
    net(engine.randn(3, 2))
    assert net.norm.num_batches_tracked.item() == count


def test_sequences_of_modules_are_cut_and_extended() -> None:
    layers = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    assert [type(layer).__name__ for layer in layers[:2]] == ["Linear", "ReLU"]
    layers.append(nn.Tanh())
    del layers[1]
    assert [name for name, _ in layers.named_children()] == ["0", "1", "2"]
    listed = nn.ModuleList([nn.ReLU()])
    listed.extend([nn.Tanh(), nn.Tanh()]).insert(0, nn.Identity())
    assert [type(layer).__name__ for layer in listed] == ["Identity", "ReLU", "Tanh", "Tanh"]


def test_a_convolution_by_hand() -> None:
    x = engine.arange(9.0).reshape(1, 1, 3, 3).requires_grad_()
    w = engine.tensor([[[[1.0, 0.0], [0.0, -1.0]]]], requires_grad=True)
    out = F.conv2d(x, w)
    assert out.tolist() == [[[[-4.0, -4.0], [-4.0, -4.0]]]]
    assert out.grad_fn.name() == "ConvolutionBackward0"
    out.sum().backward()
    assert w.grad.tolist() == [[[[8.0, 12.0], [20.0, 24.0]]]]
    assert x.grad.tolist() == [[[[1.0, 1.0, 0.0], [1.0, 0.0, -1.0], [0.0, -1.0, -1.0]]]]


def test_pooling_by_hand() -> None:
    x = engine.tensor([[[[1.0, 2.0], [4.0, 3.0]]]], requires_grad=True)
    F.max_pool2d(x, 2).sum().backward()
    assert x.grad.tolist() == [[[[0.0, 0.0], [1.0, 0.0]]]]
    assert F.avg_pool2d(x, 2).item() == 2.5


def test_the_padding_row_of_an_embedding_stays() -> None:
    table = nn.Embedding(3, 2, padding_idx=1)
    table(engine.tensor([0, 1, 1, 0])).sum().backward()
    assert table.weight.grad.tolist() == [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(IndexError, match="index out of range in self"):
        table(engine.tensor([3]))


def test_normalized_means_nought_and_variance_one() -> None:
    x = engine.randn(16, 4, 5) * 3 + 2
    for out, axes in (
        (nn.BatchNorm1d(4)(x), (0, 2)),
        (nn.LayerNorm((4, 5))(x), (1, 2)),
        (nn.GroupNorm(1, 4)(x), (1, 2)),
    ):
        np.testing.assert_allclose(out.detach().numpy().mean(axes), 0, atol=1e-5)
        np.testing.assert_allclose(out.detach().numpy().var(axes), 1, atol=1e-3)


def test_cross_entropy_by_hand() -> None:
    x = engine.zeros(2, 4, requires_grad=True)
    loss = F.cross_entropy(x, engine.tensor([1, -100]))
    assert loss.item() == pytest.approx(np.log(4))
    loss.backward()
    assert x.grad.tolist() == [[0.25, -0.75, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        F.cross_entropy(x, engine.tensor([1, 4]))


def test_gradients_are_clipped_together() -> None:
    a, b = engine.tensor([3.0], requires_grad=True), engine.tensor([4.0], requires_grad=True)
    ((a * a + b * b) / 2).backward()
    assert nn.utils.clip_grad_norm_([a, b], 1.0).item() == 5.0
    assert [a.grad.item(), b.grad.item()] == pytest.approx([0.6, 0.8], abs=1e-6)
    nn.utils.clip_grad_value_([a, b], 0.7)
    assert b.grad.item() == pytest.approx(0.7)
    vector = nn.utils.parameters_to_vector([a, b])
    assert vector.tolist() == [3.0, 4.0]
    nn.utils.vector_to_parameters(vector.detach() * 2, [a, b])
    assert [a.item(), b.item()] == [6.0, 8.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.conv2d(engine.ones(1, 2, 4, 4), engine.ones(1, 3, 2, 2)), RuntimeError, "to have 3 channels"),
        (lambda: F.conv2d(engine.ones(1, 1, 2, 2), engine.ones(1, 1, 3, 3)), RuntimeError, "Kernel size"),
        (lambda: F.max_pool2d(engine.ones(1, 1, 4, 4), 2, padding=2), RuntimeError, "at most half"),
        (lambda: nn.BatchNorm2d(3)(engine.ones(2, 3)), ValueError, "expected 4D input"),
        (lambda: nn.BatchNorm1d(3)(engine.ones(1, 3)), ValueError, "more than 1 value per channel"),
        (lambda: F.mse_loss(engine.ones(2), engine.ones(2), reduction="avg"), ValueError, "not a valid value"),
        (lambda: F.binary_cross_entropy(engine.ones(1) * 2, engine.ones(1)), RuntimeError, "between 0 and 1"),
        (lambda: nn.Dropout(1.5), ValueError, "between 0 and 1"),
        (lambda: nn.LSTM(2, 3, proj_size=1), NotImplementedError, "proj_size"),
        (lambda: nn.init.calculate_gain("nothing"), ValueError, "Unsupported nonlinearity nothing"),
        (lambda: nn.Module()(1), NotImplementedError, 'missing the required "forward"'),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(call: Callable, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def losses_of_a_network_of_everything(torch: Any) -> list[float]:
    """Three steps of a convolution, an LSTM, attention and dropout under AdamW and a scheduler."""
    layers, functional = torch.nn, torch.nn.functional

    class Everything(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.pool = (layers.Conv2d(1, 4, 3), layers.BatchNorm2d(4), layers.MaxPool2d(2))
            self.table, self.rnn = layers.Embedding(5, 9), layers.LSTM(9, 6, batch_first=True)
            self.attention = layers.MultiheadAttention(6, 2, batch_first=True)
            self.drop, self.last_norm, self.out = (layers.Dropout(0.1), layers.LayerNorm(6), layers.Linear(6, 3))

        def forward(self, x: Any, i: Any) -> Any:
            h = self.pool(functional.relu(self.norm(self.conv(x)))).flatten(2)
            h, _ = self.rnn(h + self.table(i))
            h, _ = self.attention(h, h, h)
            return self.out(self.last_norm(self.drop(h)).mean(1))

    torch.manual_seed(0)
    net = Everything()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    words, classes = torch.tensor([[0, 1, 2, 3], [1, 1, 4, 0]]), torch.tensor([0, 2])
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(torch.randn(2, 1, 8, 8), words), classes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        seen.append(loss.item())
    return seen


def test_a_network_of_everything_trains_as_in_pytorch() -> None:
    assert losses_of_a_network_of_everything(engine) == pytest.approx([1.6841, 1.2781, 0.9168], abs=2e-4)


@pytest.mark.torch
def test_a_network_of_everything_trains_beside_torch() -> None:
    torch = pytest.importorskip("torch")
    expected = losses_of_a_network_of_everything(torch)
    assert losses_of_a_network_of_everything(engine) == pytest.approx(expected, abs=1e-4)


def test_targets_of_another_dtype_are_refused() -> None:
    x = engine.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Found dtype Double but expected Float"):
        F.mse_loss(x, engine.ones(2, dtype=engine.float64))


def backward_hooks(torch: Any) -> list[Any]:
    torch.manual_seed(0)
    net, seen = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)), []

    def hook(module: Any, grad_input: tuple, grad_output: tuple) -> Any:
        shapes = [[None if g is None else tuple(g.shape) for g in side] for side in (grad_input, grad_output)]
        seen.append((type(module).__name__, shapes, float(grad_output[0].sum())))
        return (grad_input[0] * 2,) if isinstance(module, torch.nn.Tanh) else None

    handles = [layer.register_full_backward_hook(hook) for layer in net]
    net(torch.ones(4, 2)).sum().backward()
    for handle in handles:
        handle.remove()
    return [seen, net[0].weight.grad.tolist()]


@pytest.mark.torch
def test_backward_hooks_are_given_what_torchs_are() -> None:
    torch = pytest.importorskip("torch")
    (ours, our_gradient), (theirs, their_gradient) = backward_hooks(engine), backward_hooks(torch)
    assert [entry[:2] for entry in ours] == [entry[:2] for entry in theirs]
    assert [entry[2] for entry in ours] == pytest.approx([entry[2] for entry in theirs])
    np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-5)


def test_backward_hooks_see_the_gradients() -> None:
    seen = backward_hooks(engine)[0]
    assert [entry[0] for entry in seen] == ["Linear", "Tanh", "Linear"]
    assert seen[0][1:] == ([[(4, 3)], [(4, 1)]], 4.0)


def test_a_padded_window_of_minus_infinity_takes_an_element_and_not_the_border() -> None:
    x = engine.full((1, 1, 2, 2), -float("inf"))
    out, at = F.max_pool2d(x, 2, 2, 1, return_indices=True)
    assert out.tolist() == [[[[-np.inf] * 2] * 2]]
    assert at.tolist() == [[[[0, 1], [2, 3]]]]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (engine.ones(2, 4), r"mat1 and mat2 shapes cannot be multiplied \(2x4 and 3x2\)"),
        (engine.ones(5, 2, 4), r"mat1 and mat2 shapes cannot be multiplied \(10x4 and 3x2\)"),
        (engine.ones(2, 3, dtype=engine.float64), "mat1 and mat2 must have the same dtype"),
        (engine.ones(2, 3, dtype=engine.int64), "mat1 and mat2 must have the same dtype"),
    ],
)
def test_a_linear_layer_says_what_does_not_fit(x: engine.Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        nn.Linear(3, 2)(x)
