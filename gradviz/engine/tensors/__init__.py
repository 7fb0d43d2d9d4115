"""What programs do with tensors: creation, methods, operations in place, NumPy's functions, files."""

from gradviz.engine.tensors import methods, numpy_bridge

__all__ = ["methods", "numpy_bridge"]  # importing them completes Tensor
