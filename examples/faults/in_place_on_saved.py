"""A tensor that backward needs is changed in place."""

import gradviz.engine as torch

torch.manual_seed(0)
x = torch.randn(4, requires_grad=True)
hidden = torch.exp(x)
total = hidden.sum()
hidden += 1
try:
    total.backward()
except RuntimeError as error:
    print(error)
