#!/usr/bin/env bash
# torch.linalg.cond is documented to be differentiable. In PyTorch 2.13.0 its backward() raises for p="fro", 1, -1, inf and -inf of
# every invertible matrix: it takes the absolute value of its own inverse in place. p=None, 2, -2 and "nuc" work, and so does
# the same number written as a product of two norms.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
matrix = torch.randn(3, 3, dtype=torch.float64)
refused = []
for p in (None, 2, -2, "nuc", "fro", 1, -1, torch.inf, -torch.inf):
    leaf = matrix.clone().requires_grad_()
    try:
        torch.linalg.cond(leaf, p).backward()
        print(f"p={p!r}: gradient of norm {leaf.grad.norm():.4f}")
    except RuntimeError as error:
        refused.append(p)
        print(f"p={p!r}: {str(error).split(':')[0]}")
assert refused == ["fro", 1, -1, torch.inf, -torch.inf]
by_hand = matrix.clone().requires_grad_()
product = torch.linalg.norm(by_hand) * torch.linalg.norm(torch.linalg.inv(by_hand))
assert torch.allclose(product, torch.linalg.cond(matrix, "fro"))
product.backward()
print(f"two norms written out: gradient of norm {by_hand.grad.norm():.4f}")
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
