#!/usr/bin/env bash
# The norm of order 0 counts the elements that are not 0, so its gradient is 0 wherever it has one. PyTorch 2.13 gives zeros for cdist
# and pdist, but for norm, vector_norm, dist and pairwise_distance it gives none at all: `.grad` stays None. So the same count, written
# in two ways, lets weight decay shrink a parameter or leaves it as it is, since an optimizer skips what has no gradient.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.nn import functional as F

print("torch", torch.__version__.split("+")[0])
WAYS = {
    "norm(p=0)": (lambda x: x.norm(p=0), False),
    "linalg.vector_norm(ord=0)": (lambda x: torch.linalg.vector_norm(x, 0), False),
    "dist(p=0)": (lambda x: torch.dist(x, torch.zeros(3), 0), False),
    "pairwise_distance(p=0)": (lambda x: F.pairwise_distance(x[None], torch.zeros(1, 3), p=0).sum(), False),
    "cdist(p=0)": (lambda x: torch.cdist(x[None], torch.zeros(1, 3), p=0).sum(), True),
    "pdist(p=0)": (lambda x: F.pdist(torch.stack([x, torch.zeros(3)]), p=0).sum(), True),
}
for way, (count, has_gradient) in WAYS.items():
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1, weight_decay=1.0)
    loss = count(x)
    loss.backward()
    given = None if x.grad is None else x.grad.tolist()
    optimizer.step()
    moved = x.tolist() != [1.0, -2.0, 3.0]
    print(f"{way:26} {loss.item():.0f} elements, .grad = {given}, weight decay {'moves x' if moved else 'leaves x'}")
    assert (given == [0.0, 0.0, 0.0]) == moved == has_gradient
    assert (given is None) != has_gradient
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
