#!/usr/bin/env bash
# The derivative of a determinant is the matrix of its cofactors, which is not 0 for a singular n×n matrix of rank n − 1.
# PyTorch 2.13.0 gives the gradient 0 at each matrix whose determinant comes out as 0: a loss that asks for a determinant
# other than 0 cannot leave it. A difference of 1e-6 at one element shows the slope.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])
for rows in ([[1.0, 2.0], [2.0, 4.0]], [[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]):
    matrix = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    torch.linalg.det(matrix).backward()
    moved = matrix.detach().clone()
    moved[-1, -1] += 1e-6
    slope = torch.linalg.det(moved).item() / 1e-6
    print(f"gradient of det at {rows}: {matrix.grad.tolist()}; slope at the last element: {slope:.4f}")
    assert not matrix.grad.any()
    assert slope > 0.9
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
