#!/usr/bin/env bash
# A Bayesian layer draws its noise anew for each sample of the loss, and the gradient of the mean of two samples should be the mean of
# their gradients. blitz 0.2.8 draws into one buffer through .data: the backward of the first sample computes with the noise of the
# second, and nothing raises. With one sample, the default, the gradient of the spread is right; with two or more it is not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import torch
from blitz.modules import BayesianLinear
from blitz.utils import variational_estimator

print("blitz", version("blitz-bayesian-pytorch"), "torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


@variational_estimator
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BayesianLinear(3, 1)

    def forward(self, x):
        return self.layer(x)


net, x, y, step = Net(), torch.randn(16, 3), torch.randn(16, 1), 1e-5
spread = net.layer.weight_sampler.rho
with torch.no_grad():
    spread.fill_(-1.0)


def loss(samples):
    torch.manual_seed(1)  # the same noise each time
    return net.sample_elbo(x, y, torch.nn.MSELoss(), sample_nbr=samples, complexity_cost_weight=0)


for samples in (1, 2, 4):
    net.zero_grad()
    loss(samples).backward()
    with torch.no_grad():
        spread[0, 0] += step
        above = loss(samples).item()
        spread[0, 0] -= 2 * step
        below = loss(samples).item()
        spread[0, 0] += step
    got, measured = spread.grad[0, 0].item(), (above - below) / (2 * step)
    print(f"sample_nbr={samples}: the gradient of one spread is {got:.5f}, a finite difference gives {measured:.5f}")
    assert (abs(got - measured) < 1e-6) == (samples == 1)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 torchvision==0.28.0 blitz-bayesian-pytorch==0.2.8 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
