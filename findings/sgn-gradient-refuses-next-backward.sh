#!/usr/bin/env bash
# sgn and sign are the same function of real numbers, with the gradient 0. In PyTorch 2.13.0 sign leaves ordinary zeros in
# .grad. sgn leaves a tensor without memory: it prints as zeros, torch.zeros_like makes the same from it, but a second
# backward without zero_grad() between, clip_grad_norm_, .grad.zero_(), .tolist() and torch.save each raise an error of their
# own. Any other path to the same leaf, in the same backward, hides it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])


def leaf_behind(function):
    leaf = torch.tensor([0.5, -2.0], requires_grad=True)
    function(leaf).sum().backward()
    return leaf


uses = {
    "backward()": lambda leaf: (leaf * 2).sum().backward(),
    "clip_grad_norm_": lambda leaf: torch.nn.utils.clip_grad_norm_([leaf], 1.0),
    "grad.zero_()": lambda leaf: leaf.grad.zero_(),
    "grad.tolist()": lambda leaf: leaf.grad.tolist(),
}
for function in (torch.sign, torch.sgn):
    print(f"{function.__name__}: gradient {leaf_behind(function).grad}")
    assert torch.equal(leaf_behind(function).grad, torch.zeros(2))
    for name, use in uses.items():
        try:
            use(leaf_behind(function))
            error = None
        except RuntimeError as raised:
            error = str(raised).partition(". ")[0]
        print(f"    then {name}: {error or 'as ever'}")
        assert (error is not None) == (function is torch.sgn), error
mixed = leaf_behind(lambda leaf: torch.sgn(leaf) + 0 * leaf)
mixed.grad.zero_()
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
