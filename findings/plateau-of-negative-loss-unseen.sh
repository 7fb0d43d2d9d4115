#!/usr/bin/env bash
# ReduceLROnPlateau lowers the rate when a loss no longer falls. With its defaults, PyTorch 2.13.0 counts a loss as better if it is
# below best · (1 − threshold), which for a negative best lies above it: a loss of −1 that stands still is better each time, and
# so is one that slowly rises. The rate of a negative log-likelihood of densities, or of an ELBO, is never lowered.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

print("torch", torch.__version__.split("+")[0])


def rate_after(losses, **options):
    """The learning rate after these losses, which was 1 before, and the best of them as the scheduler sees it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, patience=10, **options)
    for loss in losses:
        scheduler.step(loss)
    return optimizer.param_groups[0]["lr"], round(scheduler.best, 6)


still, rising = [1.0] * 30, [1.0 + 5e-5 * epoch for epoch in range(30)]
seen = {
    "stays at 1": rate_after(still),
    "stays at -1": rate_after([loss - 2 for loss in still]),
    "rises from 1": rate_after(rising),
    "rises from -1": rate_after([loss - 2 for loss in rising]),
    "rises from -1, threshold 'abs'": rate_after([loss - 2 for loss in rising], threshold_mode="abs"),
}
for losses, (rate, best) in seen.items():
    print(f"a loss that {losses}: rate {rate:.2g}, best {best}")
assert seen["stays at -1"] == (1.0, -1.0)
assert seen["rises from -1"] == (1.0, -0.99855)
assert all(seen[losses][0] < 0.1 for losses in ("stays at 1", "rises from 1", "rises from -1, threshold 'abs'"))
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
