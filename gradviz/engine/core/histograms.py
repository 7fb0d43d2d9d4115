"""Histograms of the leaves that a pass has reached, for a listener that wants them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, number_of, tensor_rare
from gradviz.events.counted_leaves import MOST_LEAVES, histograms_of, step_of, stretches
from gradviz.events.listener import LeafHistogram
from gradviz.events.values import SMALL


def tell_histograms(listener: Any, in_pass: int, leaves: Sequence[Tensor]) -> None:
    """Count the elements of the leaves that have accumulated a gradient in a pass that is about to end. Those of small
    leaves are recorded anyway."""
    own = {number_of(leaf): leaf for leaf in leaves if leaf.array.size > SMALL}
    if not own or not state.counted.takes(own):
        return
    known = sorted(own.items())[:MOST_LEAVES]
    parameters = [(number, leaf.array) for number, leaf in known]
    gradients = [
        (number, grad.array) for number, leaf in known if (grad := tensor_rare(leaf).grad) is not None
    ]
    found = [*_histograms("parameter", parameters), *_histograms("gradient", gradients)]
    listener.leaves_counted(in_pass, found)


def _histograms(what: str, arrays: Sequence[tuple[int, np.ndarray]]) -> Iterator[LeafHistogram]:
    alike: defaultdict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
    for number, array in arrays:
        if array.dtype.kind == "f":
            flat = array.ravel(order="K")[:: step_of(array.size)]
            alike[flat.size].append((number, flat))
    for size, group in alike.items():
        for part in stretches(len(group), size):
            rows = np.stack([flat for _, flat in group[part]]).astype(np.float64)
            yield from histograms_of(what, [number for number, _ in group[part]], rows)
