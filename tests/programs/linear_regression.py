# linear regression by hand
import torch
from torch.autograd import Variable

w = Variable(torch.Tensor([1.0]), requires_grad=True)


def model(x):
    return x * w


def loss(x, y):
    return (y - model(x)) * (y - model(x))


for epoch in range(10):
    for x_val, y_val in zip([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]):
        value = loss(x_val, y_val)
        value.backward()
        w.data = w.data - 0.01 * w.grad.item()
        w.grad.data.zero_()
    print(f"{epoch} {value.item():.6f} {w.item():.6f}")
print(round(model(4).item(), 4))
