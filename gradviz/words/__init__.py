"""How things are said: sentences, rows, numbers, formulas and escaped text, the same in every view."""

from gradviz.words.stop import Stop
from gradviz.words.words import Words

__all__ = ["Stop", "Words"]
