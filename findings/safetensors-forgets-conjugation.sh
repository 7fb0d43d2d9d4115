#!/usr/bin/env bash
# x.conj() is a view with a mark: its elements are conjugated when they are read. safetensors 0.8.0 with PyTorch 2.13.0 writes what
# lies in memory and forgets the mark, so w.conj() comes back as w, and the imaginary part of a conjugate with the other sign.
# torch.save keeps both; numpy() and DLPack refuse such tensors. Nothing is said by safetensors, which does refuse transposed ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import io
from importlib.metadata import version

import torch
from safetensors.torch import load, save

print("torch", torch.__version__.split("+")[0], "safetensors", version("safetensors"))
w = torch.tensor([1 + 2j, 3 - 4j])
saved = {"w.conj()": w.conj(), "w[0].conj().imag": w[0].conj().imag, "w.conj().resolve_conj()": w.conj().resolve_conj()}
came = {}
for name, tensor in saved.items():
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    came[name] = load(save({"it": tensor}))["it"], torch.load(buffer)
    print(f"{name} = {tensor.tolist()}: by safetensors {came[name][0].tolist()}, by torch.save {came[name][1].tolist()}")
assert all(torch.equal(by_torch, saved[name]) for name, (_, by_torch) in came.items())
assert torch.equal(came["w.conj()"][0], w)
assert came["w[0].conj().imag"][0] == 2 == -saved["w[0].conj().imag"]
assert torch.equal(came["w.conj().resolve_conj()"][0], w.conj())
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
