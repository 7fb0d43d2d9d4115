"""The name of a tensor in every view: its name in the source, else the expression that made it, cut at the ends of its
parts, else a name by the tensor whose gradient, `.grad` or tangent it is, else `t` and its number."""

import ast
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from operator import not_

import numpy as np

from gradviz.events.kinds import TIED, Event, Kind, OpRan, PassBegan, Produced, Received, TensorMade
from gradviz.events.values import TRANSFORM, VMAP
from gradviz.query.functions_of_source import (
    Element,
    PassedArguments,
    called,
    elements_of,
    imported_names,
    parsed,
    readable,
)
from gradviz.query.nodes import Nodes
from gradviz.query.ops import ARGUMENTS, INSIDE, LOSSES, SHARING, written
from gradviz.query.passes import Passes
from gradviz.query.places import Places
from gradviz.query.scopes import Scopes
from gradviz.query.sorted_tables import Lookup
from gradviz.query.tensors import Tensors
from gradviz.sets import contained, distinct, distinct_pairs
from gradviz.tracefile import Trace

EARLIER = "earlier"  # how a tensor was made that no event made before it was used
# How tensors were made that were only used at their site, so that the name there belongs to another value: a `gradient`
# began a pass there; a tensor from `earlier`, before the recording or where nothing is recorded, was first used there.
_UNASSIGNED = ("gradient", EARLIER, TRANSFORM, VMAP)


class Names(Lookup):
    """The names of one trace's tensors.

    A parameter is named by its path in its module. Any other tensor has the name of the variable that it was
    first assigned to (`y = x ** 3`); this may be a variable of the caller (`y = model(x)`). What has no such name, or
    that of an attribute of `self`, is named by its path in the variables, if an optimizer holds it: `layers[0].w`."""

    def __init__(self, trace: Trace, tensors: Tensors, scopes: Scopes) -> None:
        super().__init__(trace)
        self.tensors, self.scopes = tensors, scopes

    def of(self, tensor: int) -> str | None:
        """The tensor's name in the source; None if it has none."""
        name = self.trace.parameters.get(tensor) or self.given(tensor, self.tensors.made(tensor))
        if not name:
            self.trace.reach_history(tensor, self.trace.count)
            name = self.changed.get(tensor) or self.results.get(tensor)
        return self.trace.variables.get(tensor) or name if _is_of_any_object(name) else name

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

    @cached_property
    def in_collections(self) -> dict[int, str]:
        """The tensors that no op made, and that a list, tuple or dict holds which is assigned to a variable: `a[0]`,
        `w["bias"]`."""
        files = {site.place.file for site in self.trace.sites.values()}
        trees = {file: tree for file in files if (tree := parsed(self.trace, file)) is not None}
        elements = {file: elements_of(tree, tuple(self.trace.source(file))) for file, tree in trees.items()}
        element_at = {number: self._element_at(number, elements) for number in self.trace.sites}
        if any(element is not None and element.counts for element in element_at.values()):
            self.trace.reach_all()  # all are counted
        made, changed = self.trace.table(Kind.TENSOR), self.trace.table(Kind.REQUIRES_GRAD_CHANGED)
        is_held = ~self.trace.named(made["how"], _UNASSIGNED)
        pairs = chain(
            zip(made.sites[is_held].tolist(), made["tensor"][is_held].tolist(), strict=True),
            zip(changed.sites.tolist(), changed["tensor"].tolist(), strict=True),
        )
        counts: Counter[Element] = Counter()
        names_of: dict[int, str] = {}
        for number, tensor in pairs:
            if (element := element_at.get(number)) is not None:
                path = element.path.replace("{}", str(counts[element])) if element.counts else element.path
                names_of.setdefault(tensor, path)
                counts[element] += 1
        return names_of

    def _element_at(
        self, number: int, elements: Mapping[str, Mapping[tuple[int, int, int, int], Element]]
    ) -> Element | None:
        """The element that the value of a site is, or becomes as what its function returns; None if there is none."""
        site = self.trace.sites.get(number)
        while site is not None:
            place = site.place
            ends = place.line, place.col, place.end_line, place.end_col
            element = elements.get(place.file, {}).get(ends)
            if element is None or element.path:
                return element
            site = self.trace.sites.get(site.parent) if 0 < site.parent < site.number else None
        return None

    def _are_written_in_their_lines(self, events: np.ndarray) -> np.ndarray:
        """Whether the line of each op in place calls the op, or a module that does; true if the line is not known. A
        function that writes to its argument, as `clip_grad_norm_` does, may return another tensor."""
        ops = self.trace.table(Kind.OP)
        codes = ops["op"][np.searchsorted(ops.events, events)].astype(np.int64)
        kinds, which = np.unique(self.trace.events["site"][events].astype(np.int64) << 32 | codes, return_inverse=True)
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
        """The name of the variable that a tensor made by event `maker` was first assigned to; None if there is none."""
        names = self.assigned_at(maker.site) if maker is not None else ()
        if isinstance(maker, TensorMade) and maker.how not in _UNASSIGNED and maker.site not in self.last_ops:
            return names[0] if len(names) == 1 else self.in_collections.get(tensor)
        if not names or isinstance(maker, TensorMade):
            return None
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
            np.concatenate([calls, np.array([getattr(backward_pass, name) for backward_pass in passes], np.int64)])
            for calls, name in zip(self.scopes.calls(), ("site", "first", "last"), strict=True)
        )
        order = np.lexsort((lasts, firsts, sites))
        sites, firsts, lasts = sites[order], firsts[order], lasts[order]
        bounds = np.flatnonzero(np.diff(sites, prepend=-1, append=-1)).tolist()
        for start, end in pairwise(bounds):
            by_site[int(sites[start])] = firsts[start:end].tolist(), lasts[start:end].tolist()
        return by_site

    @cached_property
    def results(self) -> dict[int, str]:
        """The variables that the results of calls are assigned to: `loss = criterion(x)`. A result is what the last op
        of a call made, if nothing else that the call made is used after it, outside of passes."""
        ops, began = self.trace.table(Kind.OP), self.trace.table(Kind.PASS_BEGAN)
        sites, firsts, lasts = self.scopes.calls()
        if not len(ops.events):
            return {}
        named = {site: self.assigned_at(site) for site in distinct(sites).tolist()}
        named = {site: names for site, names in named.items() if len(names) == 1 and not names[0].startswith("_")}
        last_ops = np.searchsorted(ops.events, lasts) - 1
        unnamed = [site for site in distinct(ops.sites[last_ops]).tolist() if not self.assigned_at(site)]
        is_one = contained(sites, [*named]) & contained(ops.sites[last_ops], unnamed)
        if not is_one.any():
            return {}
        names_of: dict[int, str] = {}
        outputs, inputs, roots = ops.lists("outputs"), ops.lists("inputs"), began.lists("roots")
        used = np.concatenate([inputs.values, roots.elements[:, 2]])
        used_at = np.concatenate([ops.events[inputs.owners], began.events[roots.owners]])
        made, first = np.unique(outputs.values, return_index=True)
        outside = np.append(ops["in_pass"][inputs.owners] == 0, np.full(len(roots.owners), True))
        outside &= contained(used, made)
        used, used_at = used[outside], used_at[outside]
        made_at = ops.events[outputs.owners[first]][np.searchsorted(made, used)]
        for site in distinct(sites[is_one]).tolist():
            here = np.flatnonzero(sites == site)
            here = here[np.argsort(firsts[here])]
            begins, ends = firsts[here], lasts[here]
            call = np.searchsorted(begins, made_at) - 1
            is_after = (call >= 0) & (made_at <= ends[call]) & (used_at > ends[call])
            pairs = distinct_pairs(call[is_after], used[is_after])
            left, _, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
            results = outputs.firsts[np.searchsorted(ops.events, ends[left[counts == 1]]) - 1]
            results = results[contained(results, used[is_after])]
            names_of.update(dict.fromkeys(results.tolist(), named[site][0]))
        return names_of

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
        parameter = next((t for t, called in self.trace.parameters.items() if called == name), 0)
        sites = [number for number, site in self.trace.sites.items() if name in site.names]
        if parameter or not (sites or "[" in name):
            return parameter
        made = self.trace.indices(Kind.OP, Kind.TENSOR)
        made = made[contained(self.trace.events["site"][made], sites)]
        until = int(np.searchsorted(made, k, side="right"))
        for event in chain(made[:until][::-1], made[until:]):
            maker = self.trace.event(int(event))
            for tensor in (*getattr(maker, "outputs", ()), getattr(maker, "tensor", 0)):
                if tensor and self.of(tensor) == name:
                    return tensor
        others = (self.changed, self.in_collections, self.results, self.trace.variables)
        of_name = sorted(tensor for known in others for tensor, called in known.items() if called == name)
        known = [tensor for tensor in of_name if (self.tensors.maker(tensor) or 0) <= k] or of_name[:1]
        return known[-1] if known else 0

    @cached_property
    def all(self) -> "AllNames":
        """The names of all tensors, as arrays."""
        return AllNames(self)


def _is_of_any_object(name: str | None) -> bool:
    """Whether a name, if there is one, is that of an attribute of every object of a class: `self.w`."""
    return not name or name.startswith("self.")


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
        for known, is_weaker in (
            (names.changed, not_),
            (names.in_collections, not_),
            (names.results, not_),
            (self.trace.variables, _is_of_any_object),
            (self.trace.parameters, lambda _: True),
        ):
            for tensor, name in known.items():
                at = int(np.searchsorted(self.tensors, tensor))
                is_known = at < len(self.tensors) and self.tensors[at] == tensor
                if is_known and is_weaker(self.labels[self.codes[at]]):
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
        """The TENSOR events of tensors that are not the value that their site assigns, as where an op ran, too."""
        made = self.trace.table(Kind.TENSOR)
        is_none = self.trace.named(made["how"], _UNASSIGNED) | contained(made.sites, list(self.names.last_ops))
        return made.events[is_none]

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


_CUT = "…"  # in a text of which parts are left out
_LONGEST_READ = 1000  # the most characters of an expression that is parsed
# whole arguments, not operands
_SEVERAL_CUT = re.compile(rf"(?:(?<=[(\[])|(?<=, )){_CUT}(, ?{_CUT})+(?=[,)\]])")
_ARGUMENT_CUT = re.compile(rf"(?<=, ){_CUT}(?=[,)])")
_PATH = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")

Span = tuple[int, int, int]  # the depth of a part, its first byte, the byte behind its last


@lru_cache(maxsize=4096)
def short_expression(text: str, width: int) -> str:
    """An expression in at most `width` characters. `…` stands for what is left out: whole operands and arguments, the
    deepest first, of equal depth the last first, as few as possible. If the text is no expression, or is too long even
    so, its end is shown."""
    if len(text) <= width:
        return text
    parts = _parts(text)
    cut: list[Span] = []
    for part in sorted(parts, key=lambda part: (-part[0], -part[1])):
        cut.append(part)
        if len(_without(text, cut)) <= width:
            break
    for part in sorted(cut):  # the outermost and first are shown again if there is room
        rest = [one for one in cut if one != part]
        if len(_without(text, rest)) <= width:
            cut = rest
    shown = _without(text, cut)
    return shown if len(shown) <= width else f"{_CUT}{shown[1 - width :]}"


def _parts(text: str) -> list[Span]:
    """The operands and arguments of an expression; empty if it cannot be parsed."""
    if len(text) > _LONGEST_READ:
        return []
    try:
        return [*_below(ast.parse(_readable(text), mode="eval").body, 0)]
    except SyntaxError:
        return []


def _readable(text: str) -> str:
    """A text as Python with its parts at the same bytes: `…` (3 bytes), `net.0` and `gradient of y` are no Python, and
    behind an argument with a name only `*__` may stand."""
    known = _ARGUMENT_CUT.sub("*__", text).replace(_CUT, "___").replace("gradient of ", "gradient_of_")
    return _PATH.sub(lambda path: re.sub(r"\.\d", "._", path[0]), known)


def _below(node: ast.AST, depth: int) -> Iterator[Span]:
    """The parts of a node. A method's object is as deep as its call: `x.exp().sum()` is read from left to right."""
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.Attribute) or (isinstance(node, ast.Call) and child is node.func)
        chained |= isinstance(node, ast.Subscript) and child is node.value
        whole = isinstance(node, ast.keyword) or (isinstance(child, ast.Constant) and not isinstance(node, ast.Call))
        if isinstance(child, ast.expr | ast.keyword) and not chained and not whole:
            yield depth + 1, child.col_offset, child.end_col_offset or child.col_offset
        if not isinstance(child, ast.Starred):
            yield from _below(child, depth if chained else depth + 1)


def _without(text: str, cut: list[Span]) -> str:
    """A text with `…` for some of its parts."""
    written = text.encode()
    outer = [one for one in cut if not any(other != one and other[1] <= one[1] and one[2] <= other[2] for other in cut)]
    for _, start, end in sorted(outer, key=lambda part: -part[1]):
        written = written[:start] + _CUT.encode() + written[end:]
    return _SEVERAL_CUT.sub(_CUT, written.decode())


_TAKEN = re.compile(r"index=\(?((?::, )*-?\d+)\)?")
# Modules that return several tensors, not only the last that they computed.
_SEVERAL = ("MultiheadAttention", "LSTM", "GRU", "RNN", "LSTMCell")
_RETURNED = "(…)"  # behind the path of a module: its result
_NEAR = 2000  # the most makers before a moment, and after it, at which a name is looked for
_DEEPEST = 3  # the most calls in calls in a name
_NAMED_BY_READING = ("Parameter", "Buffer", EARLIER, TRANSFORM, VMAP)
LONGEST = 40  # an expression up to this long may serve as the name of its result


class Labels(Lookup):
    """The names of the tensors of one trace. A long expression is cut (`torch.exp(…) + b`), unless names have to be
    exact, so that they can be typed (`is_exact`)."""

    def __init__(
        self, names: Names, nodes: Nodes, passes: Passes, places: Places, scopes: Scopes, is_exact: bool = False
    ) -> None:
        self.names, self.nodes, self.passes, self.places = names, nodes, passes, places
        self.scopes, self.is_exact = scopes, is_exact
        super().__init__(names.trace)
        self.tensors = names.tensors
        self._arguments = PassedArguments(places)
        self.of = lru_cache(maxsize=4096)(self._of)
        self._text = lru_cache(maxsize=None)(self._expression)
        self._calls = lru_cache(maxsize=4096)(self._call_at)

    def _of(self, tensor: int) -> str:
        name = self.names.of(tensor)
        if name is not None:
            return name
        maker = self.tensors.made(tensor)
        text = self._by_maker(tensor, maker)
        is_cut = isinstance(maker, OpRan) and self._is_inner(maker) and _CUT in text
        if text and not is_cut:
            return text
        if differentiated := self._differentiated(tensor):
            return f"gradient of {self._older(differentiated, tensor)}"
        owner, part = self._held.get(tensor, (0, ""))
        if owner:
            return f"{self._older(owner, tensor)}.{part}"
        return text or f"t{tensor}"

    def _by_maker(self, tensor: int, maker: Event | None) -> str:
        """The expression that made a tensor, else the call; empty if neither is short and known."""
        if isinstance(maker, TensorMade):
            return self._of_no_op(tensor, maker)
        if not isinstance(maker, OpRan):
            return ""
        if len(maker.outputs) != 1:
            return self._of_many(tensor, maker)
        if maker.op == "make_dual":
            return self._read_as(tensor) or self._older(maker.inputs[0], tensor)
        if self._is_inner(maker):
            return self._call(maker, _DEEPEST)
        known = self.row_of(maker) or self._text(maker.site)
        return known or self._as_unpacked(tensor, maker) or self._of_several(maker)

    def _of_many(self, tensor: int, op: OpRan) -> str:
        """The name of one of several results of an op: `x.max(dim=1)[0]`; empty if names are exact."""
        if self.is_exact:
            return ""
        text = self._text(op.site) or self._call(op, _DEEPEST)
        return text and f"{text}[{op.outputs.index(tensor)}]"

    def _of_several(self, op: OpRan) -> str:
        """The name of the result of one of several ops of an expression. The last op of a loss gives the value of the
        expression, as `nll_loss` does in `cross_entropy(z, t)`. Other results are named by their calls, because a
        function may return an earlier result."""
        if op.site in self.names.calls:
            return self._of_module(op) or ("" if self.is_exact else self._call(op, _DEEPEST))
        if op.site in self.places.of_one_op:
            return ""
        text = self.places.expression(op.site)
        called = re.match(r"(?:\w+\.)*(\w+)\(", text)
        if called is None or called[1] not in LOSSES or not self.names.is_result(op):
            return self._call(op, _DEEPEST)
        return self._short(text)

    def _of_no_op(self, tensor: int, maker: TensorMade) -> str:
        """The name of a tensor that no op made: `x.data`; for a parameter, or a tensor from before the recording, the
        operand that reads it; else the call in the expression at its site."""
        if result := self.saved_result(tensor):
            return self._older(result, tensor)
        if maker.how in _NAMED_BY_READING:
            if maker.how in (TRANSFORM, VMAP) and maker.source:
                return self._read_as(tensor) or self._older(maker.source, tensor)
            is_typed = self.is_exact or maker.how == EARLIER
            return self._read_as(tensor) or ("" if is_typed else self._short(self._at(maker.site)))
        base = self.tensors.base(self.tensors.after(tensor, maker.index)) if maker.how in SHARING else None
        if base is not None:  # `x.data`; what was detached in place is still called `x`
            return self._older(base.tensor, tensor) + ".data" * (maker.how == "data")
        text = self._at(maker.site)
        is_call = re.match(rf"(\w+\.)*{re.escape(maker.how)}\(", text) is not None and text.endswith(")")
        return self._short(text) if is_call else ""

    def saved_result(self, tensor: int) -> int:
        """The result of an op whose saved form this tensor is, in a derivative that is differentiated again; 0 if there
        is none."""
        maker = self.tensors.made(tensor)
        if not isinstance(maker, TensorMade) or maker.how != EARLIER:
            return 0
        self.trace.reach_all()  # the tensor may be read anywhere
        read = self._first_reads.get(tensor)  # None for a tensor that no op reads
        for node in () if read is None else self.nodes.of_op(read):
            made = self.nodes.event(node)
            for edge in () if made is None else made.edges:
                source = self.nodes.event(edge.node) if edge.node and edge.tensor == tensor else None
                if source is not None and edge.nr < len(source.outputs):
                    result = source.outputs[edge.nr]
                    return result if 0 < result < tensor else 0
        return 0

    def _read_as(self, tensor: int) -> str:
        """The operand by which the first op got a parameter that no call of a module names: `layers[0].weight` of
        `F.linear(x, layers[0].weight)`; empty if it is no name, attribute or element, or is not known."""
        self.trace.reach_all()  # the parameter may be read anywhere
        event = self._first_reads.get(tensor)
        op = None if event is None else self.tensors.op(event)
        if op is None or op.in_pass:  # no operand stands for a tensor that a derivative reads
            return ""
        *_, text = ("", *self._ways_to_read(op, tensor))
        return text if len(text) <= LONGEST else ""

    def _ways_to_read(self, op: OpRan, tensor: int) -> Iterator[str]:
        """The operand by which an op got a tensor, and what the callers around it gave for that, innermost first."""
        text = self._operand(op, op.inputs.index(tensor)) or self._arguments.of_module(op.site)
        if text:
            yield text
            yield from self._arguments.outward(op.site, text)

    def _as_unpacked(self, tensor: int, maker: OpRan) -> str:
        """The variable of several that a line assigns, as `x` of `for x, y in loader`, which the first call that reads
        a tensor of this line is given; empty if it is given several of them, or none."""
        names = self.names.assigned_at(maker.site)
        if len(names) < 2:
            return ""
        self.trace.reach_all()  # the tensor may be read anywhere
        event = self._first_reads.get(tensor)
        op = None if event is None else self.tensors.op(event)
        if op is None or op.in_pass or op.site == maker.site:
            return ""
        call = self.places.tree(op.site)
        operands = [*_in_order(call), *_object_of(call)]
        given = {one.id for one in operands if isinstance(one, ast.Name)} & {*names}
        given = given or {*self._ways_to_read(op, tensor)} & {*names}
        is_spread = any(isinstance(one, ast.Starred) for one in operands)
        is_spread |= any(keyword.arg is None for keyword in getattr(call, "keywords", ()))
        return given.pop() if len(given) == 1 and not is_spread else ""

    def _operand(self, op: OpRan, position: int) -> str:
        """The operand in the source for an input of an op. If the op is all that its expression computes, the operands
        have the order of the inputs; for an op of a library function they are known from `INSIDE`."""
        expression = self.places.tree(op.site)
        if op.site in self.places.of_one_op:
            operands = _in_order(expression)
            if position == 0 and not all(map(_is_constant, operands)) and self._may_be_a_method(expression, op):
                return ""
            tensors = [one for one in operands if not _is_constant(one)] or _object_of(expression)
            if len(operands) != len(op.inputs):
                operands, position = tensors, position if all(op.inputs) else -1
            return readable(operands[position]) if len(operands) == len(op.inputs) and position >= 0 else ""
        if not isinstance(expression, ast.Call):
            return ""
        name = called(expression)
        reads = INSIDE.get(name, {})
        if op.op not in reads or not self.places.ops_at(op.site) <= reads.keys():
            return ""
        argument = reads[op.op][position]
        by_name = {keyword.arg: keyword.value for keyword in expression.keywords}
        arguments = dict(zip(ARGUMENTS[name], expression.args, strict=False)) | by_name
        return readable(arguments.get(argument))

    def _may_be_a_method(self, expression: ast.expr | None, op: OpRan) -> bool:
        """Whether a call may be the method of its first input, which no argument stands for: `w.to(dtype)`. A function
        of an imported module is none: `torch.exp(w)`."""
        function = expression.func if isinstance(expression, ast.Call) else None
        if not isinstance(function, ast.Attribute):
            return False
        root: ast.expr = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return True
        imported = imported_names(parsed(self.trace, self.trace.sites[op.site].place.file))
        return function.attr == op.op and root.id not in {"torch", *imported}

    @cached_property
    def _first_reads(self) -> dict[int, int]:
        """The first op that read each tensor."""
        table = self.trace.table(Kind.OP)
        inputs = table.lists("inputs")
        tensors, first = np.unique(inputs.values, return_index=True)
        return dict(zip(tensors.tolist(), table.events[inputs.owners[first]].tolist(), strict=True))

    def _is_inner(self, op: OpRan) -> bool:
        """Whether an op is part of the derivative of a node: no expression stands for it."""
        backward_pass = self.trace.find_pass(op.in_pass) if op.in_pass else None
        return backward_pass is not None and backward_pass.site == op.site

    def _call(self, op: OpRan, depth: int) -> str:
        """An op as a call: `mul(pow(x, exponent=2), 3.0)`; empty if the name of an input is not known, or if names are
        exact and the call is too long."""
        return self._calls(op.index, depth)

    def _call_at(self, event: int, depth: int) -> str:
        op = self.tensors.op(event)
        names = [self._given(tensor, op.outputs[0], depth) for tensor in op.inputs if tensor]
        text = written(op.op, [*names, *[op.args] * bool(op.args)])
        if not all(names) or len(text) <= LONGEST or self.is_exact:
            return self._short(text) if all(names) else ""
        return self._short(written(op.op, [*names, *["…"] * bool(op.args)]))

    def _given(self, tensor: int, than: int, depth: int) -> str:
        """The name of an input of an op in a call; empty if it is not known."""
        maker = self.tensors.made(tensor) if tensor < than else None
        is_unnamed = isinstance(maker, OpRan) and len(maker.outputs) == 1 and self.names.of(tensor) is None
        if isinstance(maker, OpRan) and is_unnamed and (self._is_inner(maker) or not self._text(maker.site)):
            return self._call(maker, depth - 1) if depth else "" if self.is_exact else "…"
        name = self._older(tensor, than)
        return "" if name == f"t{tensor}" else name

    def _of_module(self, op: OpRan) -> str:
        """The result of the module whose call ended right after an op: `net.0(…)`; empty if there is none."""
        for index in range(op.index + 1, min(op.index + 3, self.trace.count)):
            self.trace.reach(index)
            if int(self.trace.kinds[index]) == Kind.SCOPE_LEFT:
                around = self.scopes.around(op.index, op.thread)
                is_module = bool(around) and around[-1].kind == "module" and bool(around[-1].name)
                is_module = is_module and around[-1].type not in _SEVERAL
                label = f"{around[-1].name}{_RETURNED}" if is_module else ""
                return label if len(label) <= LONGEST else ""
        return ""

    def row_of(self, op: OpRan) -> str:
        """The name of a row that is taken on the way to another row, in one expression: `p[0]` for `p[0, 1]`; else
        empty."""
        taken = _TAKEN.fullmatch(op.args) if op.op == "getitem" else None
        if taken is None or not op.inputs[0] or not self._is_taken_from(op):
            return ""
        return f"{self._older(op.inputs[0], op.outputs[0])}[{taken[1]}]"

    def _is_taken_from(self, op: OpRan) -> bool:
        """Whether the next op, in the same expression, takes a row from the result of an op."""
        self.trace.reach(op.index, min(op.index + 3, self.trace.count))
        for index in range(op.index + 1, min(op.index + 3, self.trace.count)):
            following = self.trace.event(index)
            if isinstance(following, OpRan):
                return following.site == op.site and following.op == op.op and following.inputs == op.outputs
        return False

    def _older(self, tensor: int, than: int) -> str:
        """The name of a tensor in the name of the tensor `than`. If the tensor is not older, it is not named as a
        gradient: it may be the gradient of `than` (in a damaged trace, its own)."""
        return self.of(tensor) if tensor < than else self.names.of(tensor) or f"t{tensor}"

    @cached_property
    def _held(self) -> dict[int, tuple[int, str]]:
        """The tensors that are at any time the `.grad` or the tangent of an older tensor: that owner, and which of the
        two."""
        owner_of: dict[int, tuple[int, str]] = {}
        for log, part in ((self.tensors.tangents, "tangent"), (self.tensors.grads, "grad")):
            pairs = zip(log.values[::-1].tolist(), log.tensors[::-1].tolist(), strict=True)
            owner_of.update({held: (owner, part) for held, owner in pairs if held > owner or part == "tangent"})
        return owner_of

    def _expression(self, site: int) -> str:
        """The expression at a site where one op runs; empty if it is too long to be exact."""
        return self._short(self._at(site)) if site in self.places.of_one_op else ""

    def _at(self, site: int) -> str:
        """The expression at a site; over several lines only where it may be cut."""
        return self.places.expression(site) if self.is_exact else self.places.whole_expression(site)

    def _short(self, text: str) -> str:
        """A text as a name. A long text is cut; it is empty if names are exact."""
        if self.is_exact:
            return text if len(text) <= LONGEST else ""
        return short_expression(text, LONGEST)

    def _differentiated(self, gradient: int) -> int:
        """The tensor whose gradient `gradient` is; 0 if it is not a gradient."""
        born = self.trace.born(gradient)
        event = None if born is None else self.trace.event(born)
        if isinstance(event, TensorMade) and event.how == "gradient":
            self.trace.reach(event.index, min(event.index + 64, self.trace.count))
            following = np.flatnonzero(self.trace.kinds[event.index : event.index + 64] == Kind.PASS_BEGAN)
            event = self.trace.event(event.index + int(following[0])) if len(following) else None
        if isinstance(event, PassBegan):
            roots = self.passes.with_tensors(event).roots
            return next((root.tensor for root in roots if root.gradient == gradient), 0)
        if isinstance(event, Received):
            pairs = zip(self.nodes.tensors(event.node), event.gradients, strict=False)
            return next((tensor for tensor, came in pairs if came == gradient), 0)
        if isinstance(event, Produced):
            along = zip(self.nodes.edges(event.node), event.flows, strict=False)
            return next((edge.tensor for edge, flow in along if flow.gradient == gradient), 0)
        return 0

    def _tied(self, name: str) -> int:
        """The parameter of which `name` is a further name; 0 if there is none."""
        table = self.trace.table(Kind.NAMED)
        rows = self.trace.named(table["role"], (TIED,)) & self.trace.named(table["name"], (name,))
        return int(table["tensor"][rows][0]) if rows.any() else 0

    def tensor_called(self, text: str, k: int) -> int:
        """The newest tensor of this name at event k, else the first later one; 0 if there is none."""
        named = self.names.tensor_called(text, k) or self._tied(text)
        if named or not text:
            return named
        sites = [number for number in self.trace.sites if text in (self._at(number), self._short(self._at(number)))]
        text = self._short(text)
        table, ops = self.trace.table(Kind.TENSOR), self.trace.table(Kind.OP)
        inner = self.trace.named(ops["op"], (text.partition("(")[0],))
        if text.endswith("]"):
            inner = self.trace.named(ops["op"], ("getitem",))
        if text.endswith(_RETURNED):
            left = self.trace.indices(Kind.SCOPE_LEFT)
            inner = contained(ops.events, np.concatenate([left - 1, left - 2]))
        of_ops = ops.events[contained(ops.sites, sites) | inner]
        made = np.sort(np.concatenate([of_ops, table.events[contained(table.sites, sites)]]))
        until = int(np.searchsorted(made, k, side="right"))
        for event in (*made[:until][::-1][:_NEAR].tolist(), *made[until:][:_NEAR].tolist()):
            maker = self.trace.event(event)
            outputs = maker.outputs if isinstance(maker, OpRan) else (getattr(maker, "tensor", 0),)
            for tensor in outputs:
                if tensor and self.of(tensor) == text:
                    return tensor
        held = table["tensor"][self.trace.named(table["how"], _NAMED_BY_READING)].tolist()
        return next((tensor for tensor in held if self.of(tensor) == text), 0)


def _in_order(found: ast.expr | None) -> list[ast.expr]:
    """The operands of a call or a binary operation as they are written; none of another expression."""
    if isinstance(found, ast.BinOp):
        return [found.left, found.right]
    return [*found.args, *(keyword.value for keyword in found.keywords)] if isinstance(found, ast.Call) else []


def _object_of(found: ast.expr | None) -> list[ast.expr]:
    """The object of a method's call or an index: what it reads if no tensor is given, as `w.sum(dim=1)`, `w[0]`."""
    if isinstance(found, ast.Subscript):
        return [found.value]
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
        return [found.func.value]
    return []


def _is_constant(operand: ast.expr) -> bool:
    """Whether an operand is surely no tensor: a number, None, or a tuple of numbers."""
    parts = operand.elts if isinstance(operand, ast.Tuple | ast.List) else [operand]
    return all(isinstance(part, ast.Constant) for part in parts)
