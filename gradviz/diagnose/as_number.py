"""A result that the loss has as a plain number, as in `loss + penalty.item()`. Nothing is recorded of `item()`; the
source says it."""

from __future__ import annotations

import re

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.sets import contained, distinct


def read_as_number(case: Case, result: int) -> tuple[int, str] | None:
    """The first op on the way to a root whose line reads a tensor as a number, and how; None if there is none."""
    name = re.escape(case.words.called(result))
    reading = re.compile(rf"(?<![\w.]){name}\.(?:item|tolist)\(\)|(?<![\w.])float\({name}\)")
    made = case.trace.table(Kind.NODE)
    ran = contained(made["node"], case.trace.table(Kind.RECEIVED)["node"])
    ran &= made.events > (case.query.tensors.maker(result) or 0)
    for site in distinct(made.sites[ran]).tolist():
        found = reading.search(case.query.places.line_text(site))
        if found is not None:
            return int(made.events[ran & (made.sites == site)][0]), found[0]
    return None
