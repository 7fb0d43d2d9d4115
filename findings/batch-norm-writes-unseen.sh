#!/usr/bin/env bash
# A batch norm in evaluation mode keeps its running variance for the backward pass, as it divides by its root. A call in training mode
# writes to the running statistics, and leaves their version as it is. So a call in training mode between the forward and the backward
# of a call in evaluation mode changes the gradient of the earlier one: PyTorch 2.13 gives 0.2187 where the derivative is 1, and nothing
# raises. The same write by hand, `running_var.mul_(2)` under no_grad, moves the version, and backward refuses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch

print("torch", torch.__version__.split("+")[0])


def slope_of(between):
    """The slope of a batch norm in evaluation mode, if `between` happens before the backward pass."""
    norm = torch.nn.BatchNorm1d(1).double()
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    result = norm.eval()(x).sum()
    between(norm)
    try:
        result.backward()
    except RuntimeError as error:
        return "backward refuses: " + str(error).split(":")[0]
    return f"slope {x.grad[0].item():.4f}, running variance {norm.running_var.item():.1f}, version {norm.running_var._version}"


def trained(norm):
    norm.train()(torch.tensor([[0.0], [20.0]], dtype=torch.float64))


def doubled(norm):
    with torch.no_grad():
        norm.running_var.mul_(2)


told = {
    "nothing between": slope_of(lambda norm: None),
    "a call in training mode": slope_of(trained),
    "a write by hand": slope_of(doubled),
}
for between, slope in told.items():
    print(f"{between:24} {slope}")
assert told["nothing between"] == "slope 1.0000, running variance 1.0, version 0"
assert told["a call in training mode"] == "slope 0.2187, running variance 20.9, version 0"
assert told["a write by hand"].startswith("backward refuses")
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
