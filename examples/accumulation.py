"""Gradients add up: retain_graph, accumulation, and clearing."""

import gradviz.engine as torch

x = torch.tensor(5.0, requires_grad=True)
z = torch.log(x**3)

z.backward(retain_graph=True)  # keep the buffers for another pass
print("after the first backward: ", x.grad)

z.backward(retain_graph=True)  # adds to what is there
print("after the second backward:", x.grad)

x.grad.zero_()
z.backward()  # frees the buffers
print("cleared before the third: ", x.grad)

try:
    z.backward()
except RuntimeError as error:
    print("the fourth:", str(error).split(" (")[0])
