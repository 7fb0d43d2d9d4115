#!/usr/bin/env bash
# A function of TorchScript is recorded at its first call and optimized for the next. From then on its backward has formulas of
# its own, which differ from those of the operations at the points where a derivative is a choice. In PyTorch 2.13.0, of one
# function with one input, from the second call on: sqrt(relu(x)) gives NaN at x = 0 and below where it gave 0; std of equal
# numbers NaN where it gave 0; hardtanh passes the gradient at both bounds, and threshold at its threshold, where they gave 0;
# two equal numbers under max get no gradient at all where they shared it. The values stay the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.nn import functional as F

print("torch", torch.__version__.split("+")[0])


@torch.jit.script
def root(x):
    return torch.sqrt(torch.relu(x)) * 2


@torch.jit.script
def spread(x):
    return torch.std(x * 0.0) * 2


@torch.jit.script
def bounded(x):
    return F.hardtanh(x) * 2


@torch.jit.script
def kept(x):
    return F.threshold(x, 1.0, 0.0) * 2


@torch.jit.script
def larger(x):
    return torch.max(x, 1.0 * x) * 2


def called(function):
    x = torch.tensor([-1.0, 0.0, 1.0, 4.0], requires_grad=True)
    y = function(x)
    y.sum().backward()
    return y.tolist(), (x.grad + 0.0).tolist()  # no negative zeros


expected = {
    root: ("[0.0, 0.0, 1.0, 0.5]", "[nan, nan, 1.0, 0.5]"),
    spread: ("[0.0, 0.0, 0.0, 0.0]", "[nan, nan, nan, nan]"),
    bounded: ("[0.0, 2.0, 0.0, 0.0]", "[2.0, 2.0, 2.0, 0.0]"),
    kept: ("[0.0, 0.0, 0.0, 2.0]", "[0.0, 0.0, 2.0, 2.0]"),
    larger: ("[2.0, 2.0, 2.0, 2.0]", "[0.0, 0.0, 0.0, 0.0]"),
}
for function, gradients in expected.items():
    calls = [called(function) for _ in range(4)]
    print(f"{function.name}: gradient {calls[0][1]} at the first call, {calls[1][1]} at the second")
    assert all(values == calls[0][0] for values, _ in calls), calls
    assert str(calls[0][1]) == gradients[0], calls[0]
    assert {str(gradient) for _, gradient in calls[1:]} == {gradients[1]}, calls
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
