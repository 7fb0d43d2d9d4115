"""What is cheap to see of passes that are not watched: which optimizers have stepped since the pass before, to which
gradients that a step has used a pass adds, which parameters have a gradient and require one, how often leaves were
written to, whether graphs stay alive. The passes behind a sign that no pass before had are recorded, and some later ones
if it lasts: so a fault that lasts for a while is recorded not only where a sample happens to be."""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch

from gradviz.sources.torch_recorder.known_things import is_leaf, version_of
from gradviz.sources.torch_recorder.tensor_values import PLAIN

_FIRST = 32  # passes whose signs are usual
_MOST = 4  # other signs of a kind that have passes recorded: more are chance
_LASTING = 16  # passes with a sign, behind which some are recorded again
_ALIVE = 3  # passes behind which a graph that is alive is a sign
_MOST_LEAVES = 1 << 10  # that are looked at


class _Mark:
    """Lives as long as the node that has it."""


class Signs:
    """The signs of passes, each kind by itself."""

    def __init__(self) -> None:
        self.begun = 0  # passes
        self.usual: set[tuple[str, Hashable]] = set()
        self.known: defaultdict[str, dict[Hashable, int]] = defaultdict(dict)  # how many passes had each other sign
        self.is_new = False  # whether a sign since the last pass began was new, or lasts
        self.stepped: set[int] = set()  # the optimizers that have stepped since the last pass began, by `id`
        # for each optimizer, a parameter with the gradient that its last step used
        self.used: dict[int, tuple[Callable[[], Any], tuple[int, int] | None]] = {}
        self.leaves: list[Callable[[], Any]] = []
        self.states: list[tuple[int, int]] = []  # of these leaves, when the last pass began
        self.graphs: deque[Callable[[], Any]] = deque(maxlen=_ALIVE)  # the marks at the roots of the last passes

    def watch(self, leaves: Iterable[torch.Tensor]) -> None:
        """Look from now on at which of these leaves are written to."""
        plain = (one for one in leaves if type(one) in PLAIN and one.layout is torch.strided and not one.is_meta)
        self.leaves, self.states = [*map(weakref.ref, islice(plain, _MOST_LEAVES))], []

    def stepping(self, optimizer: Any, are_all_read: bool) -> None:
        """Note the signs of a step that is about to be made, those of all parameters only where that is asked for."""
        self.stepped.add(id(optimizer))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        with_gradient = next((one for one in parameters if one.grad is not None), None)
        if with_gradient is not None:
            self.used[id(optimizer)] = weakref.ref(with_gradient), _gradient_of(with_gradient)
        if are_all_read:
            trained = [(one.grad is None, one.requires_grad, one.dtype) for one in parameters]
            self._note("parameters", (id(optimizer), *trained))

    def pass_begins(self, roots: Sequence[Any]) -> bool:
        """Whether a sign since the pass before began was new, or lasts."""
        kept = [by for by, (leaf, used) in self.used.items() if (one := leaf()) is not None and _gradient_of(one) == used]
        self._note("steps", (frozenset(self.stepped), frozenset(kept)))
        self.stepped.clear()
        before, self.states = self.states, [*map(_state_of, self.leaves)]
        if before:
            pairs = enumerate(zip(before, self.states, strict=True))
            self._note("writes", tuple([(at, now[0] - old[0]) for at, (old, now) in pairs if old != now and now[1]]))
        self._note("graphs", len(self.graphs) == _ALIVE and self.graphs[0]() is not None)
        if (node := getattr(roots[0], "grad_fn", None)) is not None:
            node.metadata[Signs] = mark = _Mark()
            self.graphs.append(weakref.ref(mark))
        self.begun += 1
        was_new, self.is_new = self.is_new, False
        return was_new

    def _note(self, kind: str, sign: Hashable) -> None:
        if self.begun < _FIRST:
            self.usual.add((kind, sign))
        if (kind, sign) not in self.usual:
            known = self.known[kind]
            known[sign] = passes = known.get(sign, 0) + 1
            self.is_new |= passes in (1, _LASTING) and len(known) <= _MOST


def _state_of(leaf: Callable[[], Any]) -> tuple[int, int]:
    """The version and the address of a leaf; (0, 0) if it is gone."""
    tensor = leaf()
    return (0, 0) if tensor is None else (version_of(tensor), tensor.data_ptr())


def _gradient_of(leaf: torch.Tensor) -> tuple[int, int] | None:
    """Which tensor is the gradient of a leaf, and its version."""
    gradient = leaf.grad if is_leaf(leaf) else None
    return None if gradient is None else (id(gradient), version_of(gradient))
