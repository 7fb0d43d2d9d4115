"""PyTorch's databases of operators and of modules under the recorder: two samples of every entry that supports
autograd, or one where both make the same graph.

For each sample values and gradients are the same bits as without a recorder, the recorded nodes and edges are those of
`next_functions`, and the recorder has not given up."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import gradviz  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.sources.torch_recorder.shared import Source  # noqa: E402
from tests import torch_programs as programs  # noqa: E402
from tests.torch_samples import take_no_stacks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES = 2
LEAST = 0.995  # the share of samples that pass
# Entries that give other bits each time, without a recorder too.
UNSTABLE: dict[str, str] = {
    "empty_like": "its elements are whatever lies in memory",
    "new_empty": "its elements are whatever lies in memory",
    "new_empty_strided": "its elements are whatever lies in memory",
    "empty": "its elements are whatever lies in memory",
    "empty_permuted": "its elements are whatever lies in memory",
    "empty_strided": "its elements are whatever lies in memory",
}


def entries() -> list[Any]:
    """The entries that support autograd on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if op.supports_autograd and op.full_name not in UNSTABLE]


def samples_of(op: Any) -> list[Any]:
    """Two samples, in the first dtype of these that the entry has."""
    supported = op.supported_dtypes("cpu")
    for dtype in (torch.float64, torch.float32, torch.complex128):
        if dtype in supported:
            return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), SAMPLES))
    return []


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from tensors(part)


Outcome = tuple[list[bytes], list[bytes | None]]  # values and gradients


def copied(value: Any, leaves: list[torch.Tensor]) -> Any:
    """A copy of what a call is given; `leaves` gets the tensors in it that require grad."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        if value.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy
    if type(value) in (list, tuple):
        return type(value)(copied(part, leaves) for part in value)
    if type(value) is dict:
        return {key: copied(part, leaves) for key, part in value.items()}
    return value


def run(op: Any, sample: Any) -> Outcome:
    """What one call on copies of a sample's tensors gives."""
    torch.manual_seed(0)
    leaves: list[torch.Tensor] = []
    args = [copied(part, leaves) for part in (sample.input, *sample.args)]
    result = op.op(*args, **copied(sample.kwargs, leaves))
    return outcome(sample.output_process_fn_grad(result), leaves)


def run_module(entry: Any, sample: Any, training: bool) -> Outcome:
    """What a call of a new module on copies of a sample's tensors gives."""
    torch.manual_seed(0)
    module = entry.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    module.train(training)
    leaves: list[torch.Tensor] = []
    given = sample.forward_input
    result = module(*copied(tuple(given.args), leaves), **copied(given.kwargs, leaves))
    values, gradients = outcome(result, [*leaves, *module.parameters()])
    return [*values, *map(programs.bytes_of, module.buffers())], gradients


def outcome(result: Any, leaves: list[torch.Tensor]) -> Outcome:
    """The values of a result, and the gradients that its backward pass gives."""
    differentiable = [out for out in tensors(result) if out.requires_grad]
    if differentiable:
        sums = [(out.abs() if out.is_complex() else out).sum() for out in differentiable]
        torch.stack([one.to(torch.float64).reshape(()) for one in sums]).sum().backward()
    values = [programs.bytes_of(out) for out in tensors(result)]
    return values, [None if leaf.grad is None else programs.bytes_of(leaf.grad) for leaf in leaves]


def fault_of(run: Callable[[], Outcome], file: Path, graphs: list[Any]) -> str:
    """What is wrong with the recording of a call; empty where nothing is, or where the call makes the very graph of one
    that was recorded. `graphs` has those of an entry."""
    with programs.passes_walked() as walked:
        plain = run()
    graph = [one.structure for one in walked]
    if graph in graphs:
        return ""
    graphs.append(graph)
    with programs.passes_walked() as walked, gradviz.record(file):
        recorded = run()
    if recorded != plain:
        return "" if run() != plain else "other values"
    with gradviz.open(file) as trace:
        query = Query(trace)
        if len(trace.passes) != len(walked):
            return f"{len(trace.passes)} passes of {len(walked)}"
        for number, one in enumerate(walked, 1):
            roots = [root.node for root in query.passes.began(number).roots]
            found = programs.recorded_walk(query, roots)
            if found != one.structure:
                return f"recorded {found}, PyTorch has {one.structure}"
    return ""


def test_the_database_of_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take_no_stacks()
    given_up: list[Exception] = []
    monkeypatch.setattr(Source, "gave_up", lambda self, error: given_up.append(error))
    faults: dict[str, str] = {}
    count = 0
    passed: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in entries():
            graphs: list[Any] = []
            for position, sample in enumerate(samples_of(op)):
                name = f"{op.full_name}, sample {position}"
                given_up.clear()
                count += 1
                try:
                    fault = fault_of(partial(run, op, sample), tmp_path / "run.gradviz", graphs)
                except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError) as error:
                    fault = repr(error)
                if fault or given_up:
                    faults[name] = repr(given_up[0]) if given_up else fault
            if not any(name.startswith(f"{op.full_name}, ") for name in faults):
                passed.add(op.full_name)
    with capsys.disabled():
        print(f"\nPyTorch's database: {len(passed)} entries pass, {count - len(faults)} of {count} samples")
        for name, reason in (UNSTABLE | faults).items():
            print(f"  not passed or not run: {name}: {reason}")
    assert count > 900
    assert len(faults) <= (1 - LEAST) * count, faults


# Their samples have random numbers in float64 beside an input in float32, which PyTorch refuses.
UNFIT = ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d")


def samples_of_modules() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Two samples of every module, in training and in evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    for entry in module_db:
        for training in (True, False) if entry.name not in UNFIT else ():
            made = entry.module_inputs_func(
                entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for position, sample in enumerate(itertools.islice(made, SAMPLES)):
                name = f"{entry.name}, sample {position}, {'training' if training else 'evaluation'}"
                yield name, partial(run_module, entry, sample, training)


def test_the_database_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up: list[Exception] = []
    monkeypatch.setattr(Source, "gave_up", lambda self, error: given_up.append(error))
    faults = {}
    graphs_of: dict[str, list[Any]] = {}
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in samples_of_modules():
            count += 1
            graphs = graphs_of.setdefault(name.partition(",")[0], [])
            fault = fault_of(call, tmp_path / "run.gradviz", graphs)
            if fault:
                faults[name] = fault
    with capsys.disabled():
        print(f"\nPyTorch's modules: {count - len(faults)} of {count} samples; not run: {', '.join(UNFIT)}")
    assert count > 350
    assert not faults
    assert not given_up
