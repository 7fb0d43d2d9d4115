"""Define-by-run autograd on NumPy, with PyTorch's semantics and names.

Start reading at `derivatives/`, the table of operations and their derivatives.
"""

from __future__ import annotations

import warnings

from gradviz.engine import methods, numpy_bridge  # noqa: F401  (they complete Tensor)

# NumPy warns where PyTorch quietly gives inf or NaN; what the user's own NumPy code does still warns.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"gradviz\.engine\.")
