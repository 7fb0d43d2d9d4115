"""Special functions. See PyTorch's `torch.special`."""

from gradviz.engine.basics.keywords import with_pytorchs_names
from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.ops import functions as _functions
from gradviz.engine.table.ops import log_softmax, logit, logsumexp, ndtr, polygamma, softmax
from gradviz.engine.table.ops import round as _round

erf, erfc, erfinv, exp2, expm1, log1p, sinc = (
    _functions[name] for name in "erf erfc erfinv exp2 expm1 log1p sinc".split()
)
digamma = psi = _functions["digamma"]
expit = _functions["sigmoid"]
gammaln, i0, xlogy = _functions["lgamma"], _functions["i0"], _functions["xlogy"]
entr, erfcx, i0e, i1, i1e, log_ndtr, ndtri, xlog1py = (
    _functions[f"special_{name}"] for name in "entr erfcx i0e i1 i1e log_ndtr ndtri xlog1py".split()
)


def round(x: Tensor, decimals: int = 0) -> Tensor:
    """x rounded to `decimals` digits after the point (RoundBackward1)."""
    return _round(x, decimals=decimals)


__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1",
    "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "polygamma", "psi", "round",
    "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

globals().update({name: with_pytorchs_names(globals()[name]) for name in __all__})

__getattr__ = says_what_is_missing(__name__, globals())
