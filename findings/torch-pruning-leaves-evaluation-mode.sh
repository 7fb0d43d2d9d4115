#!/usr/bin/env bash
# Pruning a layer should say nothing about the mode of a model. torch-pruning 1.6.1 puts the model into evaluation mode when it
# makes a pruner, and leaves it there: what is fine-tuned afterwards trains without dropout and with the old statistics of batch
# norm, which no step changes any more. The same holds for a model of which only the dependency graph is built.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import torch
import torch_pruning

print("torch-pruning", version("torch-pruning"), "torch", torch.__version__.split("+")[0])
torch.manual_seed(0)


def made():
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    ).train()


x = torch.randn(16, 3) + 5
pruned, graphed = made(), made()
torch_pruning.pruner.MetaPruner(
    pruned, x, importance=torch_pruning.importance.MagnitudeImportance(), pruning_ratio=0.5, ignored_layers=[pruned[3]]
).step()
torch_pruning.DependencyGraph().build_dependency(graphed, x)
for how, net in (("a pruner", pruned), ("a dependency graph", graphed)):
    before = net[1].running_mean.clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
    is_as_before = torch.equal(before, net[1].running_mean)
    print(f"behind {how}: training is {net.training}, the running mean is as before 5 steps: {is_as_before}")
    assert not net.training and is_as_before
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 torch-pruning==1.6.1 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
