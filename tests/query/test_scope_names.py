"""Where an event happened is said once, in every view, however the network holds its modules, on either engine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.graph.build import build
from gradviz.graph.model import to_json
from gradviz.pictures.render import svg
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.chain_rule import why
from gradviz.words.sentences import sentence
from gradviz.words.stop import phase

TINY = """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 4)

    def forward(self, x):
        return self.qkv(x).softmax(-1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x):
        return x + self.attn(x)

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = COLLECTION([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

Tiny()(torch.ones(3, 4)).sum().backward()
"""
HOLDERS = ("nn.ModuleList", "list", "tuple")
TWICE = re.compile(r"(Tiny|blocks\.\d|attn|qkv)[./\w]*[./]\1\b")

holders = pytest.mark.parametrize("holder", HOLDERS)
engines = pytest.mark.parametrize(
    "engine", ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
)


@pytest.mark.slow
@engines
@holders
def test_each_view_says_a_scope_once(engine: str, holder: str, tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TINY.replace("COLLECTION", holder))
    run(Target(str(script), False, ()), tmp_path / "run.gradviz", engine=engine)
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        phases = {phase(Stop(words, k)) for k in range(trace.count)}
        graph = build(words.query, whole=True)
        picture = svg(graph)
        paths = {node["scope"] for node in to_json(graph)["nodes"]}
        stops = [Stop(words, k) for k in range(trace.count)]
        told = [line for stop in stops for line in (sentence(stop), *why(stop))]
    assert {f"forward in Tiny.blocks.{i}.attn" for i in (0, 1)} <= phases
    assert {f"Tiny/blocks.{i}/attn/qkv" for i in (0, 1)} <= paths
    texts = re.findall(r"<text[^>]*>([^<]*)", picture)
    assert [text for text in [*phases, *paths, *texts, *told] if TWICE.search(text)] == []


@pytest.mark.slow
@engines
@holders
def test_debug_says_a_scope_once(
    engine: str, holder: str, tmp_path: Path, gradviz: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TINY.replace("COLLECTION", holder))
    shown = gradviz("debug", "--engine", engine, "--break", "softmax", "--commands", "continue; quit", script).stderr
    assert "forward in Tiny.blocks.0.attn" in shown
    assert "blocks.0.blocks.0" not in shown


SHARED = """\
import torch
from torch import nn

class Holder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).tanh()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.Linear(2, 2)
        self.a, self.b = Holder(layer), Holder(layer)

    def forward(self, x):
        return self.b(self.a(x))

net = Net()
print([name for name, _ in net.named_modules()])
net(torch.ones(1, 2)).sum().backward()
"""


@engines
def test_a_layer_that_two_modules_hold_has_the_name_of_named_modules(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    run(Target(str(script), False, ()), tmp_path / "run.gradviz", engine=engine)
    assert capsys.readouterr().out == "['', 'a', 'a.layer', 'b']\n"
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        said = [phase(Stop(words, k)) for k in range(trace.count)]
        assert "forward in net.a.layer" in said
        assert "forward in net.b › net.a.layer" in said, "of the call through b, no path that is none"
        assert not any("net.b.net" in text for text in said)
        assert [f"net.a.layer.{name}" for name in ("weight", "bias")] == list(
            dict.fromkeys(trace.parameters[tensor] for tensor in sorted(trace.parameters))
        )


ADAPTED = """
import torch
from torch import nn

class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down = base, nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(2, 2)

    def forward(self, x):
        return sum(part(x) for part in (self.one,))

net = nn.Sequential(Block())
net(torch.ones(1, 2)).sum().backward()
net[0].one = Adapter(net[0].one)
net(torch.ones(1, 2)).sum().backward()
"""


def test_a_layer_that_is_put_in_later_has_its_path_below_the_module_that_calls_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "adapted.py"
    script.write_text(ADAPTED)
    run(Target(str(script), False, ()), tmp_path / "run.gradviz", engine="torch")
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert "net.0.one.down" in trace.parameters.values()
