#!/usr/bin/env bash
# Inside torch.func.vmap a tensor denies its graph. In PyTorch 2.13.0 its requires_grad is False and that of what is computed
# from it, too, with grad_fn None, though the result behind vmap has a graph and the gradients are right. So a function
# that asks `x.requires_grad` to save the work of a graph gives a gradient when it is called for each row, and none, in
# silence, when vmap calls it; and hooks and retain_grad(), which work on each row, raise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])
rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
seen = []


def energy(x):
    square = x * x
    seen.append((x.requires_grad, square.requires_grad, square.grad_fn is not None))
    return square.sum()


def thrifty(x):
    weight = x if x.requires_grad else x.detach()  # nobody asks for a gradient
    return (weight * weight).sum()


each = torch.stack([energy(row) for row in rows])
(slope,) = torch.autograd.grad(each.sum(), rows)
mapped = torch.func.vmap(energy)(rows)
(slope_of_mapped,) = torch.autograd.grad(mapped.sum(), rows)
print("by rows:", seen[:2], "by vmap:", seen[2:])
print("gradient by rows:", slope.tolist(), "by vmap:", slope_of_mapped.tolist())
assert seen == [(True, True, True), (True, True, True), (False, False, False)]
assert torch.equal(slope, slope_of_mapped)
assert mapped.requires_grad

by_rows, by_vmap = torch.stack([thrifty(row) for row in rows]), torch.func.vmap(thrifty)(rows)
print("a function that asks first: requires_grad by rows:", by_rows.requires_grad, "by vmap:", by_vmap.requires_grad)
assert (by_rows.requires_grad, by_vmap.requires_grad) == (True, False)
assert torch.equal(by_rows, by_vmap)


def watched(x):
    square = x * x
    square.register_hook(lambda gradient: None)
    return square.sum()


watched(rows[0])
try:
    torch.func.vmap(watched)(rows)
except RuntimeError as error:
    print("register_hook under vmap:", error)
else:
    raise AssertionError("it takes a hook now")
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
