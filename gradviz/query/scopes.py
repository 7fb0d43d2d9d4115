"""The modules and custom Functions around each event, and the modules as wholes, by their parameters."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, Kind, ScopeEntered
from gradviz.query.places import Places
from gradviz.query.sorted_tables import Lookup, Nesting
from gradviz.query.tensors import Tensors
from gradviz.sets import distinct_pairs, summed
from gradviz.tracefile import Trace

FUNCTION = "function"
_LONGEST_PATH = 4000  # characters; a scope nested deeper counts as a part of the scope around it


class Visit(NamedTuple):
    """A visit to a scope: its path, and the class of the module or Function."""

    path: str
    type: str


class Scopes(Lookup):
    """The scopes of one trace. The *path* of a scope consists of the names from the outermost inwards:
    `net/0`."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._known: dict[int, _Open] = {}  # scopes by the events that entered them

    @cached_property
    def nesting(self) -> Nesting:
        """The nesting of scopes, for each thread."""
        return Nesting(self.trace, Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT)

    def around(self, k: int, thread: int) -> list[ScopeEntered]:
        """The scopes around event k of a thread, outermost first."""
        entered = self.trace.table(Kind.SCOPE_ENTERED)
        return [entered.object(event) for event in self.nesting.around(k, thread)]

    def path(self, event: int) -> str:
        """The path of the innermost scope around an event."""
        return self._at(event).path

    def in_function(self, event: int) -> bool:
        """Whether an event happened inside a custom Function's forward."""
        return self._at(event).in_function

    def place(self, k: int, thread: int) -> str:
        """The scopes around event k of a thread as one dotted path: `net.blocks.0.attn`. A module whose name is from
        elsewhere in the network comes behind an angle: `net.b › net.a.layer`. Empty for none."""
        return self._open(self.nesting.chain(k, thread)).place

    def entered(self, event: int) -> tuple[int, int]:
        """The number of the visit to the innermost scope around an event, and the site at which it was entered; zeros
        for none."""
        scope = self._at(event)
        return scope.scope, scope.sites[-1] if scope.sites else 0

    def entered_at(self, event: int) -> tuple[int, ...]:
        """The sites at which the scopes around an event were entered, outermost first."""
        return self._at(event).sites

    def _at(self, event: int) -> "_Open":
        return self._open(self._begins(event))

    def _begins(self, event: int) -> Iterator[int]:
        """The events that entered the scopes around an event, innermost first."""
        self.trace.reach(event)
        return self.nesting.chain(event, self.trace.thread(event))

    def _open(self, begins: Iterable[int]) -> "_Open":
        """The scope that the first of these events entered, inside the scopes that the following events entered."""
        new = []
        scope = _NONE
        for begin in begins:
            if begin in self._known:
                scope = self._known[begin]
                break
            new.append(begin)
        table = self.trace.table(Kind.SCOPE_ENTERED)
        for begin in reversed(new):
            scope = self._known[begin] = _entered(table.object(begin), scope)
        return scope

    def last_entered(self, events: np.ndarray) -> np.ndarray:
        """The name of the scope that was entered last before each event, as the number of a text; 0 if there is none.
        It distinguishes the calls of one line, such as those of many layers in one forward."""
        entered = self.trace.table(Kind.SCOPE_ENTERED)
        at = np.searchsorted(entered.events, events) - 1
        if not len(entered):
            return np.zeros(len(events), np.int64)
        return np.where(at >= 0, entered["name"][np.maximum(at, 0)], 0)

    def visits(self, events: Iterable[int]) -> list[Visit]:
        """The visits to scopes during which some of these events happened, in order."""
        path_of: dict[int, str] = {}
        for event in events:
            self._open(self._begins(event))
            for begin in self._begins(event):
                if begin in path_of:
                    break
                path_of[begin] = self._known[begin].path
        table = self.trace.table(Kind.SCOPE_ENTERED)
        return [Visit(path_of[first], table.object(first).type) for first in sorted(path_of)]

    @cached_property
    def depths(self) -> np.ndarray:
        """The number of scopes and passes around each event on its thread. An event that begins or ends a scope or a
        pass is outside of it."""
        return depths_in(self.trace.events["head"])

    def calls(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The site, the first and the last event of each scope that was left, in the order of sites. A scope inside
        another that was entered at the same site is left out."""
        firsts, lasts, threads = self.nesting.stretches
        left = self.trace.kinds[lasts] == Kind.SCOPE_LEFT
        firsts, lasts, threads = firsts[left], lasts[left], threads[left]
        sites = self.trace.events["site"][firsts].astype(np.int64)
        order = np.lexsort((firsts, threads, sites))
        sites, firsts, lasts, threads = (part[order] for part in (sites, firsts, lasts, threads))
        if not len(sites):
            return sites, firsts, lasts
        new = (sites[1:] != sites[:-1]) | (threads[1:] != threads[:-1])
        place = np.concatenate([[0], np.cumsum(new)]) * self.trace.count
        ended = np.maximum.accumulate(place + lasts)
        outermost = np.concatenate([[True], place[1:] + firsts[1:] > ended[:-1]])
        return sites[outermost], firsts[outermost], lasts[outermost]


def depths_in(heads: np.ndarray) -> np.ndarray:
    """The number of scopes and passes around each event of a stretch on its thread. `heads` are kind | flags << 8 |
    thread << 16; nothing is open before the stretch."""
    step = np.zeros(256, np.int8)
    step[[Kind.SCOPE_ENTERED, Kind.PASS_BEGAN]] = 1
    step[[Kind.SCOPE_LEFT, Kind.PASS_ENDED]] = -1
    steps = step[heads & 0xFF]
    return (summed(steps.astype(np.int32), heads >> 16) - (steps > 0)).astype(np.int32)


class _Open(NamedTuple):
    """A scope that is open: the number of the visit, the name of the innermost module, the path, the path for readers,
    whether it is inside a custom Function, and the sites at which it and the scopes around it were entered, its own
    last."""

    scope: int
    name: str
    path: str
    place: str
    in_function: bool
    sites: tuple[int, ...]


_NONE = _Open(0, "", "", "", False, ())


def _entered(event: ScopeEntered, outer: _Open) -> _Open:
    """A scope inside another scope."""
    name = event.name.replace("/", "∕")  # / separates the parts of a path
    short = name.removeprefix(f"{outer.name}.") or name
    path = f"{outer.path}/{short}" if outer.path else short
    if len(path) > _LONGEST_PATH:
        return outer._replace(scope=event.scope, sites=(*outer.sites[:-1], event.site))
    is_function = event.kind == FUNCTION
    module = outer.name if is_function else name
    inside_function = outer.in_function or is_function
    return _Open(
        event.scope, module, path, _place(short, name, outer, is_function), inside_function, (*outer.sites, event.site)
    )


def _place(short: str, name: str, outer: _Open, is_function: bool) -> str:
    """The place of a scope inside another scope. A module that calls itself occurs once in it."""
    if not outer.place:
        return short
    if name == outer.name and not is_function:
        return outer.place
    root = re.split("[.›]", outer.place)[0].strip()
    from_elsewhere = short == name and name.startswith(f"{root}.") and not is_function
    return f"{outer.place}{' › ' if from_elsewhere else '.'}{short}"


_DEEPEST = 32  # the most modules in modules


class _Sizes(NamedTuple):
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
        for leaf in set(leaves) - self.trace.buffers:
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
        functions = (self.trace.sites[inner[-1]].place.function for inner in below if inner)
        makers = {one.rpartition(".__init__")[0].rpartition(".")[2] for one in functions}  # classes
        around = {path for leaf in leaves for path in _modules_of(self.trace.parameters.get(leaf, ""))}
        whole = {path for path, _ in self.whole(leaves)}
        return any(type_ in makers for path in around - whole for type_ in self._types.get(path, ()))

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
        return tuple(site.number for site in self.places.callers(made.site)) if made is not None and made.site else (0,)


def _modules_of(name: str) -> Iterator[str]:
    """The paths of the modules that a parameter is in, outermost first."""
    parts = name.split(".", _DEEPEST)
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _below(chain: tuple[int, ...], site: int) -> tuple[int, ...]:
    return chain[: chain.index(site)]
