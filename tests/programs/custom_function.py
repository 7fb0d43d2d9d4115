# custom Functions, in both styles
import torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        print("cube backward", grad_output, x)
        return grad_output * 3 * x**2


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(x, w, scale):
        return x @ w * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, scale = inputs
        ctx.scale = scale
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        print(ctx.needs_input_grad)
        gx = g @ w.t() * ctx.scale if ctx.needs_input_grad[0] else None
        return gx, x.t() @ g * ctx.scale, None


x = torch.tensor(2.0, requires_grad=True)
y = Cube.apply(x)
print(y, y.grad_fn.name())
torch.log(y).backward()
print(x.grad)

inp = torch.ones(3, 2)
w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
out = Affine.apply(inp, w, 2.0)
print(out.grad_fn.__class__.__name__)
out.sum().backward()
print(w.grad)
