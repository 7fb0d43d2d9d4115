#!/usr/bin/env bash
# gammainc(1, x) is 1 − exp(−x), the distribution function of an exponential variable; its slope at x = 0 is 1. PyTorch 2.13.0
# gives NaN there, for (a − 1) · log(x) is 0 · −inf. So does Gamma(1, rate).cdf, whereas Exponential(rate).cdf, the same
# distribution, gives the rate.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.distributions import Exponential, Gamma

print("torch", torch.__version__.split("+")[0])
one, rate = torch.tensor(1.0), torch.tensor(2.0)


def slope(function):
    x = torch.zeros((), requires_grad=True)
    function(x).backward()
    return x.grad


seen = {
    "gammainc(1, x)": slope(lambda x: torch.special.gammainc(one, x)),
    "Gamma(1, 2).cdf(x)": slope(Gamma(one, rate).cdf),
    "Exponential(2).cdf(x)": slope(Exponential(rate).cdf),
}
for name, value in seen.items():
    print(f"slope of {name} at 0: {value.item()}")
assert seen["gammainc(1, x)"].isnan()
assert seen["Gamma(1, 2).cdf(x)"].isnan()
assert seen["Exponential(2).cdf(x)"] == 2
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
