#!/usr/bin/env bash
# log(1 + exp(z)) of a large z is z, with the gradient 1: so F.softplus and BCEWithLogitsLoss compute it. SoftMarginLoss of
# PyTorch 2.13.0 is the same function of z = -y x and computes exp(z) as it stands: in float32 a single sample that is wrong
# by 89 makes the loss infinite and its own gradient NaN, while MultiLabelSoftMarginLoss, of the same family, is right.
# torch.compile replaces it by another formula: the loss is infinite there, too, and the gradient is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import math

import torch
from torch.nn import functional as F

print("torch", torch.__version__.split("+")[0])


def gradient_of(loss_of):
    logit = torch.tensor([-89.0], requires_grad=True)
    loss = loss_of(logit, torch.ones(1))
    loss.sum().backward()
    return loss.item(), logit.grad.item()


compiled = torch.compile(F.soft_margin_loss, backend="aot_eager_decomp_partition")
for name, loss_of, loss, gradient in (
    ("softplus(-y x)", lambda x, y: F.softplus(-y * x), 89.0, -1.0),
    ("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, 89.0, -1.0),
    ("multilabel_soft_margin_loss", F.multilabel_soft_margin_loss, 89.0, -1.0),
    ("soft_margin_loss", F.soft_margin_loss, math.inf, math.nan),
    ("soft_margin_loss, decomposed by torch.compile", compiled, math.inf, -1.0),
):
    found = gradient_of(loss_of)
    print(f"{name}: loss {found[0]}, gradient {found[1]}")
    assert str(found) == str((loss, gradient)), found
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
