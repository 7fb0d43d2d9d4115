"""Callbacks for the trainers of others: they name a run, mark its steps, and stop it at a finding."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.callbacks import Marks, StoppedByFinding, for_accelerate, for_lightning, for_trainer  # noqa: E402
from gradviz.errors import GradvizError  # noqa: E402
from tests.invoked import invoked  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.programs, pytest.mark.slow]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
HOW = 'pip install "gradviz-recorder[programs]"'


class Net(torch.nn.Module):  # type: ignore[misc]
    """A network of which `lazy` is left out of the graph."""

    def __init__(self, is_faulty: bool) -> None:
        super().__init__()
        self.lazy, self.head, self.is_faulty = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), is_faulty

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        hidden = self.lazy(x)
        out = self.head(hidden.detach() if self.is_faulty else hidden)
        return {"loss": torch.nn.functional.mse_loss(out, x.sum(1, keepdim=True)), "logits": out}


def fit_of_trainer(net: Any, folder: Path, callback: Any) -> int:
    transformers = pytest.importorskip("transformers", reason=HOW)
    pytest.importorskip("accelerate", reason=HOW)
    data = [{"x": torch.randn(4), "labels": torch.tensor(0)} for _ in range(24)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), use_cpu=True, max_steps=6, per_device_train_batch_size=2, disable_tqdm=True,
        gradient_accumulation_steps=2, save_strategy="no", report_to="none", logging_strategy="no", seed=0,
        eval_strategy="steps", eval_steps=5,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=net, args=arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[callback()]
    )
    trainer.train()
    return int(trainer.state.global_step)


def fit_of_lightning(net: Any, folder: Path, callback: Any) -> int:
    lightning = pytest.importorskip("lightning", reason=HOW)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch[0])["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 4)), batch_size=2)
    trainer = lightning.Trainer(
        max_steps=6, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(folder), callbacks=[callback()],
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Module(), loader, loader)
    return int(trainer.global_step)


def fit_of_accelerate(net: Any, folder: Path, callback: Any) -> int:
    accelerate = pytest.importorskip("accelerate", reason=HOW)
    accelerator = accelerate.Accelerator(cpu=True, log_with=callback())
    accelerator.init_trackers("training")
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(6):
        optimizer.zero_grad()
        loss = net(torch.randn(2, 4))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        try:
            accelerator.log({"loss": 0.0}, step=step + 1)
        except StoppedByFinding:
            return step + 1
    return 6


FITS: list[tuple[Callable[..., int], Callable[..., Any], list[str]]] = [
    (fit_of_trainer, for_trainer, ["[step 1]", "[step 1, micro-batch 2]", "[evaluation]", "[step 6]"]),
    (fit_of_lightning, for_lightning, ["[step 1, micro-batch 1]", "[step 1, micro-batch 2]", "[validation]"]),
    (fit_of_accelerate, for_accelerate, ["[step 1 ended]", "[step 6 ended]"]),
]


@pytest.mark.parametrize(("fit", "callback", "marks"), FITS, ids=["trainer", "lightning", "accelerate"])
@pytest.mark.filterwarnings("ignore")
def test_a_healthy_training_is_named_and_marked(
    fit: Callable[..., int], callback: Callable[..., Any], marks: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    with gradviz.record(tmp_path / "run.gradviz"):
        assert fit(Net(False), tmp_path, lambda: callback(name="baseline", on_finding="stop")) == 6
    trace = gradviz.open(tmp_path / "run.gradviz")
    assert "baseline: " in invoked(["info", str(tmp_path / "run.gradviz")]).stdout
    assert trace.meta["run"] == "baseline"
    printed = [line.text for line in trace.printed]
    assert [mark for mark in marks if mark not in printed] == []
    events = [line.event for line in trace.printed]
    assert events == sorted(events)
    assert events[-1] > events[0]


@pytest.mark.parametrize(("fit", "callback", "marks"), FITS, ids=["trainer", "lightning", "accelerate"])
@pytest.mark.filterwarnings("ignore")
def test_a_finding_warns_or_stops_the_training(
    fit: Callable[..., int], callback: Callable[..., Any], marks: list[str], tmp_path: Path
) -> None:
    for on_finding, steps in (("warn", {6}), ("stop", {1, 2, 3, 4, 5})):
        torch.manual_seed(0)
        with gradviz.record(tmp_path / f"{on_finding}.gradviz"), pytest.warns(UserWarning, match="detached-path"):
            assert fit(Net(True), tmp_path, lambda how=on_finding: callback(on_finding=how)) in steps


@pytest.mark.parametrize(("fit", "callback", "marks"), FITS, ids=["trainer", "lightning", "accelerate"])
@pytest.mark.filterwarnings("ignore")
def test_without_a_recording_a_callback_does_nothing(
    fit: Callable[..., int], callback: Callable[..., Any], marks: list[str], tmp_path: Path
) -> None:
    assert fit(Net(True), tmp_path, lambda: callback(on_finding="stop")) == 6


def test_another_word_for_what_a_finding_does_is_refused() -> None:
    pytest.importorskip("lightning", reason=HOW)
    with pytest.raises(ValueError, match="on_finding is warn or stop, not 'halt'"):
        for_lightning(on_finding="halt")


def test_a_library_that_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(GradvizError, match=r"needs lightning, which is not installed: pip install lightning$"):
        for_lightning()


def test_a_check_that_fails_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(on_finding="stop")

    def fails(*_: Any) -> Any:
        raise LookupError("a fault")

    monkeypatch.setattr("gradviz.callbacks.check", fails)
    with gradviz.record(tmp_path / "run.gradviz"):
        torch.ones(2, requires_grad=True).sum().backward()
        with pytest.warns(UserWarning, match="this step was not checked, by a fault .* LookupError: a fault"):
            assert not marks.stepped()
