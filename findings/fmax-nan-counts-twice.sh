#!/usr/bin/env bash
# Where one of two inputs of fmax or fmin is NaN, the other input is the result. PyTorch 2.13.0 gives the gradient to that
# input alone. 2.14.1 gives it to both, to the NaN, too, so the gradients add up to twice what came. (2.15.0 is as 2.13.0.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch

version = torch.__version__.split("+")[0]
for function in (torch.fmax, torch.fmin):
    x = torch.tensor([float("nan"), 1.0], requires_grad=True)
    y = torch.tensor([1.0, float("nan")], requires_grad=True)
    function(x, y).sum().backward()
    seen = x.grad.tolist(), y.grad.tolist()
    print(f"{version}: {function.__name__} of [nan, 1] and [1, nan] gives the gradients {seen[0]} and {seen[1]}")
    assert seen == (([1.0, 1.0], [1.0, 1.0]) if sys.argv[1] == "both" else ([0.0, 1.0], [1.0, 0.0])), seen
PROGRAM
for version in "2.13.0 one" "2.14.1 both"; do
    read -r number expected <<< "$version"
    python3 -m venv "$folder/environment-$number"
    "$folder/environment-$number/bin/pip" install --quiet --no-compile "torch==$number"
    "$folder/environment-$number/bin/python" -W ignore "$folder/program.py" "$expected"
    rm -rf "$folder/environment-$number"
done
