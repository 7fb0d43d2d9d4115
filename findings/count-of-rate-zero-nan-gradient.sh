#!/usr/bin/env bash
# A rate of 0 is in the support of Poisson's parameter, and a count of 0 under it is certain: the log probability is 0 and
# falls by 1 for each unit of the rate. In PyTorch 2.13.0 the value is 0 and the gradient NaN: xlogy(0, 0) is 0, but its
# derivative by the second argument is 0 / 0. So a rate that a relu made 0 poisons the network at the first sample without an
# event; poisson_nll_loss adds 1e-8 and is right. The divergence from Poisson(0) is NaN itself, and
# NegativeBinomial(total_count=0) has the same fault.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch
from torch.distributions import NegativeBinomial, Poisson, kl_divergence
from torch.nn import functional as F

print("torch", torch.__version__.split("+")[0])
none = torch.tensor(0.0)


def gradient_of(likelihood):
    parameter = torch.tensor(0.0, requires_grad=True)
    value = likelihood(parameter)
    value.backward()
    return value.item() + 0.0, parameter.grad.item()


for name, likelihood, value, gradient in (
    ("Poisson(0).log_prob(0)", lambda rate: Poisson(rate).log_prob(none), 0.0, math.nan),
    ("-poisson_nll_loss", lambda rate: -F.poisson_nll_loss(rate, none, log_input=False), 0.0, -1.0),
    ("KL of Poisson(0) from Poisson(1)", lambda rate: kl_divergence(Poisson(rate), Poisson(1.0)), math.nan, math.nan),
    (
        "NegativeBinomial(0, logits=0).log_prob(0)",
        lambda count: NegativeBinomial(count, logits=none).log_prob(none),
        0.0,
        math.nan,
    ),
):
    found = gradient_of(likelihood)
    print(f"{name}: {found[0]}, gradient {found[1]}")
    assert str(found) == str((value, gradient)), found
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
