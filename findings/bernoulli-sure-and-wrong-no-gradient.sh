#!/usr/bin/env bash
# A policy that is sure and wrong needs the largest gradient of all. Bernoulli(probs=p) and Categorical(probs=p) of PyTorch
# 2.13.0 clamp p into [eps, 1 - eps] before they take the logarithm, and the clamp sends no gradient: for an outcome whose
# probability is 0 (or 6e-8, the next float32 below 1) log_prob is -15.9 and its gradient is 0, where that of
# binary_cross_entropy of the same two numbers is 1e12 (or 1.7e7). For Categorical that holds for p = 0, and for the p = 1 of
# the outcome that did occur.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.distributions import Bernoulli, Categorical
from torch.nn import functional as F

print("torch", torch.__version__.split("+")[0])
outcome = torch.tensor([0.0, 0.0, 1.0, 0.0])
likelihoods = {
    "Bernoulli(probs=p).log_prob": lambda p: Bernoulli(probs=p).log_prob(outcome),
    "-binary_cross_entropy": lambda p: -F.binary_cross_entropy(p, outcome, reduction="none"),
}
gradients = {}
for name, likelihood in likelihoods.items():
    p = torch.tensor([1.0, 1 - 6e-8, 0.0, 0.5], requires_grad=True)
    value = likelihood(p)
    value.sum().backward()
    gradients[name] = p.grad.tolist()
    print(f"{name}: {[round(one, 1) for one in value.tolist()]}, gradient {gradients[name]}")
sure, exact = gradients.values()
assert sure == [0.0, 0.0, 0.0, -2.0], sure
assert exact[0] < -1e11 and exact[1] < -1e7 and exact[2] > 1e11 and exact[3] == -2.0, exact
p = torch.tensor([1.0, 0.0], requires_grad=True)
value = Categorical(probs=p).log_prob(torch.tensor(1))
value.backward()
print(f"Categorical(probs=[1, 0]).log_prob(1): {value.item():.1f}, gradient {p.grad.tolist()}")
assert value < -15 and p.grad.tolist() == [0.0, 0.0], p.grad
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
