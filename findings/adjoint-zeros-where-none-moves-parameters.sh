#!/usr/bin/env bash
# The two documented solvers of torchdiffeq 0.2.5 give the same solution and the same gradients, but for a parameter that the
# field does not depend on: odeint leaves None, odeint_adjoint gives zeros. An optimizer skips a parameter whose gradient is
# None. With zeros it steps: AdamW, whose weight decay needs no gradient, shrinks it by a tenth in ten steps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
import torchdiffeq
from torchdiffeq import odeint, odeint_adjoint

print("torch", torch.__version__.split("+")[0], "torchdiffeq", torchdiffeq.__version__)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.5))
        self.damping = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, time, state):
        return self.rate * state - self.damping.detach() * state


results = {}
for solve in (odeint, odeint_adjoint):
    field, first = Field(), 0.0
    optimizer = torch.optim.AdamW(field.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(10):
        optimizer.zero_grad()
        end = solve(field, torch.ones(2), torch.linspace(0, 1, 5), method="rk4")[-1]
        (end - 1.0).pow(2).sum().backward()
        first = first if step else field.rate.grad.item()
        optimizer.step()
    results[solve.__name__] = field.damping.grad, field.damping.item(), first
    print(f"{solve.__name__}: gradient {field.damping.grad}, damping from 1.0 to {field.damping.item():.4f}")
(none, kept, one), (zeros, moved, other) = results.values()
assert none is None and kept == 1.0
assert zeros is not None and zeros.item() == 0 and 0.85 < moved < 0.95, moved
assert abs(one - other) < 1e-4, (one, other)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 torchdiffeq==0.2.5 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
