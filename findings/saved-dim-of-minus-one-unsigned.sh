#!/usr/bin/env bash
# A node of autograd shows what it saved. Of an op along dimension −1, PyTorch 2.13.0 shows 18446744073709551615 as
# `_saved_dim`, which is −1 read as an unsigned number: as an argument, or as an index, it cannot be used again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])
x = torch.ones(2, 3, requires_grad=True)
for name, out in (("mean(-1)", x.mean(-1)), ("softmax(-1)", x.softmax(-1)), ("select(-1, 0)", x.select(-1, 0))):
    saved = out.grad_fn._saved_dim
    print(f"{name}: {out.grad_fn.name()}._saved_dim is {saved}")
    assert saved in (2**64 - 1, (2**64 - 1,)), saved
try:
    x.mean(x.mean(-1).grad_fn._saved_dim)
except Exception as error:
    print(f"mean along it: {type(error).__name__}")
else:
    raise SystemExit("it can be used again")
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
