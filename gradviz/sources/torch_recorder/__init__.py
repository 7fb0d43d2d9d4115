"""The source that tells of PyTorch: it watches an unmodified program and changes nothing of what that computes.

Nothing here is imported before PyTorch is: `sources/pytorch.py` waits for that.
"""
