# a graph's buffers are freed by its first backward
import torch

x = torch.tensor(5.0, requires_grad=True)
y = x**3
z = torch.log(y)
z.backward()
print(x.grad)
(x + x).backward()
print(x.grad)
s = x + x
s.backward()
s.backward()
print(x.grad)
z.backward()
