"""Function transforms, and modules as functions. See PyTorch's `torch.func`."""

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.func.functional_call import functional_call
from gradviz.engine.func.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp
from gradviz.engine.func.vectorize import vmap

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]

__getattr__ = says_what_is_missing(__name__, globals())
