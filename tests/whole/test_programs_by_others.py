"""Programs that others wrote: what they compute is the same under the recorder, bit by bit.

An optional group, `pip install ".[programs]"`: small configurations of `transformers`, `lightning`, `gymnasium`,
without downloads. What is not installed is skipped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Accumulated, OpRan, PassBegan, ScopeEntered  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.programs, pytest.mark.slow]
Left = dict[str, Any]
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def bits(tensor: Any) -> bytes:
    """The elements of a tensor, as bits."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def left_by(model: Any, losses: list[Any]) -> Left:
    """What a training leaves: its losses, weights and random numbers."""
    weights = {name: bits(parameter) for name, parameter in model.named_parameters()}
    return {**weights, "losses": [loss.detach().item().hex() for loss in losses], "random": torch.rand(1).item()}


def recorded(program: Callable[[], Left], folder: Path, **settings: Any) -> tuple[Left, Left, Trace]:
    """What a program leaves without and with the recorder, and its trace."""
    torch.manual_seed(0)
    plain = program()
    torch.manual_seed(0)
    with gradviz.record(folder / "run.gradviz", **settings):
        traced = program()
    return plain, traced, gradviz.open(folder / "run.gradviz")


# --- transformers

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
LLAMA = {**SMALL, "num_key_value_heads": 1, "max_position_embeddings": 32}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 8, "num_labels": 3}
T5 = {
    "decoder_start_token_id": 0,
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
}
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
BART = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip


def tokens() -> Any:
    return torch.randint(3, 50, (2, 8))


def text() -> dict[str, Any]:
    """Input that is its own label."""
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def pairs() -> dict[str, Any]:
    return {"input_ids": tokens(), "labels": tokens()}


def classes() -> dict[str, Any]:
    return {"input_ids": tokens(), "labels": torch.tensor([0, 1])}


def images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


# Class of the model, the settings of its configuration, what it is given, and whether it has gradient checkpointing.
ARCHITECTURES = [
    ("BertForSequenceClassification", "BertConfig", SMALL, classes, True),
    ("RobertaForMaskedLM", "RobertaConfig", SMALL, text, True),
    ("DistilBertForSequenceClassification", "DistilBertConfig",
     {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, classes, False),
    ("GPT2LMHeadModel", "GPT2Config", GPT2, text, True),
    ("LlamaForCausalLM", "LlamaConfig", LLAMA, text, True),
    ("MistralForCausalLM", "MistralConfig", LLAMA, text, False),
    ("Qwen2ForCausalLM", "Qwen2Config", LLAMA, text, False),
    ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1}, text, False),
    ("T5ForConditionalGeneration", "T5Config", T5, pairs, True),
    ("BartForConditionalGeneration", "BartConfig", BART, pairs, False),
    ("ViTForImageClassification", "ViTConfig", IMAGE, images, True),
    ("ResNetForImageClassification", "ResNetConfig",
     {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3, "layer_type": "basic"}, images,
     False),
]  # fmt: skip


def trained(model: Any, batch: dict[str, Any], autocast: bool = False) -> Left:
    """Two steps of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return left_by(model, losses)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "config", "settings", "batch", "checkpoints"), ARCHITECTURES, ids=[a[0] for a in ARCHITECTURES]
)
def test_an_architecture_of_transformers(
    name: str,
    config: str,
    settings: dict[str, Any],
    batch: Callable[[], dict[str, Any]],
    checkpoints: bool,
    autocast: bool,
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")

    def program() -> Left:
        model = getattr(transformers, name)(getattr(transformers, config)(**settings)).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        return trained(model, batch(), autocast)

    plain, traced, trace = recorded(program, tmp_path)
    assert traced == plain
    assert len({run.digest for run in trace.passes if run.nodes}) >= 1
    entered = {event.type for event in trace if isinstance(event, ScopeEntered)}
    assert name in entered
    leaves = {event.tensor for event in trace if isinstance(event, Accumulated)}
    assert len(leaves) > 5
    assert build(trace).nodes


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def program() -> Left:
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
        data = [{"input_ids": tokens()[0], "labels": torch.tensor(step % 2)} for step in range(12)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), use_cpu=True, max_steps=3, per_device_train_batch_size=2,
            gradient_accumulation_steps=2, gradient_checkpointing=True, bf16=True, save_strategy="no", report_to="none",
            disable_tqdm=True, seed=0, logging_strategy="no",
        )  # fmt: skip
        result = transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
        return left_by(model, [torch.tensor(result.training_loss)])

    plain, traced, trace = recorded(program, tmp_path)
    assert traced == plain
    assert len(trace.passes) >= 6


# --- others


def test_a_fit_of_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
            self.losses: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def program() -> Left:
        data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
        model = Regression()
        trainer = lightning.Trainer(
            max_epochs=2, gradient_clip_val=0.5, accumulate_grad_batches=3, accelerator="cpu", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=str(tmp_path),
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
        return left_by(model, model.losses)

    plain, traced, trace = recorded(program, tmp_path)
    assert traced == plain
    assert len(trace.passes) == 12


def test_a_policy_gradient_in_gymnasium(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def program() -> Left:
        environment = gymnasium.make("CartPole-v1")
        policy = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
        losses = []
        for episode in range(3):
            state, _ = environment.reset(seed=episode)
            chances, rewards = [], []
            for _ in range(20):
                choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(state)))
                action = choice.sample()
                chances.append(choice.log_prob(action))
                state, reward, ended, *_ = environment.step(action.item())
                rewards.append(float(reward))
                if ended:
                    break
            returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
            loss = -(torch.stack(chances) * (returns - returns.mean())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return left_by(policy, losses)

    plain, traced, trace = recorded(program, tmp_path)
    assert traced == plain
    assert len(trace.passes) == 3


def test_gradients_of_each_sample_by_torch_func(tmp_path: Path) -> None:
    from torch.func import functional_call, grad, vmap

    def program() -> Left:
        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 1))
        parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

        def loss(parameters: dict[str, Any], x: Any, y: Any) -> Any:
            return (functional_call(net, parameters, (x[None],)) - y).pow(2).sum()

        each = vmap(grad(loss), (None, 0, 0))(parameters, torch.randn(6, 3), torch.randn(6, 1))
        net(torch.randn(2, 3)).sum().backward()
        return {name: bits(value) for name, value in each.items()} | left_by(net, [])

    plain, traced, trace = recorded(program, tmp_path)
    assert traced == plain
    assert any(isinstance(event, OpRan) for event in trace)
    assert [one.how for one in trace if isinstance(one, PassBegan)] == ["grad", "backward"]
