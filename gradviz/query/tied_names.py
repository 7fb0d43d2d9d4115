"""The further names of parameters that several modules share, as an embedding and the head of a language model."""

import re
from collections.abc import Iterable

from gradviz.events.kinds import TIED, Kind
from gradviz.query.query import Query


def tied_names(query: Query) -> dict[int, tuple[str, ...]]:
    """The further names of each parameter that has several, by tensor. Use `query.of(tied_names)`."""
    trace = query.trace
    table = trace.table(Kind.NAMED)
    names: dict[int, tuple[str, ...]] = {}
    for event in table.events[trace.named(table["role"], (TIED,))].tolist():
        named = table.object(event)
        names[named.tensor] = (*names.get(named.tensor, ()), named.name)
    return names


def with_tied_names(query: Query, text: str, tensors: Iterable[int]) -> str:
    """A text with all names of the tied parameters among some tensors: `wte.weight (= head.weight) has no gradient`."""
    tied = query.of(tied_names)
    for tensor in tensors:
        name = query.labels.of(tensor)
        found = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)
        if tensor in tied and found is not None:
            text = f"{text[: found.end()]} (= {', '.join(tied[tensor])}){text[found.end() :]}"
    return text
