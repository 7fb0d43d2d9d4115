"""The first places where two runs part, and all that differs between them."""

from gradviz.compare.parting import diff

__all__ = ["diff"]
