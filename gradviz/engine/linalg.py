"""Linear algebra. See PyTorch's `torch.linalg`."""

from gradviz.engine.basics.keywords import with_pytorchs_names
from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.basics.shape_errors import LinAlgError
from gradviz.engine.table.ops import (
    cholesky,
    det,
    eigh,
    eigvalsh,
    inv,
    matmul,
    matrix_norm,
    matrix_power,
    matrix_rank,
    multi_dot,
    pinv,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svdvals,
    tensorinv,
    vander,
    vecdot,
    vector_norm,
)
from gradviz.engine.table.ops import linalg_cross as cross
from gradviz.engine.table.ops import linalg_diagonal as diagonal
from gradviz.engine.table.ops import linalg_norm as norm

__all__ = [
    "LinAlgError", "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_triangular",
    "svd", "svdvals", "tensorinv", "vander", "vecdot", "vector_norm",
]  # fmt: skip

globals().update({name: with_pytorchs_names(globals()[name]) for name in __all__ if name != "LinAlgError"})

__getattr__ = says_what_is_missing(__name__, globals())
