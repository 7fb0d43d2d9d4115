#!/usr/bin/env bash
# Policies with forbidden actions get logits of -inf there. PyTorch 2.13.0 knows this case half:
# Categorical(logits=...).log_prob and entropy() of such a policy have right values and gradients, and kl_divergence of two
# policies with the same mask has the right value: it subtracts -inf from -inf and writes 0 over the NaN. But the NaN is still
# in the graph, 0 times NaN comes out of its backward, and the gradient of every logit of the first policy is NaN. That of the
# second policy is right: KL(old, new) trains, KL(new, reference) destroys the network at its first step. A mask of -1e9 in
# place of -inf gives the right gradient of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.distributions import Categorical, kl_divergence

print("torch", torch.__version__.split("+")[0])
OLD, NEW = torch.tensor([0.1, 0.2, 0.3]), [0.3, 0.2, 0.1]


def measured(mask, measure):
    logits = torch.tensor(NEW, requires_grad=True)
    value = measure(Categorical(logits=logits + mask), Categorical(logits=OLD + mask))
    value.backward()
    return value.item(), logits.grad


minus_infinity, finite = torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([0.0, 0.0, -1e9])
for name, measure, is_nan in (
    ("log_prob", lambda new, old: new.log_prob(torch.tensor(0)), False),
    ("entropy", lambda new, old: new.entropy(), False),
    ("kl_divergence(new, old)", kl_divergence, True),
    ("kl_divergence(old, new)", lambda new, old: kl_divergence(old, new), False),
):
    value, gradient = measured(minus_infinity, measure)
    expected, right = measured(finite, measure)
    rounded = [round(one, 4) for one in gradient.tolist()]
    print(f"{name}: {value:.4f}, gradient {rounded}; masked by -1e9 {[round(one, 4) for one in right.tolist()]}")
    assert abs(value - expected) < 1e-6 and right.isfinite().all(), (value, expected, right)
    assert gradient.isnan().all() if is_nan else torch.allclose(gradient, right, atol=1e-6), gradient
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
