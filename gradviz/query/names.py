"""The names of tensors in the source."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from gradviz.events.kinds import Event, Kind, OpRan, TensorMade
from gradviz.query.lookup import Lookup
from gradviz.query.scopes import Scopes
from gradviz.query.tensors import Tensors
from gradviz.sets import contained, distinct
from gradviz.tracefile import Trace

EARLIER = "earlier"  # how a tensor was made that no event made before it was used
# How tensors were made that were only used at their site, so that the name there belongs to another value: a `gradient`
# began a pass there; a tensor from `earlier`, before the recording or where nothing is recorded, was first used there.
_UNASSIGNED = ("gradient", EARLIER)


class Names(Lookup):
    """The names of one trace's tensors.

    A parameter is named by its path in its module. Any other tensor has the name of the variable that it was
    first assigned to (`y = x ** 3`); this may be a variable of the caller (`y = model(x)`)."""

    def __init__(self, trace: Trace, tensors: Tensors, scopes: Scopes) -> None:
        super().__init__(trace)
        self.tensors, self.scopes = tensors, scopes

    def of(self, tensor: int) -> str | None:
        """The tensor's name in the source; None if it has none."""
        recorded = self.trace.parameters.get(tensor) or self.trace.variables.get(tensor)
        return recorded or self.given(tensor, self.tensors.made(tensor)) or self._changed(tensor)

    def _changed(self, tensor: int) -> str | None:
        self.trace.reach_history(tensor, self.trace.count)
        return self.changed.get(tensor)

    @cached_property
    def changed(self) -> dict[int, str]:
        """The variables that tensors were assigned to when they were changed: `y = (2 * x).requires_grad_()`."""
        trace, sites = self.trace, self.trace.sites
        changed = trace.table(Kind.REQUIRES_GRAD_CHANGED)
        events, tensors = self.tensors.all_writes
        by_op = contained(events, self.tensors.ops)
        events, tensors = events[by_op], tensors[by_op]
        in_line = self._are_written_in_their_lines(events)
        pairs = chain(
            zip(changed.sites.tolist(), changed["tensor"].tolist(), strict=True),
            zip(trace.events["site"][events[in_line]].tolist(), tensors[in_line].tolist(), strict=True),
        )
        names_of: dict[int, str] = {}
        for site, tensor in pairs:
            names = sites[site].names if site in sites else ()
            if len(names) == 1:
                names_of.setdefault(tensor, names[0])
        return names_of

    def _are_written_in_their_lines(self, events: np.ndarray) -> np.ndarray:
        """Whether the line of each op in place calls the op, or a module that does; true if the line is not known. A
        function that writes to its argument, as `clip_grad_norm_` does, may return another tensor."""
        ops = self.trace.table(Kind.OP)
        codes = ops["op"][np.searchsorted(ops.events, events)].astype(np.int64)
        kinds, which = np.unique(
            self.trace.events["site"][events].astype(np.int64) << 32 | codes, return_inverse=True
        )
        known = [self._is_called_in_line(kind >> 32, kind & 0xFFFFFFFF) for kind in kinds.tolist()]
        return np.array(known, bool)[which]

    def _is_called_in_line(self, number: int, op: int) -> bool:
        site = self.trace.sites.get(number)
        lines = self.trace.source(site.place.file) if site is not None else []
        if site is None or not site.names or number in self.calls or not 0 < site.place.line <= len(lines):
            return True
        line = lines[site.place.line - 1]
        return f"{self.trace.text(op)}(" in line or "inplace" in line

    def assigned_at(self, number: int) -> tuple[str, ...]:
        """The variables that the value of a site is assigned to. None of them if one holds a module and no module was
        called there: `model = DistributedDataParallel(net)` also runs ops, whose results have no name."""
        site = self.trace.sites.get(number)
        names = site.names if site is not None else ()
        return () if number not in self.calls and not self._modules.isdisjoint(names) else names

    @cached_property
    def _modules(self) -> set[str]:
        """The variables that hold a module with parameters."""
        return {path.partition(".")[0] for path in self.trace.parameters.values() if "." in path}

    def given(self, tensor: int, maker: Event | None) -> str | None:
        """The name of the variable that a tensor made by event `maker` was first assigned to; None if there
        is none."""
        names = self.assigned_at(maker.site) if maker is not None else ()
        if not names:
            return None
        if isinstance(maker, TensorMade):
            if maker.how in _UNASSIGNED:
                return None
            return names[0] if len(names) == 1 else None
        assert isinstance(maker, OpRan)
        if tensor not in maker.outputs or not self.is_result(maker):
            return None
        return names[maker.outputs.index(tensor)] if len(maker.outputs) == len(names) else None

    def is_result(self, op: OpRan) -> bool:
        """Whether the op computed the result of its site. A library function or a module may run several ops at one
        site; the last op gives the value that is assigned."""
        if op.op != self.last_ops.get(op.site) or not self.parts.isdisjoint(op.outputs):
            return False
        if op.site not in self.calls:
            return True
        starts, ends = self.calls[op.site]
        call = bisect_right(starts, op.index) - 1
        if call < 0 or op.index > ends[call]:
            return True
        ops = self.trace.table(Kind.OP)
        window = slice(*np.searchsorted(ops.events, [op.index + 1, ends[call]]))
        return not np.any(self.trace.events["site"][ops.events[window]] == op.site)

    @cached_property
    def calls(self) -> dict[int, tuple[list[int], list[int]]]:
        """The calls at each site that ran ops: outermost scopes, and backward passes. The value is their first events
        in order, and their last events."""
        by_site: dict[int, tuple[list[int], list[int]]] = {}
        passes = [backward_pass for backward_pass in self.trace.passes if backward_pass.last is not None]
        sites, firsts, lasts = (
            np.concatenate(
                [calls, np.array([getattr(backward_pass, name) for backward_pass in passes], np.int64)]
            )
            for calls, name in zip(self.scopes.calls(), ("site", "first", "last"), strict=True)
        )
        order = np.lexsort((lasts, firsts, sites))
        sites, firsts, lasts = sites[order], firsts[order], lasts[order]
        bounds = np.flatnonzero(np.diff(sites, prepend=-1, append=-1)).tolist()
        for start, end in pairwise(bounds):
            by_site[int(sites[start])] = firsts[start:end].tolist(), lasts[start:end].tolist()
        return by_site

    @cached_property
    def parts(self) -> set[int]:
        """The gradients that are a part of what a leaf got in a pass. PyTorch adds them without an op: the last op of
        `grad(..., create_graph=True)` gave one of the parts and not the result."""
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        of_leaves = self.trace.named(received["grad_fn"], ("AccumulateGrad",))
        came = received.lists("gradients")
        whole = came.values[of_leaves[came.owners]]
        nodes, gradients = produced.lists("flows").elements.T
        to_leaves = contained(nodes, received["node"][of_leaves]) & ~contained(gradients, whole)
        return set(gradients[to_leaves].tolist())

    @cached_property
    def last_ops(self) -> dict[int, str]:
        """The name of the last op at each site."""
        return {site: self.trace.text(op) for site, op in self.trace.site_ops.last.items()}

    @cached_property
    def labels(self) -> list[str]:
        """All names that tensors may have: names of variables and of parameters."""
        names = [name for site in self.trace.sites.values() for name in site.names]
        return list(dict.fromkeys([*names, *self.trace.parameters.values(), *self.trace.variables.values()]))

    def tensor_called(self, name: str, k: int) -> int:
        """The newest tensor of a name at event k, else the first later one; 0 if there is none."""
        known = chain(self.trace.parameters.items(), self.trace.variables.items())
        parameter = next((t for t, called in known if called == name), 0)
        sites = [number for number, site in self.trace.sites.items() if name in site.names]
        if parameter or not sites:
            return parameter
        made = self.trace.indices(Kind.OP, Kind.TENSOR)
        made = made[contained(self.trace.events["site"][made], sites)]
        until = int(np.searchsorted(made, k, side="right"))
        for event in chain(made[:until][::-1], made[until:]):
            maker = self.trace.event(int(event))
            for tensor in (*getattr(maker, "outputs", ()), getattr(maker, "tensor", 0)):
                if tensor and self.of(tensor) == name:
                    return tensor
        return next((tensor for tensor, called in self.changed.items() if called == name), 0)

    @cached_property
    def all(self) -> AllNames:
        """The names of all tensors, as arrays."""
        return AllNames(self)


class AllNames:
    """The name and the maker of every tensor, as in `Names.of`, computed for all tensors together.

    `tensors` are all tensors that an event made, sorted. `born[i]` is the OP or TENSOR event that made
    `tensors[i]`. `codes[i]` is the index of its name in `labels`; 0 means no name (`labels[0]` is empty)."""

    def __init__(self, names: Names) -> None:
        self.names, self.trace = names, names.trace
        self.labels = [""]
        self._known = {"": 0}
        made, tensors, positions, counts = self._making()
        self.made = made, tensors
        self.tensors, first = np.unique(tensors, return_index=True)
        self.born = made[first]
        self.codes = self._codes_of(made[first], positions[first], counts[first])
        for known, is_later in (
            (names.changed, True),
            (self.trace.variables, False),
            (self.trace.parameters, False),
        ):
            for tensor, name in known.items():
                at = int(np.searchsorted(self.tensors, tensor))
                if (
                    at < len(self.tensors)
                    and self.tensors[at] == tensor
                    and not (is_later and self.codes[at])
                ):
                    self.codes[at] = self._code(name)

    def codes_of(self, tensors: np.ndarray) -> np.ndarray:
        """The code of each tensor's name."""
        if not len(self.tensors):
            return np.zeros(len(tensors), np.int32)
        at = np.minimum(np.searchsorted(self.tensors, tensors), len(self.tensors) - 1)
        return np.where(self.tensors[at] == tensors, self.codes[at], 0)

    def _making(self) -> tuple[np.ndarray, ...]:
        """The event of each tensor, the tensor, its position among the outputs and their number (0: not by an op), in
        order of the events."""
        ops, tensors = self.trace.table(Kind.OP), self.trace.table(Kind.TENSOR)
        outputs = ops.lists("outputs")
        events = np.concatenate([ops.events[outputs.owners], tensors.events]).astype(np.int32)
        order = np.argsort(events, kind="stable")
        nothing = np.zeros(len(tensors), np.int64)
        columns = (
            np.concatenate([outputs.values, tensors["tensor"]]),
            np.concatenate([outputs.positions, nothing]),
            np.concatenate([outputs.counts[outputs.owners], nothing]),
        )
        return events[order], *(column[order] for column in columns)

    def _codes_of(self, made: np.ndarray, positions: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The code of the name that each tensor got at the event that made it; 0 for none."""
        sites = self.trace.events["site"][made].astype(np.int32)
        highest = max((*self.trace.sites, int(sites.max(initial=0)))) + 1
        lengths = np.zeros(highest, np.int64)
        for number in self.trace.sites:
            lengths[number] = len(self.names.assigned_at(number))
        named = (lengths[sites] > 0) & (lengths[sites] == np.maximum(counts, 1))
        named &= (counts == 0) | self.is_result[made]
        named &= ~contained(made, self._seeds)
        codes = np.zeros(len(made), np.int32)
        for site in distinct(sites[named]).tolist():
            names = np.array([self._code(name) for name in self.names.assigned_at(site)])
            here = named & (sites == site)
            codes[here] = names[positions[here]]
        return codes

    @property
    def _seeds(self) -> np.ndarray:
        """The TENSOR events of tensors that are not the value that their site assigns."""
        made = self.trace.table(Kind.TENSOR)
        return made.events[self.trace.named(made["how"], _UNASSIGNED)]

    def _code(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = len(self.labels)
            self.labels.append(name)
        return self._known[name]

    @cached_property
    def is_result(self) -> np.ndarray:
        """Whether each event is an op that computed the result of its site (see Names)."""
        table = self.trace.table(Kind.OP)
        sites = table.sites.astype(np.int64)
        order = np.lexsort((table.events, sites))
        ops, sites, names = table.events[order], sites[order], table["op"][order]
        are_results = np.zeros(self.trace.count, bool)
        if not len(ops):
            return are_results
        last_of_site = np.append(sites[1:] != sites[:-1], True)
        ends = np.cumsum(np.append(True, last_of_site[:-1])) - 1  # the group of each op
        result = names == names[last_of_site][ends]
        starts = np.flatnonzero(np.append(True, last_of_site[:-1]))
        for site, (firsts, lasts) in self.names.calls.items():
            group = np.searchsorted(sites[starts], site)
            if group == len(starts) or sites[starts[group]] != site:
                continue
            stop = starts[group + 1] if group + 1 < len(starts) else len(ops)
            of_site = ops[starts[group] : stop]
            call = np.searchsorted(firsts, of_site, side="right") - 1
            end = np.where(call >= 0, np.array(lasts)[call], -1)
            following = np.append(of_site[1:], self.trace.count)
            result[starts[group] : stop] &= (of_site > end) | (following >= end)
        are_results[ops[result]] = True
        outputs = table.lists("outputs")
        of_parts = contained(outputs.values, np.fromiter(self.names.parts, np.int64))
        are_results[table.events[outputs.owners[of_parts]]] = False
        return are_results
