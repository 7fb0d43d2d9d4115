"""Utilities. See PyTorch's `torch.utils`."""

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.utils import checkpoint, data

__all__ = ["checkpoint", "data"]

__getattr__ = says_what_is_missing(__name__, globals())
