"""What the graph of a pass had saved when it began, in bytes, as tables of texts: by module, and by storage."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gradviz.query.overview import saved_storages
from gradviz.query.query import Query
from gradviz.system.paths import file_name
from gradviz.words.numbers import plural, size

_MOST = 20  # rows of a table
_MODULES, _STORAGES = ("module", "saved by its nodes alone"), ("bytes", "saved first by", "tensor", "module", "at")
_CHECKPOINT = (
    "Under torch.utils.checkpoint.checkpoint(MODULE, ...) a graph keeps the inputs of a module in place of what its "
    "nodes alone saved, and computes that again in backward."
)


def saved_told(query: Query) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Sentences, each with the heads and the rows of a table: the modules whose nodes alone saved the most, and the
    largest storages, with the tensor on it where the trace tells. Empty if nothing was recorded (`--profile`)."""
    number, storages = query.of(saved_storages)
    own, others = ([one for one in storages if one.is_parameter is is_apart] for is_apart in (False, True))
    held, more = (size(sum(one.size for one in part)) for part in (own, others))
    total = f"When pass {number} began, its graph had saved {held} in {plural(len(own), 'storage')}"
    total += f"; {more} more are parameters, which are there anyway" if others else ""
    by_module = Counter[str]()
    for one in own:
        by_module.update(dict.fromkeys(one.modules, one.size))
    modules = [(path, size(count)) for path, count in by_module.most_common(_MOST)]
    rows: list[tuple[str, ...]] = []
    for one in own[:_MOST]:
        made = query.nodes.event(one.node)
        file, line = query.places.line(made.site) if made is not None else ("", 0)
        fitting = {saved.tensor for saved in query.nodes.saved(one.node) if _bytes(query, saved.tensor) == one.size}
        fitting = {one.leaf} if one.leaf else fitting
        called = query.labels.of(fitting.pop()) if len(fitting) == 1 else ""
        place = f"{file_name(file)}:{line}" if line else ""
        rows.append((size(one.size), query.nodes.name(one.node), called, max(one.modules, key=len, default=""), place))
    parts = (f"{total}.", _STORAGES, rows), (_CHECKPOINT, _MODULES, modules)
    return [(about, heads, known) for about, heads, known in parts if known]


def _bytes(query: Query, tensor: int) -> int:
    """The bytes of the memory that a tensor is on; 0 where NumPy lacks its dtype."""
    snapshot = query.trace.snapshot(query.trace.states.base(tensor) or tensor)
    known = np.sctypeDict.get(snapshot.dtype) if snapshot is not None else None
    return 0 if snapshot is None or known is None else int(np.prod(snapshot.shape)) * np.dtype(known).itemsize
