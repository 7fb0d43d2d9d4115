#!/usr/bin/env bash
# A class with probability 0 adds nothing to a Kullback-Leibler divergence, and kl_div of PyTorch 2.13.0 counts it so. The same
# target given by its logarithm (log_target=True), in which the class is −inf as log_softmax of a masked logit gives it,
# makes the loss NaN. The gradient of the input is finite and right all the same, so training goes on under a loss of NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
import torch.nn.functional as F

print("torch", torch.__version__.split("+")[0])
logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
log_target = torch.log_softmax(torch.tensor([[0.5, 0.5, -torch.inf]]), 1)
seen = {}
for by_log, target in ((False, log_target.exp()), (True, log_target)):
    logits.grad = None
    loss = F.kl_div(torch.log_softmax(logits, 1), target, reduction="batchmean", log_target=by_log)
    loss.backward()
    seen[by_log] = loss.item(), logits.grad.clone()
    print(f"log_target={by_log}: loss {loss.item():.6f}, gradient {[round(g, 4) for g in logits.grad[0].tolist()]}")
assert seen[False][0] > 0
assert seen[True][0] != seen[True][0]
assert torch.allclose(seen[True][1], seen[False][1])
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
