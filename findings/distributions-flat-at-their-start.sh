#!/usr/bin/env bash
# Two distributions of PyTorch 2.13.0 use another formula where theirs is unstable, and it does not contain the parameter: the
# value is right, and the gradient is 0. ContinuousBernoulli.rsample is flat for probabilities from 0.499 to 0.501, that is
# for the logit 0 of an output layer that starts at zero; GeneralizedPareto is flat at concentration 0, where it is an
# exponential distribution and where one would start. A parameter that starts there never leaves. The mean of
# ContinuousBernoulli, which has such a formula, too, keeps the slope of 1/12 at 0; beside it, where the usual formula begins,
# float32 leaves a slope that is half as large again (0.13 at the logit 0.01).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.distributions import ContinuousBernoulli, GeneralizedPareto

print("torch", torch.__version__.split("+")[0])
zero, one = torch.tensor(0.0), torch.tensor(1.0)


def gradient_of(measure, start):
    parameter = torch.tensor(start, requires_grad=True)
    torch.manual_seed(0)
    measure(parameter).backward()
    return parameter.grad.item()


for name, measure, start, near in (
    ("ContinuousBernoulli(logits=x).rsample()", lambda x: ContinuousBernoulli(logits=x).rsample(), 0.0, 0.125),
    ("ContinuousBernoulli(logits=x).mean", lambda x: ContinuousBernoulli(logits=x).mean, 1 / 12, 0.13),
    ("GeneralizedPareto(0, 1, x).log_prob(1)", lambda x: GeneralizedPareto(zero, one, x).log_prob(one), 0.0, -0.49),
    ("GeneralizedPareto(0, 1, x).rsample()", lambda x: GeneralizedPareto(zero, one, x).rsample(), 0.0, 0.24),
):
    at_start, beside = gradient_of(measure, 0.0), gradient_of(measure, 0.01)
    print(f"{name}: gradient {at_start:.4f} at x = 0, {beside:.4f} at x = 0.01")
    assert abs(at_start - start) < 1e-4 and abs(beside - near) < 0.02, (at_start, beside)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
