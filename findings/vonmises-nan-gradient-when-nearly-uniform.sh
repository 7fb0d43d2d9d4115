#!/usr/bin/env bash
# A von Mises distribution with concentration 0 is uniform, and its log density has a finite gradient for every concentration
# above. In PyTorch 2.13.0 the gradient is right down to 6e-6 and NaN at 4e-6 and below, in float32: the Bessel function is
# computed by two formulas, and torch.where keeps the right value, but the formula that it leaves out overflows, and its
# backward multiplies an infinity by 0. The value is right throughout, and so is everything in float64, so that a test of the
# density finds nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch
from torch.distributions import VonMises

print("torch", torch.__version__.split("+")[0])


def gradient_of(concentration, dtype):
    concentration = torch.tensor(concentration, dtype=dtype, requires_grad=True)
    value = VonMises(torch.zeros((), dtype=dtype), concentration).log_prob(torch.ones((), dtype=dtype))
    value.backward()
    return value.item(), concentration.grad.item()


for concentration in (1e-3, 6e-6, 4e-6, 1e-7):
    value, gradient = gradient_of(concentration, torch.float32)
    value64, gradient64 = gradient_of(concentration, torch.float64)
    print(f"concentration {concentration}: log_prob {value:.4f}, gradient {gradient:.4f}; in float64 {gradient64:.4f}")
    assert abs(value - value64) < 1e-5 and abs(gradient64 - math.cos(1.0)) < 1e-3, (value64, gradient64)
    assert math.isnan(gradient) == (concentration < 5e-6), gradient
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
