#!/usr/bin/env bash
# ELU and CELU are x for positive x, so their derivative there is 1, and with alpha=1 it is 1 at 0 from both sides. tinygrad
# 0.14.0 computes exp(x) for positive x, too: from about x = 89 on, where it overflows, the gradient is NaN (infinity times 0).
# At x = 0 the gradient of ELU is 0, that of CELU 1. All values are right, so that only the weights tell.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import numpy as np
from tinygrad import Tensor

print("tinygrad", version("tinygrad"))
points = [-1.0, 0.0, 1.0, 88.0, 89.0, 100.0]
seen = {}
for name in ("elu", "celu"):
    x = Tensor(points)
    y = getattr(x, name)()
    gradient = y.sum().gradient(x)[0].numpy()
    seen[name] = gradient
    print(f"{name} at {points}: values {y.numpy().tolist()}, gradients {gradient.tolist()}")
assert (seen["elu"][1], seen["celu"][1]) == (0.0, 1.0)
for gradient in seen.values():
    assert gradient[2] == gradient[3] == 1.0
    assert np.isnan(gradient[4:]).all()
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile tinygrad==0.14.0 numpy==2.4.6
DEV=PYTHON "$folder/environment/bin/python" "$folder/program.py"
