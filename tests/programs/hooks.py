# hooks see gradients, and may replace them
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * 3
handle = y.register_hook(lambda g: print("y", g))
y.register_hook(lambda g: g * 10)
x.register_hook(lambda g: print("x", g))
x.register_post_accumulate_grad_hook(lambda t: print("done", t.grad))
y.grad_fn.register_prehook(lambda gs: print("pre", gs))
y.grad_fn.register_hook(lambda gi, go: print("post", gi, go))
y.retain_grad()
y.sum().backward()
print(y.grad, x.grad)
handle.remove()
