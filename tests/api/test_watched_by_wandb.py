"""What `wandb.watch` shows of a program, beside what an export of its trace has: the table in docs/export.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.exporting import Exported, exported  # noqa: E402
from tests.api.test_export import DOCS, needed, records_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def train(of_wandb: Any, is_compiled: bool) -> None:
    """A program with two networks, a parameter in no module, and a layer that gets no gradient, which is watched."""
    first, second, lazy = (torch.nn.Sequential(torch.nn.Linear(3, 3)) for _ in range(3))
    scale = torch.ones(1, requires_grad=True)
    run = torch.compile(first, backend="aot_eager") if is_compiled else first
    for network in (run, second, lazy):
        of_wandb.watch(network, log_freq=1)
    for _ in range(2):
        out = run(torch.ones(2, 3)) * scale + second(torch.ones(2, 3))
        loss = (out + lazy(out).detach()).pow(2).mean()
        loss.backward()
        of_wandb.log({"loss": loss.item()})


def logged(folder: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool = False) -> tuple[set[str], Exported]:
    """The names of the gradients that W&B logged, and what gradviz exports."""
    needed("wandb")
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("excepthook", "exit"):  # W&B replaces them, and leaves its own there
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr("wandb.sdk.wandb_watch._global_watch_idx", 0)  # as in a process of its own
    run = wandb.init(dir=str(folder), settings=wandb.Settings(silent=True, console="off"))
    with gradviz.record(folder / "run.gradviz"):
        train(wandb, is_compiled)
    run.finish()
    wandb.teardown()
    names = set()
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    for data in records_of(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        keys = (item.key or ".".join(item.nested_key) for item in record.history.item)
        names |= {key.split("._type")[0].split(".packedBins")[0] for key in keys if key.startswith("gradients/")}
    return {name.removesuffix(".bins").removesuffix(".values") for name in names}, exported(
        gradviz.open(folder / "run.gradviz")
    )


def test_what_a_watched_program_shows_is_what_the_documentation_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, export = logged(tmp_path, monkeypatch)
    curves = {title for title, _, _ in export.curves}
    assert watched == {f"gradients/{name}" for name in ("0.weight", "0.bias", "graph_10.weight", "graph_10.bias")}
    assert {"gradient norm/first.0", "gradient norm/second.0", "gradient norm/scale"} <= curves
    (finding,) = [one for one in export.findings if one.rule == "detached-path"]
    assert finding.message.startswith("lazy.0.weight and lazy.0.bias never get a gradient")
    for shown in ("gradients/graph_10.weight", "gradient norm/second.0", "gradient norm/scale", "detached-path"):
        assert f"`{shown}`" in DOCS


def test_a_compiled_network_is_seen_by_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, export = logged(tmp_path, monkeypatch, is_compiled=True)
    assert "gradients/_orig_mod.0.weight" in watched
    assert {title for title, _, _ in export.curves} >= {"gradient norm/first.0", "gradient norm/second.0"}
    for shown in ("gradients/_orig_mod.0.weight", "gradient norm/first.0"):
        assert f"`{shown}`" in DOCS
