#!/usr/bin/env bash
# A divergence is never negative. That of Binomial(3, probs=1) from Binomial(3, probs=0.5) is 3 log 2, as three times that of
# Bernoulli(1) from Bernoulli(0.5) is; PyTorch 2.13.0 gives -inf for the binomial one. It adds log(1 - p), which is -inf at p
# = 1, to logits that were clamped to 16. At p = 0, its mirror image, the value is right. As a penalty to be minimized this is
# a reward without bound for the first p that float32 rounds to 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch
from torch.distributions import Bernoulli, Binomial, kl_divergence

print("torch", torch.__version__.split("+")[0])
half = torch.tensor(0.5)
for p in (0.0, 0.999, 1.0):
    p = torch.tensor(p)
    binomial = kl_divergence(Binomial(3, probs=p), Binomial(3, probs=half)).item()
    bernoulli = 3 * kl_divergence(Bernoulli(probs=p), Bernoulli(probs=half)).item()
    print(f"p = {p.item():.3f}: KL of Binomial {binomial:.4f}, three times that of Bernoulli {bernoulli:.4f}")
    assert abs(bernoulli - 3 * math.log(2)) < 0.05, bernoulli
    assert binomial == -math.inf if p == 1 else abs(binomial - bernoulli) < 1e-4, binomial
probability = torch.tensor([1.0], requires_grad=True)
kl_divergence(Binomial(3, probs=probability), Binomial(3, probs=half)).sum().backward()
print("gradient at p = 1:", probability.grad.item())
assert not probability.grad.isfinite().all()
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
