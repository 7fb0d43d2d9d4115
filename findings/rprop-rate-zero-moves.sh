#!/usr/bin/env bash
# A group with the learning rate 0 stands still under SGD and Adam. Under Rprop of PyTorch 2.13.0 it moves: the rate is only the
# first size of a step, and sizes are kept within `step_sizes`, which begin at 1e-6. A rate of 0 that a schedule or a user
# sets behind the first step changes nothing at all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])


def moved(kind, rates):
    """How far a weight moves in each step, with the gradient 1 and these rates."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = kind([weight], lr=rates[0])
    far = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        before = weight.item()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        far.append(abs(weight.item() - before))
    return far


for rates in ((0.0, 0.0, 0.0), (0.1, 0.0, 0.0)):
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Rprop):
        far = moved(kind, rates)
        print(f"{kind.__name__}, rates {rates}: moves {[f'{one:.3g}' for one in far]}")
        assert all(one > 0 for one in far[1:]) == (kind is torch.optim.Rprop), far
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
