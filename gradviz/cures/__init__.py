"""The cure of a finding, as an edit of the source, and what becomes of a run with it."""

from gradviz.cures.cure import Cure, cure_of
from gradviz.cures.trial import Rerun, Tried, try_cure

__all__ = ["Cure", "Rerun", "Tried", "cure_of", "try_cure"]
