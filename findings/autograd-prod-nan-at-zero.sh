#!/usr/bin/env bash
# The derivative of a product by one factor is the product of the others: of 0 · 2 · 3 it is 6 by the first. autograd 1.9.1
# divides the whole product by the factor instead, and gives NaN. The other elements are right, and a second factor of 0 makes
# two NaN, where all derivatives are 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import autograd.numpy as np
from autograd import grad

print("autograd", version("autograd"))
for factors, derivatives in (([1.0, 2.0, 3.0], [6, 3, 2]), ([0.0, 2.0, 3.0], [6, 0, 0]), ([0.0, 0.0, 3.0], [0, 0, 0])):
    gradient = grad(np.prod)(np.array(factors))
    by_hand = grad(lambda x: x[0] * x[1] * x[2])(np.array(factors))
    print(f"product of {factors}: prod gives {gradient.tolist()}, a product written out {by_hand.tolist()}")
    assert by_hand.tolist() == derivatives
    assert np.isnan(gradient).tolist() == [factor == 0 for factor in factors]
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile autograd==1.9.1 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
