"""What is cheap to see of passes that are not watched: which optimizers have stepped since the pass before, to which
gradients that a step has used a pass adds, which parameters have a gradient and require one, how often leaves were
written to, whether graphs stay alive. The passes behind a sign that no pass before had are recorded, and some later
ones if it lasts: so a fault that lasts for a while is recorded not only where a sample happens to be."""

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from operator import ne, sub
from typing import Any

import torch

from gradviz.sources.torch_recorder.known_things import version_of
from gradviz.sources.torch_recorder.pytorchs_own import data_ptr, is_inference
from gradviz.sources.torch_recorder.tensor_values import PLAIN

_FIRST = 32  # passes whose signs are usual
_MOST = 4  # other signs of a kind that have passes recorded: more are chance
_LASTING = 16  # passes with a sign, behind which some are recorded again
_ALIVE = 5  # passes behind which it is looked whether a graph is alive; not even, as two losses in turn are
_MOST_LEAVES = 1 << 10  # that are looked at


class Signs:
    """The signs of passes, each kind by itself."""

    def __init__(self) -> None:
        self.begun = 0  # passes
        self.usual: set[tuple[str, Hashable]] = set()
        self.known: defaultdict[str, dict[Hashable, int]] = defaultdict(dict)  # how many passes had each other sign
        self.is_new = False  # whether a sign since the last pass began was new, or lasts
        self.stepped: set[int] = set()  # the optimizers that have stepped since the last pass began, by `id`
        # for each optimizer, a parameter with the gradient that its last step used
        self.used: dict[int, tuple[Callable[[], Any], tuple[int, int]]] = {}
        self.leaves: list[Callable[[], Any]] = []
        self.versions: list[int] = []  # of these leaves, when the last pass began...
        self.addresses: list[int] = []
        self.mark: Callable[[], Any] = lambda: None  # at the root of a pass

    def watch(self, leaves: Iterable[torch.Tensor]) -> None:
        """Look from now on at which of these leaves are written to."""
        plain = (one for one in leaves if type(one) in PLAIN and one.layout is torch.strided and not one.is_meta)
        own = (weakref.ref(one) for one in plain if not is_inference(one))
        self.leaves, self.versions = [*islice(own, _MOST_LEAVES)], []

    def stepping(self, optimizer: Any, are_all_read: bool) -> None:
        """Note the signs of a step that is about to be made, those of all parameters only where that is asked for."""
        self.stepped.add(by := id(optimizer))
        parameters: Iterable[Any] = (one for group in optimizer.param_groups for one in group["params"])
        if are_all_read:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self._note("parameters", (by, *[(one.grad is None, one.requires_grad, one.dtype) for one in parameters]))
        with_gradient = next((one for one in parameters if one.grad is not None), None)
        if with_gradient is not None:
            self.used[by] = weakref.ref(with_gradient), _key(with_gradient.grad)

    def pass_begins(self, roots: Sequence[Any]) -> bool:
        """Whether a sign since the pass before began was new, or lasts."""
        now = ((by, getattr(leaf(), "grad", None), used) for by, (leaf, used) in self.used.items())
        kept = [by for by, gradient, used in now if gradient is not None and _key(gradient) == used]
        self._note("steps", (frozenset(self.stepped), *kept))
        self.stepped.clear()
        alive = [leaf for known in self.leaves if (leaf := known()) is not None]
        versions, addresses = [leaf._version for leaf in alive], [*map(data_ptr, alive)]
        if len(alive) < len(self.leaves):
            self.leaves = [*map(weakref.ref, alive)]
        elif self.versions:
            writes = filter(None, map(sub, versions, self.versions))
            self._note("writes", (sum(map(ne, addresses, self.addresses)), *writes))
        self.versions, self.addresses = versions, addresses
        if self.begun % _ALIVE == 0 and (node := getattr(roots[0], "grad_fn", None)) is not None:
            self._note("graphs", self.mark() is not None)
            node.metadata[Signs] = mark = set[int]()  # lives as long as the node
            self.mark = weakref.ref(mark)
        self.begun += 1
        was_new, self.is_new = self.is_new, False
        return was_new

    def _note(self, kind: str, sign: Hashable) -> None:
        if self.begun < _FIRST:
            self.usual.add((kind, sign))
        elif (kind, sign) not in self.usual:
            known = self.known[kind]
            known[sign] = passes = known.get(sign, 0) + 1
            self.is_new |= passes in (1, _LASTING) and len(known) <= _MOST


def _key(gradient: Any) -> tuple[int, int]:
    return id(gradient), version_of(gradient)
