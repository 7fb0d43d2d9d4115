"""Utilities. See PyTorch's `torch.utils`."""

from gradviz.utils import data

__all__ = ["data"]
