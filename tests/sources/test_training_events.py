"""The events of training that rules stand on, from both engines: what an optimizer holds, clipping, graphs that are
kept, `.grad` of a non-leaf."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradviz.events.kinds import GradRead, GradsClipped, GraphsAlive, NumberRead, OptimizerHolds, RequiresGradChanged
from gradviz.events.settings_text import SettingsText
from gradviz.query.query import Query
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]

PROGRAM = """\
import torch
model = torch.nn.Linear(2, 1)
model.bias.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(4):
    optimizer.zero_grad()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    out = model(torch.ones(3, 2))
    loss = out.pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    out.grad, model.weight.grad
    optimizer.step()
    kept.append(loss)
new = torch.nn.Parameter(torch.ones(1))
optimizer.add_param_group({"params": [new]})
optimizer.param_groups[1]["params"] = [torch.nn.Parameter(torch.ones(1))]
optimizer.step()
"""


@pytest.fixture(params=ENGINES)
def events(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    script, file = tmp_path / "program.py", tmp_path / "run.gradviz"
    script.write_text(PROGRAM)
    assert run(Target(str(script), False, []), file, engine=request.param).status == 0
    with open_trace(file) as trace:
        query = Query(trace)
        yield (
            lambda kind: [event for event in trace if isinstance(event, kind)],
            query.names.of,
            lambda event: trace.sites[event.site].place.line,
        )


def test_an_optimizer_tells_what_it_holds_when_it_is_made_and_when_that_changes(events: Any) -> None:
    of, name, line = events
    told = of(OptimizerHolds)
    assert [line(event) for event in told] == [4, 17, 19]
    assert [[name(tensor) for tensor in event.parameters][:3] for event in told] == [
        ["model.weight", "model.bias"],
        ["model.weight", "model.bias", "new"],
        ["model.weight", "model.bias", None],
    ]
    assert [[group.size for group in event.groups] for event in told] == [[2], [2, 1], [2, 1]]
    assert of(RequiresGradChanged)[0].index < told[0].index


def test_a_function_that_clips_tells_which_gradients_there_are(events: Any) -> None:
    of, name, line = events
    told = of(GradsClipped)
    assert [(event.how, line(event)) for event in told[:2]] == [("clip_grad_norm_", 8), ("clip_grad_value_", 12)]
    assert [[name(tensor) for tensor in event.tensors] for event in told[:2]] == [[], ["model.weight"]]


def test_graphs_that_are_kept_are_told_as_soon_as_there_are_three(events: Any) -> None:
    of, _, _ = events
    assert [[living.number for living in event.graphs] for event in of(GraphsAlive)] == [[1, 2, 3]]


def test_reading_the_gradient_of_a_non_leaf_is_told(events: Any) -> None:
    of, name, line = events
    assert [(name(event.tensor), line(event)) for event in of(GradRead)] == [("out", 13)] * 4


ONE_AT_A_TIME = """\
import gc, weakref, torch
gc.disable()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
alive = []
def train_step():
    loss = model(torch.ones(3, 2)).pow(2).mean()
    alive.append(weakref.ref(loss))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
for step in range(3):
    train_step()
gc.enable()
assert not any(loss() is not None for loss in alive)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_recording_keeps_no_graph_alive(engine: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(ONE_AT_A_TIME)
    assert run(Target(str(script), False, []), tmp_path / "run.gradviz", engine=engine).status == 0


def test_settings_that_are_equal_and_of_other_types_are_other_texts() -> None:
    text = SettingsText(repr)
    written = [text({"lr": rate}) for rate in (1, 1.0, True, 1, 0.5)]
    assert written == ['{"lr": 1}', '{"lr": 1.0}', '{"lr": true}', '{"lr": 1}', '{"lr": 0.5}']


def test_a_setting_that_changes_in_place_is_written_as_it_is_now() -> None:
    class Rate:
        value = 1

        def __repr__(self) -> str:
            return f"rate {self.value}"

    rate, text = Rate(), SettingsText(repr)
    assert text({"lr": rate}) == '{"lr": "rate 1"}'
    rate.value = 2
    assert text({"lr": rate}) == '{"lr": "rate 2"}'


READS = """\
import numpy as np
import torch
w = torch.ones(2, requires_grad=True)
data = torch.ones(2)
loss = (w * 3).sum()
loss.item(), data.sum().item()
float(loss), int(loss)
if loss > 1:
    w.tolist()
np.asarray(loss.detach())
with torch.no_grad():
    mean = (w * 2).mean()
f"{mean.item():.1f} {mean}"
loss.data.mul(2).numpy()
try:
    loss.numpy()
except RuntimeError:
    print(loss, len(w))
total = torch.zeros(())
total += loss.detach()
total.item()
torch.optim.LBFGS([w], lr=0.1).step(lambda: loss)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_reads_of_numbers_that_depend_on_a_leaf_are_told(engine: str, tmp_path: Path) -> None:
    script, file = tmp_path / "program.py", tmp_path / "run.gradviz"
    script.write_text(READS)
    assert run(Target(str(script), False, []), file, engine=engine).status == 0
    with open_trace(file) as trace:
        reads = [(trace.sites[event.site].place.line, event.how) for event in trace if isinstance(event, NumberRead)]
    assert reads == [
        (6, "item"), (7, "float"), (7, "int"), (8, "bool"), (9, "tolist"), (10, "numpy"), (13, "item"), (14, "numpy"),
        (21, "item"),
    ]  # fmt: skip
