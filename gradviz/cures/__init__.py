"""The cure of a finding as an edit of the source, and the result of a run with the cure."""

from gradviz.cures.cure import Cure, cure_of
from gradviz.cures.trial import Rerun, Tried, try_cure

__all__ = ["Cure", "Rerun", "Tried", "cure_of", "try_cure"]
