"""The value that a view shows at a place is the value that the program had at that event.

Programs drawn at random run statement by statement, and the test itself looks at each tensor after each of them: what
pictures, pages and the stepper show is compared with that.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradviz.engine
from gradviz.graph.build import build
from gradviz.graph.model import LEAF, TENSOR, Graph
from gradviz.page.views import Shared, view
from gradviz.pictures.layout import dot_of
from gradviz.pictures.scene import scene_of
from gradviz.query import Query
from gradviz.sources.record import record
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.tracefile import Snapshot, Trace, open_trace
from gradviz.words import Words
from gradviz.words.numbers import SHOWN, nested
from tests.random_programs import SHAPES, drawn

# What programs do with gradients between their other lines; {a} is a leaf, {n} the last tensor that was computed.
WITH_GRADIENTS = """
    ({n} * {n}).sum().backward(retain_graph=True)
    ({n} * {n}).sum().backward(retain_graph=True)
    {a}.sum().backward()
    {a}.sum().backward()
    ({a} * {a}).sum().backward(create_graph=True)
    {a}.grad.zero_()
    {a}.grad.mul_(0.5)
    {a}.grad = None
    {a}.grad = t.ones_like({a})
    with t.no_grad(): {a}.sub_(0.1 * {a}.grad)
    {a}.data.mul_(2)
    {n}.retain_grad()
    g = {a}.grad * 2
""".strip().splitlines()
ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.torch)]


class Seen(NamedTuple):
    """A tensor after a statement, as the program has it: the array is the test's own copy."""

    version: int
    array: np.ndarray
    grad: int  # the number of its `.grad`; 0 if there is none
    is_after: int  # the event of the recording that was the last then
    is_part: bool = False  # whether it is a part of memory of which the program has no other tensor to tell it


def statements(seed: int) -> list[str]:
    choose = random.Random(seed)
    lines, last = [], "v0"
    for line in drawn(seed):
        lines.append(line)
        last = f"w{sum(' = ' in earlier for earlier in lines) - 1}" if " = " in line else last
        for _ in range(choose.randint(0, 3)):
            text = choose.choice(WITH_GRADIENTS).strip()
            lines.append(text.format(a=choose.choice(["v0", "v1", "v3"]), n=f"w{len(drawn(seed)) - 1}"))
    return lines


def recorded(t: Any, path: Path, lines: list[str]) -> dict[int, list[Seen]]:
    """Record a program, and return each of its tensors after each statement, by the number of the tensor."""
    seen: dict[int, list[Seen]] = defaultdict(list)
    numbers = np.random.default_rng(0)
    with record(path) as recording:
        known: dict[str, Any] = {"t": t, "seen": [], "drawn": [numbers.normal(size=shape) for shape in SHAPES]}
        for i in range(len(SHAPES)):
            exec(f"v{i} = t.tensor(drawn[{i}], dtype=t.float64, requires_grad={i != 2})", known)
        for line in ["", *lines]:
            with suppress(RuntimeError, IndexError, ValueError, TypeError, AttributeError, NameError):
                exec(line, known)
            assert recording.recorder is not None
            event = recording.recorder.count - 1
            with recording.quiet():
                for number, tensor, grad in tensors_of(recording, known):
                    array = np.array(tensor.detach().tolist())
                    seen[number].append(Seen(tensor._version, array, grad, event, is_part(tensor)))
    return seen


def tensors_of(recording: record, known: dict[str, Any]) -> Iterator[tuple[int, Any, int]]:
    """The tensors of a program with their numbers, and the number of the `.grad` of each."""
    found = recording.up_to_here(known["v0"])
    assert found is not None
    for tensor in [one for one in known.values() if hasattr(one, "_version")]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a non-leaf
            grad = tensor.grad
        yield found.of(tensor), tensor, 0 if grad is None else found.of(grad)
        if grad is not None:
            yield found.of(grad), grad, 0


def is_part(tensor: Any) -> bool:
    """Whether a tensor of PyTorch has a part of its memory and is no view: so are the gradients of what was joined by
    `cat`, and a write to one of them counts as a version of all."""
    return (
        hasattr(tensor, "untyped_storage")
        and tensor._base is None
        and tensor.untyped_storage().nbytes() > tensor.nbytes
    )


def same(snapshot: Snapshot | None, array: np.ndarray) -> bool:
    shown = None if snapshot is None else snapshot.array
    return shown is not None and np.array_equal(shown, array, equal_nan=True)


def is_true(snapshot: Snapshot | None, array: np.ndarray) -> bool:
    """Whether a value is the one, or is not known: of a part of a tensor whose `.data` was written to."""
    unknown = snapshot is not None and snapshot.array is None and snapshot.base > 0
    return unknown or same(snapshot, array)


def check_moments(query: Query, seen: dict[int, list[Seen]]) -> int:
    """Check what the stepper and the panel of the page show after each statement."""
    checked = 0
    for number, moments in seen.items():
        for moment in moments:
            now = query.at(moment.is_after).state(number)
            assert is_true(now.value, moment.array), (number, moment, now.value)
            first = query.at(moments[0].is_after).state(number).version
            # a write to `w.detach()` counts as a version of w, too, and of the parts of both
            is_counted = query.memory.shared.isdisjoint((number, query.memory.parts.get(number, number)))
            if is_counted and not moments[0].is_part:
                assert now.version - first == moment.version - moments[0].version, (number, moment, now)
            if moment.grad:
                grad = next(one for one in seen[moment.grad] if one.is_after == moment.is_after)
                assert same(now.grad_value, grad.array), (number, moment, now.grad_value)
            checked += 1
    return checked


def check_boxes(graph: Graph, seen: dict[int, list[Seen]]) -> int:
    """Check what the boxes of a picture show: the value of the version that a box names."""
    checked = 0
    for node in graph.nodes.values():
        if node.kind not in (LEAF, TENSOR) or node.value is None or node.number not in seen:
            continue
        assert node.value.version >= node.version
        if node.version:
            assert node.value.version == node.version, (node.id, node.value)
        arrays = [one.array for one in seen[node.number] if one.version == node.value.version]
        if arrays:
            assert any(same(node.value, array) for array in arrays), (node.id, node.value, arrays)
            checked += 1
        after = [one for one in seen[node.number] if one.is_after >= graph.at]
        if after and not node.overwritten and after[0].grad:
            grads = [one for one in seen[after[0].grad] if one.is_after == after[0].is_after]
            assert same(node.grad, grads[0].array), (node.id, node.grad, grads)
    return checked


def check_page(trace: Trace, query: Query, seen: dict[int, list[Seen]]) -> int:
    """Check the values that a page shows after each statement, as text."""
    checked = 0
    graph = build(query, whole=True)
    tensors = view(graph, None, Shared(Words(trace)))["tensors"]
    for number in tensors.keys() & seen.keys():
        for moment in seen[number]:
            entries = [entry for entry in tensors[number]["v"] if entry[0] <= moment.is_after]
            if entries and moment.array.size <= SHOWN:
                text = entries[-1][1]
                is_unknown = not re.search(r"[0-9]\.|[0-9]\]", text)
                assert is_unknown or text == nested(moment.array), (number, moment, entries)
                checked += not is_unknown
    return checked


NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf)|nan")


def prints(text: str, array: np.ndarray) -> bool | None:
    """Whether a text has the elements of an array, as far as it has digits; None where it has not all of them."""
    if "…" in text or "rms" in text or (array.ndim and "[" not in text):
        return None
    numbers = [float(one) for one in NUMBER.findall(text)]
    flat = array.reshape(-1).astype(float)
    return len(numbers) == len(flat) and np.allclose(numbers, flat, rtol=6e-3, atol=1e-12, equal_nan=True)


def check_grad(told: str, moment: Seen, seen: dict[int, list[Seen]]) -> None:
    """Check the printed `.grad` of a tensor."""
    grads = [one.array for one in seen[moment.grad] if one.is_after == moment.is_after] if moment.grad else []
    assert (told.strip() == "None") is not bool(grads), (told, moment)
    assert all(prints(told, array) is not False for array in grads), (told, grads)


def check_dot(graph: Graph, seen: dict[int, list[Seen]]) -> int:
    """Check the numbers in the text of a picture: the value of a box, and its `.grad`."""
    checked, text = 0, dot_of(scene_of(graph))
    for node in graph.nodes.values():
        label = re.search(rf'\t{node.id} \[label="(.*?)" class=', text)
        if node.kind not in (LEAF, TENSOR) or node.value is None or node.number not in seen or label is None:
            continue
        arrays = [one.array for one in seen[node.number] if one.version == node.value.version]
        after = [one for one in seen[node.number] if one.is_after >= graph.at]
        for line in map(str.strip, label[1].split("\\n")):
            told = line.partition("= ")[2]
            if line.startswith(("[", "scalar")) and told and arrays:
                verdicts = [prints(told, array) for array in arrays]
                assert None in verdicts or any(verdicts), (node.id, line, arrays)
                checked += None not in verdicts
            elif line.startswith(".grad = ") and after and not node.overwritten:
                grads = (
                    [one for one in seen[after[0].grad] if one.is_after == after[0].is_after] if after[0].grad else []
                )
                assert (told == "None") is not bool(grads), (node.id, line)
                assert all(prints(told, one.array) is not False for one in grads), (node.id, line, grads)
    return checked


def check_stepper(trace: Trace, seen: dict[int, list[Seen]]) -> int:
    """Check the numbers that the stepper prints of the leaves after each statement."""
    checked, words = 0, Words(trace)
    leaves_at = cache(lambda event: describe(Session(trace, event).stop).partition("  leaves\n")[2])  # of all tensors
    for number, moments in seen.items():
        for moment in moments[-3:]:
            printed = leaves_at(moment.is_after)
            name = re.escape(words.called(number))
            row = re.findall(rf"^[ ●]*{name}  +(?:leaf|no grad)  +(.*?)(?:  +\.grad (.*))?$", printed, re.MULTILINE)
            if len(row) != 1 or row[0][1].endswith("…"):  # the line is cut, perhaps before an arrow
                continue
            value, gradient = row[0]
            assert prints(value, moment.array) is not False, (name, printed, moment)
            if gradient:
                check_grad(gradient.partition(" → ")[2] or gradient, moment, seen)
            checked += 1
    return checked


def check(name: str, lines: list[str], path: Path) -> None:
    """Check all views of a program."""
    t = pytest.importorskip("torch") if name == "torch" else gradviz.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = recorded(t, path, lines)
    seen.pop(0, None)  # what is not in the recording
    with open_trace(path) as trace:
        query = Query(trace)
        assert check_moments(query, seen) > 4
        assert check_boxes(build(query, whole=True), seen) > 3
        for run in trace.passes:
            check_boxes(build(query, run.number), seen)
        assert check_page(trace, query, seen) > 4
        assert check_dot(build(query, whole=True), seen) + check_stepper(trace, seen) > 4


@pytest.mark.parametrize("name", ENGINES)
@given(seed=st.integers(0, 100_000))
def test_each_view_shows_the_values_of_its_time(name: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(name, statements(seed), tmp_path_factory.mktemp("law") / "run.gradviz")


@pytest.mark.default
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "text",
    [
        "v0.sum().backward(); v0.grad.zero_(); v0.sum().backward(); w0 = v0 * 2",
        "v3.grad = t.ones_like(v3); (v3 * v3).sum().backward(create_graph=True); v0.sum().backward(); w0 = v0 * 2",
        "v0.sum().backward(); g = v0.grad * 2; (v3 * v3).sum().backward(create_graph=True); g = v3.grad * 2; w = g * 2",
        "v0.sum().backward(); v0.sum().backward(); v0.grad.mul_(3); v0.sum().backward(); w0 = v0 * 2",
        "w0 = v1[..., :1]; v1.data.mul_(2); w1 = w0.view(-1); v1.data.mul_(2)",
        "w0 = v1.diagonal(); w1 = w0.detach(); v1.data.mul_(2); w2 = v0 * 2",
        "w0 = v0[:2]; w1 = w0.t(); v0.data.mul_(2); w2 = v0 * 2",
        "w0 = v0.sigmoid(); w0.retain_grad(); w0.sum().backward(retain_graph=True); w0.sum().backward(); w1 = v3 * 2",
        "w0 = v0[:2]; w1 = w0.t(); w0.mul_(2); w2 = w1 * 2; w1.mul_(3); w3 = w0 * 2",
        "w0 = v0 * 2; w1 = w0[:1]; w2 = w0[1:]; w1.mul_(2); w0.add_(1); w0.data.mul_(3)",
        "w1 = v0[:1]; v0.data.mul_(3); w2 = v0 * 2",
    ],
)
def test_a_value_that_changes_is_that_of_its_version(name: str, text: str, tmp_path: Path) -> None:
    check(name, [line.strip() for line in text.split(";")], tmp_path / "run.gradviz")
