"""The names of all tensors of a trace at once, as `Names.of` gives them one by one."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.graph.names import Names
from gradviz.tracefile import Trace


class Named:
    """For each tensor its name and where it came to be.

    `labels` are the names; `codes[t]` is the place in it of tensor t's name, 0 for none (labels[0] is empty);
    `born[t]` the OP or TENSOR event that made it, -1 for none. `made` are all such events, each with its tensor."""

    def __init__(self, trace: Trace, names: Names) -> None:
        self.trace, self.names = trace, names
        self.labels = [""]
        self._known = {"": 0}
        made, tensors, positions, counts = self._making()
        self.made = made, tensors
        size = int(max(tensors.max(initial=0), max(trace.parameters, default=0))) + 1
        self.born = np.full(size, -1, np.int32)
        self.codes = np.zeros(size, np.int32)
        self.born[tensors[::-1]] = made[::-1]  # the first that told of it stays
        first = self.born[tensors] == made
        self.codes[tensors[first]] = self._codes_of(made[first], positions[first], counts[first])
        for tensor, name in trace.parameters.items():
            self.codes[tensor] = self._code(name)

    def _making(self) -> tuple[np.ndarray, ...]:
        """Event, tensor, its position among the outputs and their number (0: not by an op), in order."""
        trace = self.trace
        ops, told = trace.indices(Kind.OP), trace.indices(Kind.TENSOR)
        links, lengths = trace.links(ops)
        starts = np.cumsum(lengths) - lengths
        counts = links[starts + 1].astype(np.int64) if len(ops) else starts
        positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = starts + 3 + links[starts] if len(ops) else starts
        outputs = links[np.repeat(first, counts) + positions]
        events = np.concatenate([np.repeat(ops, counts), told]).astype(np.int32)
        order = np.argsort(events, kind="stable")
        tensors = np.concatenate([outputs, trace.events["subject"][told]]).astype(np.int32)
        positions = np.concatenate([positions, np.zeros(len(told), np.int64)]).astype(np.int32)
        many = np.concatenate([np.repeat(counts, counts), np.zeros(len(told), np.int64)]).astype(np.int32)
        return events[order], tensors[order], positions[order], many[order]

    def _codes_of(self, made: np.ndarray, positions: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The code of the name that each of these got where it was made."""
        sites = self.trace.events["site"][made].astype(np.int32)
        highest = max((*self.trace.sites, int(sites.max(initial=0)))) + 1
        lengths = np.zeros(highest, np.int64)
        for number, site in self.trace.sites.items():
            lengths[number] = len(site.names)
        named = lengths[sites] == np.maximum(counts, 1)
        named &= (counts == 0) | self.is_result[made]
        codes = np.zeros(len(made), np.int32)
        for site in np.unique(sites[named]).tolist():
            names = np.array([self._code(name) for name in self.trace.sites[site].names])
            here = named & (sites == site)
            codes[here] = names[positions[here]]
        return codes

    def _code(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = len(self.labels)
            self.labels.append(name)
        return self._known[name]

    @cached_property
    def is_result(self) -> np.ndarray:
        """For each event whether it is an op that gave what its place gave (see Names)."""
        trace = self.trace
        ops = trace.indices(Kind.OP)
        sites = trace.events["site"][ops].astype(np.int64)
        order = np.lexsort((ops, sites))
        ops, sites = ops[order], sites[order]
        found = np.zeros(trace.count, bool)
        if not len(ops):
            return found
        last_of_site = np.append(sites[1:] != sites[:-1], True)
        names = trace.events["name"][ops]
        ends = np.cumsum(np.append(True, last_of_site[:-1])) - 1  # which group each belongs to
        result = names == names[last_of_site][ends]
        starts = np.flatnonzero(np.append(True, last_of_site[:-1]))
        for site, (firsts, lasts) in self.names.calls.items():
            group = np.searchsorted(sites[starts], site)
            if group == len(starts) or sites[starts[group]] != site:
                continue
            stop = starts[group + 1] if group + 1 < len(starts) else len(ops)
            own = ops[starts[group] : stop]
            call = np.searchsorted(firsts, own, side="right") - 1
            end = np.where(call >= 0, np.array(lasts)[call], -1)
            following = np.append(own[1:], trace.count)
            result[starts[group] : stop] &= (own > end) | (following >= end)
        found[ops[result]] = True
        return found

    def tensors(self, name: str) -> np.ndarray:
        """The tensors of a name, in the order they came to be."""
        code = self._known.get(name)
        return np.flatnonzero(self.codes == code) if code else np.zeros(0, np.int64)
