#!/usr/bin/env bash
# At 0 PReLU has two slopes, 1 to the right and its weight to the left, and a library takes one of them. PyTorch 2.13.0 takes both:
# backward() takes the weight, forward mode 1. leaky_relu, which is the same function, takes the weight in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
import torch.nn.functional as F

print("torch", torch.__version__.split("+")[0])
weight, points = torch.tensor([0.25]), torch.tensor([-1.0, 0.0, 1.0])
seen = {}
for name, function in (("prelu", lambda x: F.prelu(x, weight)), ("leaky_relu", lambda x: F.leaky_relu(x, 0.25))):
    leaf = points.clone().requires_grad_()
    function(leaf).sum().backward()
    forward = torch.func.jvp(function, (points,), (torch.ones(3),))[1]
    seen[name] = leaf.grad.tolist(), forward.tolist()
    print(f"{name} at {points.tolist()}: backward {seen[name][0]}, forward mode {seen[name][1]}")
assert seen["prelu"] == ([0.25, 0.25, 1.0], [0.25, 1.0, 1.0])
assert seen["leaky_relu"] == ([0.25, 0.25, 1.0], [0.25, 0.25, 1.0])
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
