"""A tensor from outside of the program's lines has the name that the program's call gives it."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import gradviz.engine as torch
from gradviz.events.kinds import OpRan
from gradviz.query import Query
from gradviz.query.functions_of_source import tree_of
from gradviz.sources.record import record
from gradviz.tracefile import open_trace

PROGRAM = """\
from gradviz.engine import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.memory = [memory]

    def forward(self, x):
        {block}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        {net}

def run(module, x):
    return module(x)

def loss_of(points, model):
    return model(points).sum()

model = Net()
{call}
"""
LAYER = ("linear", "addmm")
CALL = "loss_of(data['points'], model).backward()"
LOOP = "for block in self.blocks: x = block(x)\n        return x"


def name_of_what_the_first_layer_reads(
    folder: Path, call: str = CALL, block: str = "return self.net(x)", net: str = LOOP
) -> str:
    """The label of a tensor that was made before the recording."""
    path, source = folder / "p.gradviz", folder / "p.py"
    source.write_text(PROGRAM.format(call=call, block=block, net=net))
    data, memory = {"points": torch.randn(2, 3)}, torch.randn(2, 3)
    with record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"data": data, "memory": memory})
    with open_trace(path) as trace:
        first = next(event for event in trace if isinstance(event, OpRan) and event.op in LAYER)
        [read] = [tensor for tensor in first.inputs if trace.shape(tensor) == ((2, 3), "float32")]
        return Query(trace).labels.of(read)


def test_the_input_of_a_network_is_called_as_the_program_passes_it(tmp_path: Path) -> None:
    assert name_of_what_the_first_layer_reads(tmp_path) == "data['points']"


def test_a_list_of_layers_hands_the_input_on(tmp_path: Path) -> None:
    assert name_of_what_the_first_layer_reads(tmp_path, "inputs = data['points']; model(inputs).sum()") == "inputs"


def test_a_keyword_is_followed(tmp_path: Path) -> None:
    call = "inputs = data['points']; loss_of(model=model, points=inputs)"
    assert name_of_what_the_first_layer_reads(tmp_path, call) == "inputs"


def test_what_a_module_keeps_is_not_called_as_its_argument(tmp_path: Path) -> None:
    block = "x = self.memory[0]\n        return self.net(x)"
    assert name_of_what_the_first_layer_reads(tmp_path, block=block) == "x"


def test_a_function_that_calls_a_module_in_its_own_way_is_not_its_call(tmp_path: Path) -> None:
    call = "inputs = data['points']; run(model, inputs).sum()"
    assert name_of_what_the_first_layer_reads(tmp_path, call) == "inputs"
    wrapped = "return run(self.blocks[0], x)"
    assert name_of_what_the_first_layer_reads(tmp_path, call, net=wrapped) == "inputs"


def test_arguments_that_are_spread_are_not_followed(tmp_path: Path) -> None:
    call = "both = [data['points'], model]; loss_of(*both)"
    assert name_of_what_the_first_layer_reads(tmp_path, call) == "points"


def test_a_program_is_parsed_without_the_warnings_that_it_has_shown_itself() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert tree_of('pattern = "\\d"') is not None
        assert ast.parse('pattern = "\\d"') is not None  # Python warns of the escape
    assert len(shown) == 1
