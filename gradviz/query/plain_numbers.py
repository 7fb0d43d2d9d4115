"""A tensor that the loss has as a plain number, as in `loss + penalty.item()` or `w * math.sin(x)`. Nothing is recorded
of that; the source says it."""

from __future__ import annotations

import re

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.sets import contained, distinct


def read_as_number(query: Query, result: int) -> tuple[int, str] | None:
    """The first op on the way to a root whose line reads a tensor as a number, and how; None if there is none."""
    name = re.escape(query.labels.of(result))
    reading = re.compile(
        rf"(?<![\w.]){name}\.(?:item|tolist)\(\)|(?<![\w.])(?:float|int|math\.\w+)\({name}\)"
    )
    made = query.trace.table(Kind.NODE)
    ran = contained(made["node"], query.trace.table(Kind.RECEIVED)["node"])
    ran &= made.events > (query.tensors.maker(result) or 0)
    for site in distinct(made.sites[ran]).tolist():
        found = reading.search(query.places.line_text(site))
        if found is not None:
            return int(made.events[ran & (made.sites == site)][0]), found[0]
    return None
