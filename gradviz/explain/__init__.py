"""The origin of a gradient: a sum over the paths from the roots."""

from gradviz.explain.origin import why

__all__ = ["why"]
