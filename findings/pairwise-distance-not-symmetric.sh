#!/usr/bin/env bash
# A distance is the same both ways, and has no direction between equal points. pairwise_distance of PyTorch 2.13.0 adds eps to
# the difference: d(x, y) and d(y, x) of near points differ, d(x, x) is not 0, and its gradient has length 1 and moves equal
# points apart along the diagonal. So does TripletMarginLoss, where an anchor is its own positive. torch.linalg.norm gives 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
import torch.nn.functional as F

print("torch", torch.__version__.split("+")[0])
x, y = torch.tensor([[1e-6, 0.0, 0.0]]), torch.zeros(1, 3)
there, back = F.pairwise_distance(x, y).item(), F.pairwise_distance(y, x).item()
print(f"d(x, y) = {there:.3e}, d(y, x) = {back:.3e}")
assert there > 1.5 * back
gradients = []
for name, distance in (
    ("pairwise_distance", F.pairwise_distance),
    ("linalg.norm", lambda a, b: torch.linalg.norm(a - b, dim=1)),
):
    point = torch.ones(1, 3, requires_grad=True)
    distance(point, torch.ones(1, 3)).sum().backward()
    gradients.append(point.grad.norm().item())
    print(f"{name} of equal points: gradient {[round(one, 4) for one in point.grad[0].tolist()]}")
assert abs(gradients[0] - 1) < 1e-3 and gradients[1] == 0
anchor = torch.ones(1, 3, requires_grad=True)
F.triplet_margin_loss(anchor, torch.ones(1, 3), torch.zeros(1, 3), margin=5.0).backward()
alone = torch.ones(1, 3, requires_grad=True)
(-F.pairwise_distance(alone, torch.zeros(1, 3))).sum().backward()
moved = (anchor.grad - alone.grad).norm().item()
print(f"triplet_margin_loss: the equal positive adds a gradient of length {moved:.4f}")
assert abs(moved - 1) < 1e-3
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
