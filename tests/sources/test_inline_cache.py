"""Calls that are like the last one at their place are told as all others are.

A program makes each call three times at one place, and changes what it computes with. It is recorded with the cache and
without it; both files hold the same events."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.sources.torch_recorder.saved_again import of_pytorch  # noqa: E402
from tests.warm import python  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = """
import contextlib, sys, torch
from torch import nn, overrides
from torch.nn import functional as F
import gradviz
from gradviz.sources.torch_recorder import linear
from gradviz.sources.torch_recorder.inline_cache import InlineCache

hits = 0
end = InlineCache.end

def counted(*arguments):
    global hits
    is_hit = end(*arguments)
    hits += is_hit
    return is_hit

InlineCache.end = counted
if sys.argv[2] == "without":
    InlineCache.begin = lambda *arguments: None
    linear._SAVED = type("Forgetful", (dict,), {"get": lambda *key: None})()

def twice(x):
    return x * 2

def each(things, call):
    for thing in things:
        call(thing)

torch.manual_seed(0)
w = torch.randn(3, 3, requires_grad=True)
x = torch.randn(3, 3)
layers = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.GELU(), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))
deep = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

def numbers(scale):
    (w * scale).sum().backward()

def products(other):
    y = w @ other
    (y.tanh() * y).sum().backward()

def views(shape):
    y = (w * 1).view(shape)
    (y.transpose(0, 1) + y.reshape(-1)[0]).sum().backward()

def dtypes(other):
    (w * other > 0.5).float().add(w).sum().backward()

def graded(mode):
    with mode():
        y = w * x
        z = y.exp() - w
    return z

def written(at):
    y = w * 1.5
    if at == 1:
        y.add_(1)
    y.sigmoid().sum().backward()

def packed(at):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t, at), lambda pair: pair[0])
    if at == 1:
        with hooks:
            y = w.exp() * w
    else:
        y = w.exp() * w
    y.sum().backward()

def transformed(at):
    f = lambda t: (t * w).sin().sum()
    y = torch.func.grad(f)(x) if at == 1 else f(x)
    y.sum().backward()

def dual(at):
    level = torch.autograd.forward_ad
    with level.dual_level():
        t = level.make_dual(x, x) if at == 1 else x
        (t * w).cos()

def joined(parts):
    (torch.cat(parts) if type(parts) is list else torch.softmax(parts, dim=0)).sum().backward()

def differentiated(create):
    y = (w ** 3 * 2.0).sum()
    (g,) = torch.autograd.grad(y, w, create_graph=create)
    if create:
        (g * g).sum().backward()

def hooked(at):
    y = w * 3
    if at == 1:
        y.register_hook(twice)
        y.retain_grad()
    (y + y).sum().backward()

def several(at):
    parts = torch.stack([w * 1, w.detach(), w * 2])
    if at == 1:
        parts = parts.detach()
    first, second, third = parts
    highest = parts.max(dim=1)
    left, right = torch.chunk(third, 2) if at == 2 else third.split(2)
    total = first.sum() + second.mean() + highest.values.sum() + left.sum() * right.sum()
    if total.requires_grad:
        total.backward()

def in_place(at):
    total = torch.zeros(3)
    share = total[:2] if at in (2, 3) else None
    target = share if at == 3 else total
    target.add_(1)
    target.mul_(target)
    target += 2.5
    with torch.no_grad():
        w.sub_(0.01 * w)
    if at == 1:
        total.requires_grad_().mul(2).add_(1).sum().backward()

def linear_in(at):
    given = x if at % 2 else x.reshape(1, 3, 3)
    if at > 3:
        given = given * w[0] if at < 6 else layers[0].weight[None]
    with torch.set_grad_enabled(at not in (2, 3)):
        y = layers[3](layers[0](given))
    if y.requires_grad:
        y.sum().backward()

def trained(at):
    layers.train(at != 1)
    layers(x).square().mean().backward()
    deep(x.reshape(1, 3, 3)[..., [0, 1, 2, 0]]).sum().backward()

def saving(pair):
    a, b = pair
    y = a * b
    z = y.sigmoid().addcmul(a, b).pow(2.0)
    if z.requires_grad:
        z.sum().backward()

def first_squared(b):
    return w.mul(b)

def product(b):
    return w.mul(b)

def packing(at):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t, at), lambda pair: pair[0])
    with hooks if at % 2 else contextlib.nullcontext():
        y = product(x)
    y.sum().backward()

class Copying(overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            args = [arg if arg.requires_grad else arg.clone() for arg in args]
        return func(*args, **(kwargs or {}))

def changed_below(at):
    ours = overrides._pop_mode()
    if at % 2:
        overrides._push_mode(Copying())
    overrides._push_mode(ours)
    y = product(x)
    ours = overrides._pop_mode()
    if at % 2:
        overrides._pop_mode()
    overrides._push_mode(ours)
    y.sum().backward()

def cast(at):
    low, other = w.bfloat16(), x if at % 2 else x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(at % 2)):
        y = torch.mm(low, other)
    y.sum().backward()

scale, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)

def normalised(at):
    given = w * 1 if at % 2 else x
    weight = layers[0].weight.detach() if at == 3 else layers[0].weight
    if at in (4, 5):
        given, weight = given.bfloat16(), weight.bfloat16()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with hooks if at in (6, 7) else contextlib.nullcontext():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=at in (2, 5)):
            y = F.linear(given, weight, bias.to(given.dtype))
            y = F.relu(F.layer_norm(y, (3,), None if at == 1 else scale.to(y.dtype), None))
            y = F.log_softmax(F.softmax(y, -1), -1)
    y.sum().backward()

with gradviz.record(sys.argv[1], values="full"):
    v = torch.randn(3, 3, requires_grad=True)
    each([(w, v), (w, x), (x, w), (w, w), (v, w), (x, x), (w, v), (x, v), (w, x), (w, w)] * 2, saving)
    each([w, v, x, w], first_squared)
    for call in (packing, changed_below, cast):
        each(range(6), call)
    each([2, 2, -0.0, 0.0, 0.0, 2.0, True, 1], numbers)
    each([w, x, x[0], x, x.clone().requires_grad_()], products)
    each([(3, 3), (9, 1), (3, 3), torch.Size([9, 1])], views)
    each([x, x.double(), 3, x], dtypes)
    each([torch.enable_grad, torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad], graded)
    for call in (written, packed, transformed, dual, hooked, several, in_place, trained):
        each(range(4), call)
    each([0, 1, 0, 2, 2, 3, 3, 1, 1, 4, 4, 6, 4, 6, 5, 5, 0], linear_in)
    each([w * 1, [w, x], w * 1, w * 2], joined)
    each([0, 0, 1, 1, 2, 0, 3, 3, 4, 5, 4, 5, 6, 0, 7, 1], normalised)
    each([False, True, False, True, True], differentiated)
print(hits)
"""


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, with what tensors were at them, but for times."""
    with gradviz.open(path) as trace:
        found = []
        for event in trace:
            fields = dataclasses.asdict(event) | {"kind": type(event).__name__, "time": None}
            made = getattr(event, "outputs", ())
            fields["states"] = [repr(trace.snapshot(tensor, event.index)) for tensor in made]
            found.append(fields)
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """How many calls the cache told of, and the events, with and without it."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "program.py").write_text(PROGRAM)
    found = {}
    for way in ("with", "without"):
        path = folder / f"{way}.gradviz"
        done = subprocess.run(
            [python(), str(folder / "program.py"), str(path), way], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        found[way] = json.loads(done.stdout), events_of(path)
    return found


@pytest.mark.slow
def test_what_the_cache_tells_is_what_the_long_way_tells(recorded: dict[str, Any]) -> None:
    (_, cached), (_, plain) = recorded["with"], recorded["without"]
    assert len(cached) == len(plain) > 1000
    for mine, theirs in zip(cached, plain, strict=True):
        assert mine == theirs


@pytest.mark.slow
def test_the_cache_is_used(recorded: dict[str, Any]) -> None:
    hits, events = recorded["with"]
    ops = sum(event["kind"] == "OpRan" for event in events)
    assert hits > ops / 4
    assert recorded["without"][0] == 0


def test_a_function_that_the_program_put_in_place_of_pytorchs_is_not_taken_for_it() -> None:
    replaced = functools.partial(torch.nn.functional.silu), lambda x: x.relu().double()
    assert of_pytorch((torch.nn.functional.relu, *replaced)) == {torch.nn.functional.relu}


_OPS = 100


def calls_in(step: Callable[[], None]) -> int:
    """How many functions of Python's are called in a step, on this thread."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def test_a_small_operation_with_its_backward_costs_few_calls(tmp_path: Path) -> None:
    w = torch.full((4,), 0.9, requires_grad=True)

    def step() -> None:
        h = w
        for _ in range(_OPS // 2):
            h = (h * w).tanh()
        h.sum().backward()

    plain = calls_in(step)
    with gradviz.record(tmp_path / "run.gradviz", values="none"):
        step()  # leaves the entries
        added = calls_in(step) - plain
    assert added / _OPS < 50  # 41 with PyTorch 2.13; 83 the long way


def test_a_scope_that_is_recorded_alone_has_all_nodes_of_its_calls(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)
    x = torch.randn(1, 2, 3, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz", scope="layer"):
        for _ in range(3):
            layer(x).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        made = [event.grad_fn for event in trace if type(event).__name__ == "NodeMade"]
    assert len(made) >= 9
    assert made == 3 * made[: len(made) // 3]
