"""What a module is called: by the variable that holds it, or by its path in what the variable holds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import gradviz.engine as torch
from gradviz.events.holders import holder_of

Linear, Sequential = torch.nn.Linear, torch.nn.Sequential


class Autoencoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Sequential(Linear(3, 2), torch.nn.Tanh()), Linear(2, 3)


def held(program: str) -> list[str]:
    """What the modules are called that a program gives to `call`."""
    found: list[str] = []
    space: dict[str, Any] = {
        "__name__": "__main__", "_call": lambda module: found.append(holder_of(module, sys._getframe(1))),
        "_Linear": Linear, "_Sequential": Sequential, "_Autoencoder": Autoencoder, "_nn": torch.nn,
    }  # fmt: skip
    exec(program, space)
    return found


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("net = _Linear(1, 1)\n_call(net)", ["net"]),
        (
            "class Model:\n"
            "    def __init__(self): self.blocks = [_Linear(1, 1), _Linear(1, 1)]\n"
            "    def run(self):\n"
            "        for block in self.blocks: _call(block)\n"
            "Model().run()",
            ["blocks.0", "blocks.1"],
        ),
        (
            "layers = _nn.ModuleList([_Linear(1, 1), _Linear(1, 1)])\nfor layer in layers: _call(layer)",
            ["layers.0", "layers.1"],
        ),
        ("nets = [_Linear(1, 1), _Linear(1, 1)]\nfor net in nets: _call(net)", ["nets.0", "nets.1"]),
        ("heads = {'a': _Linear(1, 1)}\n_call(heads['a'])", ["heads.a"]),
        ("parts = _nn.ModuleDict({'a': _Linear(1, 1)})\n_call(parts['a'])", ["parts.a"]),
        ("ae = _Autoencoder()\n_call(ae.decoder)\n_call(ae.encoder)", ["ae.decoder", "ae.encoder"]),
        ("ae = _Autoencoder()\nencoder = ae.encoder\n_call(encoder)", ["encoder"]),
        ("both = (_Autoencoder(), 1)\n_call(both[0].encoder)", ["both.0.encoder"]),
        ("G, D = _Linear(1, 1), _Linear(1, 1)\nnets = [G, D]\nfor net in nets: _call(net)", ["G", "D"]),
        ("body = _Linear(1, 1)\nnet = _Sequential(body, _Linear(1, 1))\n_call(body)", ["body"]),
        ("_call(_Linear(1, 1))", [""]),
        ("a, b = _Linear(1, 1), _Linear(1, 1)\ndef run(net): _call(net)\nrun(a)\nrun(b)", ["a", "b"]),
        ("def run(net): _call(net)\ndef main():\n    model = _Linear(1, 1)\n    run(model)\nmain()", ["net"]),
        ("def forward(self, x): _call(x)\nforward(1, _Linear(1, 1))", ["x"]),
    ],
)
def test_a_module_is_called_by_what_holds_it(program: str, names: list[str]) -> None:
    assert held(program) == names


def test_what_is_no_module_is_not_looked_into() -> None:
    assert held(
        "class _Trap:\n    def __getattr__(self, name): raise KeyError(name)\ntrap = _Trap()\n_call(_Linear(1, 1))"
    ) == [""]
