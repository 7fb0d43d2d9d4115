#!/usr/bin/env bash
# The logarithm of a quaternion is its vector part near the identity, so each derivative by it is 1. kornia 0.9.0 gives 0 for
# quaternion_exp_to_log at the identity itself, where its inverse, quaternion_log_to_exp, gives 1 and a finite difference 1. A
# rotation that starts as none gets no gradient through its logarithm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import torch
from kornia.geometry.conversions import quaternion_exp_to_log, quaternion_log_to_exp

print("kornia", version("kornia"), "torch", torch.__version__.split("+")[0])
identity = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
small = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
quaternion_log_to_exp(small)[0, 1].backward()
quaternion = identity.clone().requires_grad_()
quaternion_exp_to_log(quaternion)[0, 0].backward()
step = torch.tensor([[0.0, 1e-3, 0.0, 0.0]], dtype=torch.float64)
near = [torch.nn.functional.normalize(identity + sign * step, dim=1) for sign in (1, -1)]
difference = (quaternion_exp_to_log(near[0]) - quaternion_exp_to_log(near[1]))[0, 0].item() / 2e-3
print("quaternion_log_to_exp at 0:", small.grad[0].tolist())
print("quaternion_exp_to_log at the identity:", quaternion.grad[0].tolist(), f"by a finite difference {difference:.4f}")
assert small.grad[0].tolist() == [1.0, 0.0, 0.0]
assert quaternion.grad[0].tolist() == [0.0, 0.0, 0.0, 0.0]
assert abs(difference - 1) < 1e-3
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 kornia==0.9.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
