"""The wording of everything: sentences, rows, numbers, formulas and escaped text, shared by all views."""

from gradviz.words.stop import Stop
from gradviz.words.words import Words

__all__ = ["Stop", "Words"]
