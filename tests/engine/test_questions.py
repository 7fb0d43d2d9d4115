"""What programs ask of tensors and dtypes, as PyTorch answers."""

from __future__ import annotations

from typing import Any

import pytest

from gradviz import engine

QUESTIONS = {
    "is_complex": lambda t: [t.is_complex(t.ones(1)), t.ones(1, dtype=t.complex64).is_complex()],
    "is_signed": lambda t: [t.ones(1, dtype=t.uint8).is_signed(), t.is_signed(t.ones(1))],
    "is_nonzero": lambda t: [t.is_nonzero(t.tensor([0.5])), t.tensor(0).is_nonzero()],
    "is_same_size": lambda t: [t.is_same_size(t.ones(2), t.zeros(2)), t.is_same_size(t.ones(2), t.ones(2, 1))],
    "get_device": lambda t: t.ones(1).get_device(),
    "kinds": lambda t: [
        getattr(t.ones(1), f"is_{kind}")
        for kind in "cuda ipu maia meta mkldnn mps mtia nested quantized sparse sparse_csr vulkan xla xpu".split()
    ],
    "never": lambda t: [
        t.is_conj(t.ones(1)), t.is_neg(t.ones(1)), t.is_inference(t.ones(1)), t.is_distributed(t.ones(1)),
        t.ones(1).is_shared(), t.ones(1).is_pinned(), t.ones(1).name,
    ],
    "is_cuda": lambda t: [t.ones(1).is_cuda, t.ones(1).is_cpu],
    "type": lambda t: [t.ones(1).type(), t.ones(1, dtype=t.int64).type()],
    "type as another": lambda t: [t.ones(1).type(t.int32).type(), t.ones(1).type("torch.DoubleTensor").type()],
    "storage_offset": lambda t: [t.arange(6)[2:].storage_offset(), t.ones(2, 3)[1, 1:].storage_offset()],
    "result_type": lambda t: [
        str(t.result_type(t.ones(1, dtype=t.int32), 1.0)),
        str(t.result_type(t.tensor(1.0, dtype=t.float64), t.ones(2))),
    ],
    "can_cast": lambda t: [t.can_cast(t.float64, t.int32), t.can_cast(t.int64, t.float32)],
    "functions in place": lambda t: [t.relu_(t.tensor([-1.0, 2.0])).tolist(), t.zero_(t.ones(2)).tolist()],
    "torch.conv1d": lambda t: t.conv1d(t.ones(1, 1, 4), t.ones(1, 1, 2)).tolist(),
    "torch.cosine_similarity": lambda t: t.cosine_similarity(t.ones(2), t.ones(2), dim=0).tolist(),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours: Any = QUESTIONS[name](engine)
    assert str(ours) == str(QUESTIONS[name](torch))


def test_several_values_are_neither_zero_nor_not() -> None:
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        engine.is_nonzero(engine.ones(2))
    with pytest.raises(ValueError, match="invalid type"):
        engine.ones(1).type("torch.QuantumTensor")
