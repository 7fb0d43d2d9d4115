"""The source for PyTorch: it watches an unmodified program and does not change its results.

Nothing here is imported before PyTorch is: `sources/pytorch.py` waits for that.
"""
