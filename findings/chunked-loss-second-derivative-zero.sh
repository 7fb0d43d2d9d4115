#!/usr/bin/env bash
# linear_cross_entropy of PyTorch 2.13.0 takes options= to compute the same loss in chunks. Its page says that forward mode and
# higher derivatives are unsupported then. They are not refused: jvp and hessian give 0, and create_graph=True gives a gradient
# without a graph, so a penalty on it trains nothing, without an error or a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import warnings

import torch
import torch.nn.functional as F
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

print("torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
weight, target = torch.randn(5, 3), torch.tensor([1, 2])
hidden, direction = torch.randn(2, 3), torch.randn(2, 3)
seen = {}
with warnings.catch_warnings(record=True) as told:
    for options in (None, LinearCrossEntropyOptions()):
        def loss(h, options=options):
            return F.linear_cross_entropy(h, weight, target, options=options)

        leaf = hidden.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        jvp = torch.func.jvp(loss, (hidden,), (direction,))[1].item()
        hessian = torch.autograd.functional.hessian(loss, hidden).norm().item()
        seen[options is None] = gradient.detach(), jvp, hessian, gradient.requires_grad
        kind = "reference" if options is None else "chunked"
        print(f"{kind}: jvp {jvp:.4f}, norm of the hessian {hessian:.4f}, gradient has a graph: {gradient.requires_grad}")
assert torch.allclose(seen[True][0], seen[False][0])
assert abs(seen[True][1]) > 0.1 and seen[True][2] > 0.1 and seen[True][3]
assert seen[False][1:] == (0.0, 0.0, False)
assert not any("linear_cross_entropy" in str(one.message) for one in told)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" "$folder/program.py"
