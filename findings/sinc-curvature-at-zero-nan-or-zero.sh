#!/usr/bin/env bash
# sinc(x) = sin(πx) / (πx) is smooth: at 0 it is 1, its slope 0, its curvature −π²/3. PyTorch 2.13.0 has a case of its own for 0 in the
# value and in the slope. The curvature there is NaN by a second backward(), and 0 by torch.func.hessian and by forward mode twice: the
# same point gives two wrong answers. A thousandth beside it each way gives −3.29.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch
from torch.func import hessian, jacfwd

print("torch", torch.__version__.split("+")[0])


def by_backward(x):
    """The second derivative by backward of backward."""
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.sinc(leaf), leaf, create_graph=True)
    return torch.autograd.grad(slope, leaf)[0].item()


zero, beside = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1e-3, dtype=torch.float64)
seen = {
    "backward twice": (by_backward(zero), by_backward(beside)),
    "hessian": (hessian(torch.sinc)(zero).item(), hessian(torch.sinc)(beside).item()),
    "forward twice": (jacfwd(jacfwd(torch.sinc))(zero).item(), jacfwd(jacfwd(torch.sinc))(beside).item()),
}
for way, (at_zero, near) in seen.items():
    print(f"{way}: {at_zero} at 0, {near:.5f} at 0.001; right is {-math.pi**2 / 3:.5f}")
assert math.isnan(seen["backward twice"][0])
assert seen["hessian"][0] == seen["forward twice"][0] == 0
assert all(abs(near + math.pi**2 / 3) < 1e-4 for _, near in seen.values())
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
