"""Questions about a trace at any time of the run. The answers are data, without words, for every view."""

from gradviz.query.query import Query
from gradviz.query.tensors import FIRST, State

__all__ = ["FIRST", "Query", "State"]
