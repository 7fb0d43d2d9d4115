"""How the examples of the rules between ranks are cured."""

from __future__ import annotations

PRELUDE = """\
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
_AVERAGING = "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n        p.grad /= world\n"
# How the example of each rule is cured: what stands there, and what takes its place.
CURES = {
    "ranks-collectives": ("torch.ones(2 + rank)", "torch.ones(2)"),
    "ranks-steps": ("range(3 - rank)", "range(2)"),
    "ranks-start": ("torch.manual_seed(rank)\n", "torch.manual_seed(0)\n"),
    "ranks-unreduced": ("    optimizer.step()", f"{_AVERAGING}    optimizer.step()"),
    "ranks-apart": ("    dist.all_reduce(model.weight.grad)\n    model.weight.grad /= world\n", _AVERAGING),
    "ranks-sum": ("dist.all_reduce(p.grad)", "dist.all_reduce(p.grad)\n        p.grad /= dist.get_world_size()"),
    "ranks-clip": (
        "    norm = torch.stack([part.norm() for part in parts]).norm()\n",
        "    norm = torch.stack([part.norm() for part in parts]).norm() ** 2\n"
        "    dist.all_reduce(norm)\n    norm = norm.sqrt()\n",
    ),
    "ranks-early-clip": (
        "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- ranks-early-clip\n"
        "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n        p.grad /= world\n",
        f"{_AVERAGING}    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n",
    ),
    "ranks-arguments": ("nn.Dropout(0.1 + 0.4 * rank)", "nn.Dropout(0.1)"),
    "ranks-hooks": ("if rank == 1:", "if rank >= 0:"),
    "ranks-unused": ("Parallel(Net())", "Parallel(Net(), find_unused_parameters=True)"),
    "ranks-bias": ("linear(x, part, bias))  # <- ranks-bias", "linear(x, part)) + bias"),
    "ranks-loss": ("    loss = loss * (1 + rank)", "    loss = loss * 2"),
    "ranks-frozen": ("if rank == 1:", "if rank >= 0:"),
    "ranks-drift": ("torch.randn(1, 4))", "torch.ones(1, 4))"),
    "ranks-settings": ("lr=0.1 / (1 + rank)", "lr=0.1"),
    "ranks-mode": ("if rank == 0 and step == 1:\n        model.eval()", "model.train()"),
    "ranks-data": ("for step in range(3):", "torch.manual_seed(rank)\nfor step in range(3):"),
    "ranks-buffers": (
        "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    for buffer in model.buffers():\n        dist.broadcast(buffer, 0)\n",
    ),
    "ranks-dropout": ("for step in range(3):", "torch.manual_seed(rank)\nfor step in range(3):"),
}


def cured_example(name: str, text: str) -> str:
    """The example of a rule without its fault, and without the mark."""
    before, after = CURES[name]
    assert text.count(before) == 1, name
    return text.replace(before, after).replace(f"  # <- {name}", "")
