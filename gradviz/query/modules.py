"""Whole modules, all of whose parameters are among some leaves, and the expression that made a module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.query.lookup import Lookup
from gradviz.query.places import Places
from gradviz.query.tensors import Tensors
from gradviz.sets import distinct_pairs
from gradviz.tracefile import Trace

_DEEPEST = 32  # the most modules in modules


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The number of parameters of each module, by path: all of them, and those that require grad at the end."""

    all: Counter[str]
    wanting: Counter[str]


class Modules(Lookup):
    """Look-ups about the modules of one trace by the names of their parameters."""

    def __init__(self, trace: Trace, tensors: Tensors, places: Places) -> None:
        super().__init__(trace)
        self.tensors, self.places = tensors, places

    def whole(self, leaves: Iterable[int]) -> list[tuple[str, list[int]]]:
        """The leaves by the outermost module all of whose parameters that require grad at the end are among them, or
        all of whose parameters if none does, with its path. A leaf without such a module stands alone under its own
        name, which is empty if it is no parameter."""
        names, listed = self.trace.parameters, list(leaves)
        inside = self._sizes(listed)
        by_module = defaultdict(list)
        for leaf in listed:
            name = names.get(leaf, "")
            whole = (path for path in _modules_of(name) if self._is_whole(path, inside))
            path = next(whole, name)
            by_module[path, 0 if path else leaf].append(leaf)
        return [(path, together) for (path, _), together in by_module.items()]

    def _is_whole(self, path: str, inside: _Sizes) -> bool:
        wanting, all_ = self._all_sizes.wanting[path], self._all_sizes.all[path]
        return inside.wanting[path] == wanting if wanting else inside.all[path] == all_

    @cached_property
    def _all_sizes(self) -> _Sizes:
        return self._sizes(self.trace.parameters)

    def _sizes(self, leaves: Iterable[int]) -> _Sizes:
        """The sizes of the modules that hold some leaves, counted over these."""
        names, sizes = self.trace.parameters, _Sizes(Counter(), Counter())
        for leaf in set(leaves):
            paths = list(_modules_of(names.get(leaf, "")))
            sizes.all.update(paths)
            if leaf in self._wanting:
                sizes.wanting.update(paths)
        return sizes

    @cached_property
    def _wanting(self) -> set[int]:
        """The leaves that require grad at the end."""
        tensors, flags = self.tensors.leaf_flags.standing(self.trace.count - 1)
        return set(tensors[flags & REQUIRES_GRAD > 0].tolist())

    def made_at(self, leaves: list[int]) -> int:
        """The site of the expression that made some parameters of a module: the call that made their layer, or the call
        of the class of several layers. The site of the first parameter, if they were made one by one."""
        chains = [self._making.get(leaf) or self._callers(leaf) for leaf in leaves]
        first = chains[0]
        shared = set(first).intersection(*chains)
        level = next((i for i, site in enumerate(first) if site in shared), 0)
        return first[level - 1] if level and self._made_more(first[level], leaves, chains) else first[level]

    def _made_more(self, site: int, leaves: list[int], chains: list[tuple[int, ...]]) -> bool:
        """Whether an expression made more than the module of some leaves: other parameters by other lines, or the
        module around it."""
        below = {_below(chain, site) for chain in chains}
        others = (chain for leaf, chain in self._making.items() if leaf not in leaves and site in chain)
        if any(_below(chain, site) not in below for chain in others):
            return True
        makers = {self._class_of_init(inner[-1]) for inner in below if inner}
        around = {path for leaf in leaves for path in _modules_of(self.trace.parameters.get(leaf, ""))}
        whole = {path for path, _ in self.whole(leaves)}
        return any(type_ in makers for path in around - whole for type_ in self._types.get(path, ()))

    def _class_of_init(self, site: int) -> str:
        """The class whose `__init__` a site is in; empty for any other function."""
        return self.trace.sites[site].place.function.rpartition(".__init__")[0].rpartition(".")[2]

    @cached_property
    def _types(self) -> dict[str, set[str]]:
        """The classes of the modules that ran, by path."""
        entered = self.trace.table(Kind.SCOPE_ENTERED)
        by_path = defaultdict(set)
        for name, type_ in distinct_pairs(entered["name"], entered["type"]).tolist():
            by_path[self.trace.text(name)].add(self.trace.text(type_))
        return dict(by_path)

    @cached_property
    def _making(self) -> dict[int, tuple[int, ...]]:
        return {leaf: self._callers(leaf) for leaf in self.trace.parameters}

    def _callers(self, leaf: int) -> tuple[int, ...]:
        """The site that made a leaf and the callers of that site, innermost first."""
        made = self.tensors.made(leaf)
        return (
            tuple(site.number for site in self.places.callers(made.site))
            if made is not None and made.site
            else (0,)
        )


def _modules_of(name: str) -> Iterator[str]:
    """The paths of the modules that a parameter is in, outermost first."""
    parts = name.split(".", _DEEPEST)
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _below(chain: tuple[int, ...], site: int) -> tuple[int, ...]:
    return chain[: chain.index(site)]
