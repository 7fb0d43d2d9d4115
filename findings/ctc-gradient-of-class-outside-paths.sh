#!/usr/bin/env bash
# By a log-probability at one step, the derivative of a CTC loss is minus the posterior probability of the class there: no path gains
# from a class that it does not use. PyTorch 2.13.0 gives exp(log_probs) more, in its own examples, too, whose log_probs are leaves.
# Behind log_softmax the difference cancels; by differences, the derivative of ctc_loss itself is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
import torch.nn.functional as F

print("torch", torch.__version__.split("+")[0])
torch.manual_seed(0)
scores = torch.randn(4, 1, 3, dtype=torch.float64)
targets, lengths, ones = torch.tensor([[1]]), torch.tensor([4]), torch.tensor([1])


def loss(log_probs):
    return F.ctc_loss(log_probs, targets, lengths, ones, reduction="sum")


def slopes(function, x):
    """The derivatives of a function by central differences."""
    steps = 1e-6 * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    return torch.stack([(function(x + step) - function(x - step)) / 2e-6 for step in steps]).reshape(x.shape)


def compared(function, x):
    """What PyTorch gives, and what differences give."""
    leaf = x.clone().requires_grad_()
    function(leaf).backward()
    return leaf.grad, slopes(function, x)


log_probs = scores.log_softmax(2)
given, right = compared(loss, log_probs)
print("at the first step, by log_probs: PyTorch", given[0, 0].tolist())
print("                            differences", right[0, 0].tolist())
print("of class 2, which no path uses:", right[:, 0, 2].abs().max().item(), "PyTorch", given[:, 0, 2].tolist())
assert torch.allclose(given - right, log_probs.exp(), atol=1e-7)
assert right[:, 0, 2].abs().max() == 0
assert given[:, 0, 2].min() > 0.02
behind = compared(lambda x: loss(x.log_softmax(2)), scores)
print("behind log_softmax they agree:", torch.allclose(*behind, atol=1e-7))
assert torch.allclose(*behind, atol=1e-7)
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
