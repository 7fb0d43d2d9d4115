"""An operation whose derivative you write yourself."""

import gradviz.engine as torch


class Power(torch.autograd.Function):
    """base ** exponent, with both derivatives."""

    @staticmethod
    def forward(ctx, base, exponent):
        """Compute the power, and save what backward needs."""
        ctx.save_for_backward(base, exponent)
        return base**exponent

    @staticmethod
    def backward(ctx, grad_output):
        """The chain rule, once for each input."""
        base, exponent = ctx.saved_tensors
        grad_base = grad_output * exponent * base ** (exponent - 1)
        grad_exponent = grad_output * base**exponent * torch.log(base)
        return grad_base, grad_exponent


x = torch.tensor(5.0, requires_grad=True)
q = torch.tensor(3.0, requires_grad=True)
y = Power.apply(x, q)
z = torch.log(y)

z.backward()

print(y.grad_fn.name())
print("d/dx =", x.grad)
print("d/dq =", q.grad)
