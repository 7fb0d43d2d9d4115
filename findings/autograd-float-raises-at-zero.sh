#!/usr/bin/env bash
# The derivative of a square root at 0 is infinite. autograd 1.9.1 gives inf where the 0 is one of NumPy's, and raises
# ZeroDivisionError where it is a Python float, although the value is computed by NumPy in both cases: the derivative is
# written as x**-0.5, which Python computes itself. log and 1/x give infinities for both kinds of 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import autograd.numpy as np
from autograd import grad

print("autograd", version("autograd"))
seen = {}
for name, function in (("sqrt", np.sqrt), ("x**0.5", lambda x: x**0.5), ("log", np.log), ("1/x", lambda x: 1 / x)):
    for zero in (0.0, np.float64(0.0), np.array(0.0)):
        try:
            found = str(float(grad(function)(zero)))
        except ZeroDivisionError as error:
            found = type(error).__name__
        seen[name, type(zero).__name__] = found
        print(f"{name} at a 0 of type {type(zero).__name__}: {found}")
for name in ("sqrt", "x**0.5"):
    assert [seen[name, kind] for kind in ("float", "float64", "ndarray")] == ["ZeroDivisionError", "inf", "inf"]
assert {seen["log", kind] for kind in ("float", "float64", "ndarray")} == {"inf"}
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile autograd==1.9.1 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
