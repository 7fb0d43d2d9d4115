"""What a trace says of a run over time: answers without words, for every view."""

from gradviz.query.query import Query
from gradviz.query.tensors import FIRST, State

__all__ = ["FIRST", "Query", "State"]
