#!/usr/bin/env bash
# need_weights of torch.nn.MultiheadAttention only says whether the attention weights are returned, too. In PyTorch 2.13.0 it
# decides about NaN: of a sequence that is all padding the output is NaN with need_weights=True, the default, and the output
# projection's bias with need_weights=False. Through the loss of a batch, the NaN reaches every parameter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
tokens = torch.randn(2, 3, 4)
padding = torch.tensor([[True, True, True], [False, False, True]])  # the first sequence has no token
outputs = {}
for needed in (True, False):
    attention.zero_grad()
    outputs[needed], _ = attention(tokens, tokens, tokens, key_padding_mask=padding, need_weights=needed)
    outputs[needed].sum().backward()
    finite = attention.in_proj_weight.grad.isfinite().all().item()
    print(f"need_weights={needed}: {outputs[needed][0, 0].tolist()}, the gradients are finite: {finite}")
    assert finite is not needed
assert outputs[True][0].isnan().all()
assert torch.equal(outputs[False][0], attention.out_proj.bias.expand(3, 4))
assert torch.allclose(outputs[True][1], outputs[False][1], atol=1e-6)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0
"$folder/environment/bin/python" -W ignore "$folder/program.py"
