"""Tensors that lie on several ranks in parts: the statistics of the whole from the statistics of the parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.events.values import Stats
from gradviz.tracefile import Snapshot


def whole_of(parts: Sequence[Snapshot | None]) -> Stats | None:
    """The statistics of a tensor from the statistics of its parts on all ranks. None if they are not known, or if the
    parts do not have each element of one tensor exactly once."""
    pairs = [(part.part, part.stats) for part in parts if part is not None]
    known = [(part[0], stats) for part, stats in pairs if part is not None and stats is not None]
    counts = {part[1] for part, _ in pairs if part is not None}
    if len(known) < len(parts) or len(counts) != 1 or sum(here for here, _ in known) != counts.pop():
        return None
    finite = np.array([here - stats.nan - stats.inf for here, stats in known], float)
    some = finite > 0
    statistics = np.array([(stats.min, stats.max, stats.mean, stats.rms) for _, stats in known])[some]
    weights = finite[some] / finite.sum() if some.any() else finite[some]
    return Stats(
        float(statistics[:, 0].min()) if some.any() else float("nan"),
        float(statistics[:, 1].max()) if some.any() else float("nan"),
        float(weights @ statistics[:, 2]) if some.any() else float("nan"),
        float(np.sqrt(weights @ statistics[:, 3] ** 2)) if some.any() else float("nan"),
        sum(stats.nan for _, stats in known),
        sum(stats.inf for _, stats in known),
        sum(stats.zeros for _, stats in known),
    )
