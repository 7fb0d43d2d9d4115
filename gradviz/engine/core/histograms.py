"""Histograms of the leaves that a pass has reached, for a listener that wants them: at the end of some passes, and a
last time when the recording ends or the module that holds them is freed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

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
    counted = state.counted
    if not own or not counted.takes(own):
        return
    counted.living.update({number: leaf for number, leaf in own.items() if number in counted.followed})
    listener.leaves_counted(in_pass, [*_of_leaves(sorted(own.items())[:MOST_LEAVES])])


def tell_last(numbers: Iterable[int]) -> None:
    """Count, a last time, those of the leaves with these numbers that live."""
    listener = state.listener
    living = [(number, leaf) for number in sorted(numbers) if (leaf := state.counted.living.get(number)) is not None]
    if listener is not None and living:
        listener.leaves_counted(listener.passes_begun, [*_of_leaves(living)], is_last=True)


def follow(module: Any, parameters: Collection[int]) -> None:
    """Count the parameters of a module when it is freed: they still live then, since the module holds them."""
    counted, key = state.counted, id(module)

    def freed(_: object) -> None:
        counted.modules.pop(key, None)
        if state.counted is counted:
            tell_last(counted.takes_freed(parameters))

    counted.modules[key] = ref(module, freed)


def _of_leaves(leaves: Sequence[tuple[int, Tensor]]) -> Iterator[LeafHistogram]:
    """The histograms of leaves, each with its number, and of their gradients."""
    gradients = [(number, grad.array) for number, leaf in leaves if (grad := tensor_rare(leaf).grad) is not None]
    yield from _histograms("parameter", [(number, leaf.array) for number, leaf in leaves])
    yield from _histograms("gradient", gradients)


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
