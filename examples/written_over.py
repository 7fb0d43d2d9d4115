"""A tensor that backward needs is written over: find the line that did it.

gradviz trace examples/written_over.py
gradviz step
"""

import gradviz.engine as torch


def normalise(t):
    """Make the elements sum to one, in place."""
    return t.div_(t.sum().item())


scores = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
weights = torch.exp(scores)  # its derivative is its result, so that is saved ...
entropy = -(weights * torch.log(weights)).sum()
normalise(weights)  # ... and written over here

try:
    entropy.backward()
except RuntimeError as error:
    print(str(error).split(":")[0])
