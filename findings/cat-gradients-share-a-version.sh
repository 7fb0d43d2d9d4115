#!/usr/bin/env bash
# The gradients of tensors that torch.cat has joined are parts of one memory with one version counter, although none of them
# is a view and each is the .grad of a leaf of its own. In PyTorch 2.13.0 clearing one of them in place counts as a change of
# the others: a graph that has saved the gradient of `a` refuses its backward because the gradient of `b` was set to zero, and
# names no line that touches `a`. Where the sum is taken of the parts one by one, it runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])


def penalty_of_a(join):
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    join(a, b).backward()
    scale = torch.ones(2, requires_grad=True)
    penalty = (a.grad * scale).sum()  # saves a.grad
    before, kept = a.grad._version, a.grad.clone()
    b.grad.zero_()
    assert torch.equal(a.grad, kept) and not a.grad._is_view()
    moved = a.grad._version - before
    try:
        penalty.backward()
    except RuntimeError as error:
        return moved, str(error)[:95]
    return moved, scale.grad.tolist()


joined = penalty_of_a(lambda a, b: torch.cat([a, b]).square().sum())
apart = penalty_of_a(lambda a, b: a.square().sum() + b.square().sum())
print("joined by cat:", joined)
print("apart:", apart)
assert joined[0] == 1 and "modified by an inplace operation" in joined[1]
assert apart == (0, [2.0, 2.0])
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
