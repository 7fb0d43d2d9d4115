"""The calls of modules that made an unrecorded graph, worked out from the parameters that its nodes took.

A node that took a parameter of a layer ran in a call of that layer. The nodes between the first and the last such
node of one call of a network ran in that call. Nothing that could be otherwise is claimed: nodes before the first or
after the last stay outside. A network of which only a part was called gets no call, and neither does a network whose
`forward` may use a layer repeatedly if the layer was used repeatedly."""

import dis
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from gradviz.events.counters import next_scope_number
from gradviz.events.listener import Listener

_LIBRARIES = ("torch.nn.", "gradviz.engine.nn.")


def is_of_library(module: Any) -> bool:
    """Whether a call of the module runs only a library's code: the module is a layer, or a sequence of layers."""
    forward = getattr(type(module), "forward", None)
    return getattr(forward, "__module__", "").startswith(_LIBRARIES)


class ForwardCode:
    """The code that a call of a module runs: its `forward`, and the methods with `_` that `forward` names. Other
    methods may also be called by the program directly."""

    def __init__(self, module: Any) -> None:
        self.type = type(module)

    @cached_property
    def codes(self) -> list[CodeType]:
        """The code of `forward`, of the methods with `_` that it names, and so on."""
        codes: dict[str, CodeType] = {}
        waiting = ["forward"]
        while waiting:
            name = waiting.pop()
            function = getattr(self.type, name, None)
            if name in codes or not isinstance(function, FunctionType):
                continue
            if not function.__module__.startswith(_LIBRARIES):
                codes[name] = function.__code__
                for code in _with_inner(function.__code__):
                    waiting += [name for name in code.co_names if name.startswith("_")]
        return [code for outer in codes.values() for code in _with_inner(outer)]

    @cached_property
    def names(self) -> set[str]:
        """All names of attributes in the code."""
        return {name for code in self.codes for name in code.co_names}

    def repeats(self, parts: Collection[str]) -> bool:
        """Whether one call may use one of these attributes several times. A loop over an attribute that holds modules
        uses each module once."""
        counts: Counter[str] = Counter()
        for code in self.codes:
            if code.co_name[:1] == "<" or _loops(code, parts):
                return True
            counts.update(
                step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            )
        methods = {code.co_name for code in self.codes}
        return any(counts[name] > 1 for name in {*parts, *methods})


def _with_inner(code: CodeType) -> list[CodeType]:
    """A code object, and the code of the functions in it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(one for part in inner for one in _with_inner(part))]


def _loops(code: CodeType, parts: Collection[str]) -> bool:
    """Whether code may jump back, other than in a loop over one of these attributes."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "NOT_TAKEN")]
    loops = [at for at, step in enumerate(steps) if step.opname == "FOR_ITER"]
    # over one of the attributes: the three steps before load it, directly or through `enumerate`
    loads = [step.opname == "LOAD_ATTR" and step.argval in parts for step in steps]
    over = {steps[at].offset for at in loops if steps[at - 1].opname == "GET_ITER" and any(loads[max(at - 3, 0) : at])}
    back = {step.argval for step in steps if "JUMP_BACKWARD" in step.opname}
    return not back <= over


# Parts of the names of the nodes that take a layer's parameters. A node with any other name is not the layer's own.
_OWN_NODES = {
    "Linear": ("AddmmBackward", "MmBackward", "BmmBackward", "MvBackward", "AddmvBackward", "Linear", "AddBackward"),
    "_ConvNd": ("Conv",),
    "Embedding": ("EmbeddingBackward",),
    "EmbeddingBag": ("EmbeddingBagBackward",),
    "_NormBase": ("Norm",),
    "LayerNorm": ("Norm",),
    "GroupNorm": ("Norm",),
    "PReLU": ("Prelu",),
}  # fmt: skip
_NEVER_CALLED = {"MultiheadAttention": {"out_proj"}}  # modules that only hold parameters for another one
_VIEWS = {
    f"{name}Backward0"
    for name in ("T Transpose Permute View UnsafeView ReshapeAlias Unsqueeze Expand Slice Select ToCopy".split())
}


class Step(NamedTuple):
    """A node: its name, the parameters that it took directly (by identity), the steps whose results it took (by their
    places in the sequence), and whether it took data that is not a parameter."""

    name: str
    parameters: tuple[int, ...]
    behind: tuple[int, ...]
    has_data: bool


class Call(NamedTuple):
    """A call of a module: its first and last step. `level` counts the modules around it."""

    first: int
    last: int
    level: int
    path: str
    module: Any


class _Item(NamedTuple):
    """The use of a part of a module, from one step to another. The part is a parameter or an inner module."""

    first: int
    last: int
    part: str


class _Use(NamedTuple):
    """A step that took parameters. The steps from `first` up to it only passed the parameters on."""

    first: int
    at: int
    parameters: frozenset[int]


def calls(steps: Sequence[Step], modules: Mapping[str, Any]) -> list[Call]:
    """The calls of these modules (by their paths) and of the modules inside them, in order, outer calls first. Two
    calls are disjoint, or the first contains the second."""
    uses = list(_uses(steps))
    owners = _Owners(modules)
    all_calls = []
    for path, module in modules.items():
        all_calls += _Calls(steps, uses, owners).of(path, module)
    all_calls.sort(key=lambda call: (call.first, -call.last, call.level))
    return _nested(all_calls)


def in_calls(
    listener: Listener,
    nodes: Sequence[Any],
    modules: Mapping[str, Any],
    took: Callable[[Any], tuple[str, Sequence[Any], Sequence[Any]]],
) -> Iterator[Any]:
    """The nodes one by one, each to be emitted while the calls around it are open for the listener, as in a recording.
    `took` gives a node's name, the earlier nodes and the tensors (parameters, data) that it took."""
    places = {node: place for place, node in enumerate(nodes)}
    parameters = {id(parameter) for module in modules.values() for parameter in module.parameters()}
    steps = []
    for name, earlier, tensors in map(took, nodes):
        own = tuple(id(tensor) for tensor in tensors if id(tensor) in parameters)
        has_data = any(len(tensor.shape) > 0 and id(tensor) not in parameters for tensor in tensors)
        steps.append(Step(name, own, tuple(places[node] for node in earlier if node in places), has_data))
    waiting = deque(calls(steps, modules))
    inside: list[tuple[Call, int]] = []
    for step, node in enumerate(nodes):
        while waiting and waiting[0].first == step:
            inside.append((waiting.popleft(), next_scope_number()))
            call, number = inside[-1]
            module = call.module
            listener.scope_entered(None, number, "module", call.path, type(module).__name__, module.training)
        yield node
        while inside and inside[-1][0].last == step:
            listener.scope_left(inside.pop()[1])


def _uses(steps: Sequence[Step]) -> Iterator[_Use]:
    """The steps that took parameters together with something else. A step that computes with parameters alone, as
    weight decay does, is in no layer."""
    readers = Counter(place for step in steps for place in step.behind)
    begins: list[int | None] = []  # for a step that only passes parameters on: the first step that did so
    taken: list[frozenset[int]] = []
    is_of_parameters: list[bool] = []
    for at, step in enumerate(steps):
        views = [place for place in step.behind if begins[place] is not None]
        taken.append(frozenset(step.parameters).union(*(taken[place] for place in views)))
        looks_up = "Embedding" in step.name  # by indices, which not every engine's node keeps
        alone = not (step.has_data or looks_up) and all(is_of_parameters[place] for place in step.behind)
        is_of_parameters.append(alone)
        first = min([at, *(begins[place] or 0 for place in views if readers[place] == 1)])
        begins.append(first if alone and step.name in _VIEWS and len(taken[at]) == 1 else None)
        if taken[at] and not alone:
            yield _Use(first, at, taken[at])


class _Owners:
    """The modules that have each parameter, and its name in each of them."""

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self.of: dict[int, list[tuple[Any, str]]] = {}
        self.holders: Counter[int] = Counter()  # how many modules hold a module, by its identity
        for module in modules.values():
            for part in [module, *_called_inside(module)]:
                self.holders.update(id(inner) for _, inner in _children(part))
                for name, parameter in _own_parameters(part):
                    self.of.setdefault(id(parameter), []).append((part, name))

    def part(self, parameter: int, node: str) -> tuple[Any, str] | None:
        """The module in whose call a node takes this parameter, and the parameter's name there; None if no module
        fits, or several do."""
        holders = [(module, name, _own_nodes(module)) for module, name in self.of.get(parameter, ())]
        fitting = [(module, name) for module, name, own in holders if not own or any(part in node for part in own)]
        return fitting[0] if len(fitting) == 1 else None


class _Calls:
    """Finds the calls of one module, after the calls of the modules inside it."""

    def __init__(self, steps: Sequence[Step], uses: Sequence[_Use], owners: _Owners) -> None:
        self.found: list[Call] = []
        self.shared = {key for key, count in owners.holders.items() if count > 1}
        self.seen: set[int] = set()
        self.own: dict[int, list[_Item]] = {}  # by the identity of a module
        for use in uses:
            for parameter in use.parameters:
                owner = owners.part(parameter, steps[use.at].name)
                if owner is not None:
                    module, name = owner
                    self.own.setdefault(id(module), []).append(_Item(use.first, use.at, name))

    def of(self, path: str, module: Any) -> list[Call]:
        """The calls of the module with this path, and of the modules inside it."""
        self._find(path, module, 0)
        return self.found

    def _find(self, path: str, module: Any, level: int) -> list[tuple[int, int]]:
        """Note the calls of a module and return their places. If the calls cannot be separated, return the places of
        the parts inside."""
        items = sorted(self.own.get(id(module), ()))
        for name, part in _children(module):
            if id(part) in self.seen:
                continue
            self.seen.add(id(part))
            inside = self._find(f"{path}.{name}", part, level + 1)
            if id(part) not in self.shared:  # otherwise it is unknown which of its holders called it
                items += [_Item(first, last, name) for first, last in inside]
        items.sort()
        stretches = _stretches(module, items)
        self.found += [Call(first, last, level, path, module) for first, last in stretches]
        return stretches or [(item.first, item.last) for item in items]


def _stretches(module: Any, items: Sequence[_Item]) -> list[tuple[int, int]]:
    """The first and last step of each call of a module, from the parts that were used; empty where that is unknown."""
    if not items or not _is_called(module):
        return []
    groups = _groups(module, items)
    whole = [group for group in groups if _is_whole(module, group)]
    if len(whole) < len(groups) and not _own_nodes(module):
        return []
    stretches = [(group[0].first, max(item.last for item in group)) for group in whole]
    return stretches if all(one[1] < other[0] for one, other in pairwise(stretches)) else []


def _groups(module: Any, items: Sequence[_Item]) -> list[list[_Item]]:
    """The items, grouped by calls of the module; empty if the module's code may use a part repeatedly in one call."""
    if _uses_once(module, items):
        return _until_used_again(items)
    count = min(Counter(item.part for item in items).values())
    if count == 1:
        return [list(items)]
    return _repetitions(items, count) if is_of_library(module) else []


def _uses_once(module: Any, items: Sequence[_Item]) -> bool:
    """Whether one call of the module uses each of its parts at most once."""
    if is_of_library(module):
        return bool(_own_nodes(module) or _children(module))
    return not ForwardCode(module).repeats(_first_names(item.part for item in items))


def _until_used_again(items: Sequence[_Item]) -> list[list[_Item]]:
    """The items in groups; a repeated part begins the next group."""
    groups: list[list[_Item]] = [[]]
    for item in items:
        if item.part in {known.part for known in groups[-1]}:
            groups.append([])
        groups[-1].append(item)
    return groups


def _repetitions(items: Sequence[_Item], count: int) -> list[list[_Item]]:
    """The items in `count` groups with the same parts in the same order; empty if they do not repeat like that."""
    length, rest = divmod(len(items), count)
    groups = [list(items[start : start + length]) for start in range(0, len(items), length)]
    first = [item.part for item in groups[0]]
    return [] if rest or any([item.part for item in group] != first for group in groups) else groups


def _is_whole(module: Any, items: Sequence[_Item]) -> bool:
    """Whether a call of the module would use exactly these parts, apart from parts that take no gradient."""
    used = {item.part for item in items}
    trained = {
        name for name, part in _children(module) if any(parameter.requires_grad for parameter in part.parameters())
    }
    trained |= {name for name, parameter in _own_parameters(module) if parameter.requires_grad}
    if is_of_library(module):
        return trained <= used
    named = ForwardCode(module).names
    expected = {name for name in trained if name.split(".")[0] in named}
    return _first_names(used) <= named and expected <= used


def _first_names(parts: Iterable[str]) -> set[str]:
    return {part.split(".")[0] for part in parts}


def _nested(found: Sequence[Call]) -> list[Call]:
    """The calls without those that overlap: overlapping calls cannot both be true."""
    wrong: set[int] = set()
    open_now: list[int] = []
    for at, call in enumerate(found):
        while open_now and found[open_now[-1]].last < call.first:
            open_now.pop()
        wrong.update(other for other in open_now if found[other].last < call.last)
        if any(found[other].last < call.last for other in open_now):
            wrong.add(at)
        open_now.append(at)
    return [call for at, call in enumerate(found) if at not in wrong]


# --- modules


def _is_called(module: Any) -> bool:
    """Whether a module can be called: a list of modules cannot."""
    forward = getattr(type(module), "forward", None)
    base = next(cls for cls in reversed(type(module).__mro__) if cls.__name__ == "Module")
    return forward is not getattr(base, "forward", None)


def _children(module: Any) -> list[tuple[str, Any]]:
    """The modules that a module may call, by their paths in it: its direct children, and the modules in its lists."""
    functional = _NEVER_CALLED.get(type(module).__name__, ())
    children = []
    for name, part in module._modules.items():
        if part is None or name in functional:
            continue
        if _is_called(part):
            children.append((name, part))
        else:
            children += [(f"{name}.{inner}", one) for inner, one in _children(part)]
    return children


def _own_parameters(module: Any) -> list[tuple[str, Any]]:
    """The parameters that a module takes itself, by their paths in it: its own, and those of inner modules that it
    does not call."""
    parameters = [(name, parameter) for name, parameter in module._parameters.items() if parameter is not None]
    functional = _NEVER_CALLED.get(type(module).__name__, ())
    for name, part in module._modules.items():
        if part is not None and (name in functional or not _is_called(part)):
            parameters += [(f"{name}.{inner}", one) for inner, one in _own_parameters(part)]
    return parameters


def _called_inside(module: Any) -> Iterator[Any]:
    seen = {id(module)}
    waiting = [part for _, part in _children(module)]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += [inner for _, inner in _children(part)]


def _own_nodes(module: Any) -> tuple[str, ...]:
    """Parts of the names of the nodes that a layer of the library makes, where that is known."""
    if not is_of_library(module):
        return ()
    return next((_OWN_NODES[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in _OWN_NODES), ())
