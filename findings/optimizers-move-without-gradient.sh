#!/usr/bin/env bash
# A step on gradients that are all 0, the first one and without weight decay, leaves the weights where they are: so one thinks of
# a layer that is masked out. In pytorch_optimizer 4.1.0 it sets them to 0 with FTRL, adds a random velocity with Gravity,
# normalises them with Nero, and makes them smaller with Fromage and SRMM.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import torch
from pytorch_optimizer import load_optimizer

print("pytorch_optimizer", version("pytorch_optimizer"), "torch", torch.__version__.split("+")[0])
start = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
seen = {}
for name in ("adamp", "lion", "ftrl", "gravity", "nero", "fromage", "srmm"):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(start.clone())
    decay = {"weight_decay": 0.0} if name in ("adamp", "lion", "gravity") else {}
    optimizer = load_optimizer(name)([weight], lr=0.1, **decay)
    weight.grad = torch.zeros(2, 2)
    optimizer.step()
    seen[name] = weight.detach()
    print(f"{name}: {[round(one, 4) for one in seen[name].flatten().tolist()]}")
for name, after in seen.items():
    assert torch.equal(after, start) == (name in ("adamp", "lion")), name
assert torch.equal(seen["ftrl"], torch.zeros(2, 2))
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 pytorch_optimizer==4.1.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
