#!/usr/bin/env bash
# PyTorch's gradient of hardtanh, relu6, hardshrink, softshrink, elu and hardswish at NaN depends on where in memory the
# NaN lies: whole vector registers give one result, the elements that are left over another.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet torch==2.13.0
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.nn import functional as F

print(torch.__version__.split("+")[0])
for function, within_registers in [
    (F.hardtanh, "0.0"), (F.relu6, "0.0"), (F.hardshrink, "0.0"), (F.softshrink, "0.0"), (F.elu, "nan"), (F.hardswish, "nan")
]:
    seen = []
    for count in (1, 64):
        x = torch.full((count,), float("nan"), requires_grad=True)
        function(x).backward(torch.ones(count))
        seen.append(str(x.grad[0].item()))
    print(f"{function.__name__}: the gradient of a single NaN is {seen[0]}, of the first of 64 NaNs {seen[1]}")
    assert seen == ["1.0", within_registers], seen
PROGRAM
"$folder/environment/bin/python" -W ignore "$folder/program.py"
