"""Utilities. See PyTorch's `torch.utils`."""

from gradviz.engine.missing import says_what_is_missing
from gradviz.utils import data

__all__ = ["data"]

__getattr__ = says_what_is_missing(__name__, globals())
