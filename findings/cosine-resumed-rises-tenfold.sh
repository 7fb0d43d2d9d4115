#!/usr/bin/env bash
# CosineAnnealingLR computes each rate from the one before. A run that is resumed by `last_epoch` alone, with the optimizer at its
# first rate and not at that of the epoch, does not go on along the cosine: with PyTorch 2.13.0 the rate rises to more than
# eleven times the initial one. StepLR, resumed in the same way, never goes above it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import warnings

import torch
from torch.optim import lr_scheduler

warnings.simplefilter("ignore")
print("torch", torch.__version__.split("+")[0])


def rates(kind, *settings):
    """The rates of ten epochs that are resumed behind the fifth."""
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0, "initial_lr": 1.0}])
    scheduler = kind(optimizer, *settings, last_epoch=4)
    seen = []
    for _ in range(10):
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


for kind, settings in ((lr_scheduler.CosineAnnealingLR, (5,)), (lr_scheduler.StepLR, (3,))):
    seen = rates(kind, *settings)
    print(f"{kind.__name__}{settings}, initial rate 1: {[round(rate, 3) for rate in seen]}")
    assert (max(seen) > 11) == (kind is lr_scheduler.CosineAnnealingLR)
    assert kind is lr_scheduler.CosineAnnealingLR or max(seen) <= 1
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
