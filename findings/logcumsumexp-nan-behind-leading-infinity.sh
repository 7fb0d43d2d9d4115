#!/usr/bin/env bash
# In log space, −∞ stands for a probability of 0, as before the first allowed state. logcumsumexp of PyTorch 2.13.0 computes right
# with it, and its gradient is NaN at each −∞ that a list begins with, although only later sums are used. The same sums, each by
# logsumexp, have the gradient 0 there; so has logcumsumexp with −10³⁰ for −∞, or with the −∞ behind a finite element.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch

print("torch", torch.__version__.split("+")[0])


def gradient(function, *elements):
    """The gradient of the sum of the last two results."""
    x = torch.tensor(elements, requires_grad=True)
    function(x)[-2:].sum().backward()
    return [round(slope, 4) for slope in x.grad.tolist()]


def each(x):
    return torch.stack([x[:end].logsumexp(0) for end in (3, 4)])


def cumulated(x):
    return torch.logcumsumexp(x, 0)


nothing = -math.inf
given = gradient(cumulated, nothing, nothing, 0.0, 1.0)
print("logcumsumexp:             ", given)
print("logsumexp of each part:   ", gradient(each, nothing, nothing, 0.0, 1.0))
print("logcumsumexp, -1e30:      ", gradient(cumulated, -1e30, -1e30, 0.0, 1.0))
print("logcumsumexp, -inf second:", gradient(cumulated, 0.0, nothing, 0.0, 1.0))
assert math.isnan(given[0]) and math.isnan(given[1])
assert given[2:] == [1.2689, 0.7311]
assert gradient(each, nothing, nothing, 0.0, 1.0) == gradient(cumulated, -1e30, -1e30, 0.0, 1.0) == [0, 0, 1.2689, 0.7311]
assert gradient(cumulated, 0.0, nothing, 0.0, 1.0) == [0.7119, 0, 0.7119, 0.5761]
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
