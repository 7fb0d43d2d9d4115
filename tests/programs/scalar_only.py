# backward without a gradient is for scalars
import torch

w1 = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
w2 = torch.tensor([[2.0, 3.0], [4.0, 2.0]], requires_grad=True)
y = w2 @ (w1 @ torch.Tensor([1, 2]))
try:
    y.backward()
except RuntimeError as e:
    print(type(e).__name__, e)
y.backward(torch.ones(2), retain_graph=True)
print(w1.grad, w2.grad)
y.sum().backward()
print(w1.grad)
