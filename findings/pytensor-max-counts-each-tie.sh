#!/usr/bin/env bash
# Where several elements are the largest, a library gives the gradient of max to one of them or shares it out, as PyTorch does: the
# parts sum to 1. PyTensor 3.0.7 gives each of them the whole, so n equal elements get n times what came. sort()[-1], the
# same number, gives 1 to one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import numpy as np
import pytensor
import pytensor.tensor as pt

print("pytensor", pytensor.__version__)
x = pt.dvector("x")
values = np.array([3.0, 3.0, 1.0, 3.0])
seen = {}
for name, largest in (("max", x.max()), ("min of −x", -(-x).min()), ("sort()[-1]", pt.sort(x)[-1])):
    value, gradient = pytensor.function([x], [largest, pytensor.grad(largest, x)], mode="FAST_COMPILE")(values)
    seen[name] = gradient.tolist()
    print(f"{name} of {values.tolist()}: {float(value)}, gradient {seen[name]}")
    assert value == 3
assert seen["max"] == seen["min of −x"] == [1.0, 1.0, 0.0, 1.0]
assert sum(seen["sort()[-1]"]) == 1
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile pytensor==3.0.7 numpy==2.4.6
PYTENSOR_FLAGS=cxx=,base_compiledir="$folder/compiled" "$folder/environment/bin/python" -W ignore "$folder/program.py"
