"""Where two runs part, or one run in two systems."""

from gradviz.compare.parting import diff

__all__ = ["diff"]
