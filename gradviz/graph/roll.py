"""Rolls a graph: each place in the program is one group, however often the program came by.

A module is a group of all its calls. Each operation at its place in the source is a group, and so is everything that
one pass computed for the graph of a later pass. A loop becomes a few boxes with edges back to earlier boxes. A module
without parameters that several layers use (one dropout behind each layer) makes no loop: it is a group behind each of
them (bare_calls.py), and so is an operation that a loop over layers runs behind each layer. Takes linear time."""

from collections import Counter
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gradviz.graph.groups import DATA_BOX, PLACE, RUN, SCOPE, Group, ancestors, rows_of
from gradviz.graph.model import DATA, GRAD_FN, MUTATION, OP, VIEW, Graph, Node, learns, no_collection, scopes_around
from gradviz.query.nodes import ACCUMULATE
from gradviz.sets import grouped

_MOST_NUMBERS = 4  # passes that a box names one by one


@no_collection()
def places(graph: Graph) -> dict[str, Group]:
    """The scopes and places of a graph as groups by id, each after its parent. The same graph always gives the same
    groups and ids."""
    return _Places(graph).groups


class _Turn(NamedTuple):
    """Operations that ran at one place one after another, the call without parameters that they are in, and the layer
    behind which they came."""

    run: list[Node]
    call: "Call | None"
    behind: Hashable


class _Places:
    """Finds the groups of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.groups: dict[str, Group] = {}
        self.by_key: dict[Hashable, Group] = {}
        self.home: dict[str, str] = {}  # node -> the group it is directly in
        self.visited: Counter[Hashable] = Counter()  # the number of times an op has run in a visit so far
        rows = rows_of(graph)
        self.calls = Calls(graph)
        boxes, self.rolled_out = data_boxes(graph)
        for box in boxes:
            self._add_data(box)
        self._add_passes([node for node in rows if node.in_pass and node.id not in self.home])
        turns = [self._turn(run) for run in _runs([node for node in rows if node.id not in self.home])]
        chains = self._chains(turns)
        for turn in turns:
            self._add_run(turn, is_apart=_place(turn.run[0]) in chains)
        self._place_results()
        self._place_leaves()
        for node in graph.nodes:
            if home := self.home.get(node, ""):
                self.groups[home].members.append(node)

    def _group(self, key: Hashable, kind: str, label: str, parent: str, scope: str) -> Group:
        """The group with this key; a new one if there is none."""
        group = self.by_key.get(key)
        if group is None:
            group = self.by_key[key] = Group(f"g{len(self.groups) + 1}", kind, label, parent, [], [], 0, scope)
            self.groups[group.id] = group
            if parent:
                self.groups[parent].children.append(group.id)
        return group

    def _scope(self, path: str, call: "Call | None" = None) -> str:
        """The id of the group of a scope; for a scope without parameters, of a `call` of it. Empty for the top
        level."""
        if not path:
            return ""
        outer, _, label = path.rpartition("/")
        is_call = call is not None and call.scope == path
        around = self._scope(outer, None if is_call else call)
        key = SCOPE, path, around, call[1:3] if call is not None and is_call else None
        if key not in self.by_key:
            known = self.graph.scopes.get(path)
            group = self._group(key, SCOPE, label, around, path)
            calls = 1 if known is None else max(1, known.calls - self.rolled_out.get(path, 0))
            group.count = 0 if is_call else calls
        group = self.by_key[key]
        group.count += is_call and call is not None and call.begins
        return group.id

    def _turn(self, run: list[Node]) -> _Turn:
        """Operations that ran at one place one after another. To be called in the order in which they ran."""
        first, *others = run
        behind = self.calls.behind(first)
        call = self.calls.of(first)
        for node in others:
            self.calls.of(node)
        return _Turn(run, call, behind)

    def _chains(self, turns: list[_Turn]) -> set[Hashable]:
        """The places whose operations are boxes of their own: each time they ran behind another layer, and each of
        these layers ran once, as a `cat` in a loop over layers. One box would lead from each layer to every other
        layer."""
        alone = (turn for turn in turns if turn.call is None and not turn.run[0].visit)
        behind = grouped((_place(turn.run[0]), turn.behind) for turn in alone)
        read = {_place(node) for turn in turns for node in turn.run if node.id in self.calls.reading}
        return {
            place
            for place, layers in behind.items()
            if 1 < len(layers) == len(set(layers)) and place not in read
            if all(map(self.calls.came_once, layers))
        }

    def _add_run(self, turn: _Turn, is_apart: bool) -> None:
        """Put operations that ran at one place one after another into their groups. A library function may run several
        operations. Each has a group of its own, which the next call of the function shares, unless each call
        `is_apart`. Inside a library's module, the first `add` of each visit shares a group, the second `add`, and so
        on."""
        run, first = turn.run, turn.run[0]
        parent = self._scope(first.scope, turn.call)
        period = _period([node.op or node.name for node in run])
        for number, node in enumerate(run):
            name = node.op or node.name
            if node.visit:
                key: tuple[Hashable, ...] = (
                    PLACE,
                    parent,
                    node.scope,
                    name,
                    self.visited[node.scope, node.visit, name],
                )
                self.visited[node.scope, node.visit, name] += 1
            else:
                key = (PLACE, parent, *_place(node), name, number % period, turn.behind if is_apart else None)
            group = self._group(key, PLACE, node.name or "?", parent, node.scope)
            group.count += 1
            group.is_inside = bool(node.visit)
            self.home[node.id] = group.id

    def _add_data(self, box: "DataBox") -> None:
        group = self._group((DATA_BOX, box.nodes[0].id), DATA_BOX, "data", self._scope(box.scope), box.scope)
        group.count = 1
        self.home.update((node.id, group.id) for node in box.nodes)

    def _add_passes(self, rows: list[Node]) -> None:
        """Make one group of the operations of a pass that recorded a graph of its own, as for a second derivative, or
        of several passes that ran the same operations."""
        by_pass = grouped((node.in_pass, node) for node in rows)
        alike = grouped((tuple((node.op, *_place(node)) for node in nodes), at) for at, nodes in by_pass.items())
        for numbers in alike.values():
            group = self._group((RUN, numbers[0]), RUN, _passes(numbers), "", "")
            group.count = len(numbers)
            self.home.update((node.id, group.id) for number in numbers for node in by_pass[number])

    def _place_results(self) -> None:
        """Put results and grad_fns into the groups of their ops. A tensor that is a root of the pass stays visible; a
        leaf that learns is no result of the op that wrote it."""
        nodes = self.graph.nodes
        for edge in self.graph.edges:
            result = nodes[edge.target]
            is_own = not (result.root or (result.is_leaf and result.requires_grad))
            if edge.kind == DATA and nodes[edge.source].kind == OP and is_own:
                self.home.setdefault(edge.target, self.home[edge.source])
        for node in nodes.values():
            if node.kind == GRAD_FN and node.maker in self.home:
                self.home[node.id] = self.home[node.maker]
        for name, place in list(self.home.items()):
            pair = nodes[name].pair
            if nodes[name].kind == OP and pair in nodes:
                self.home[pair] = place

    def _place_leaves(self) -> None:
        """Put a parameter and a tensor that a module made into the module, a constant to its only user, and an
        AccumulateGrad to its leaf."""
        scopes = dict.fromkeys([*self.graph.scopes, *(group.scope for group in self.groups.values() if group.scope)])
        modules = {self._module(path): path for path in scopes}  # inside of functions, if they ran there
        modules.pop("", None)
        users: dict[str, set[str]] = {}
        for edge in self.graph.edges:
            if edge.kind == DATA and edge.source not in self.home:
                users.setdefault(edge.source, set()).add(self.home.get(edge.target, ""))
        for node in self.graph.nodes.values():
            if node.kind in (OP, GRAD_FN) or node.id in self.home or node.root:
                continue
            used = users.get(node.id, set())
            module = modules.get((node.name or "").rpartition(".")[0], "") if node.parameter else ""
            if used and all(name and self.groups[name].kind == DATA_BOX for name in used):
                self.home[node.id] = min(used)  # only rollouts read it
            elif module:
                self.home[node.id] = self._scope(module)
            elif node.scope and (learns(node) or (not node.requires_grad and self._is_inside(node, used))):
                self.home[node.id] = self._scope_of_users(node.scope, used) or self._scope(node.scope)
            elif node.shape == () and not node.name and not node.requires_grad and len(used) == 1:
                self.home[node.id] = next(iter(used))
        leaves: dict[str, str] = {}  # the homes of leaves by name
        for node in list(self.graph.nodes.values()):
            if node.kind not in (OP, GRAD_FN) and node.id in self.home:
                if node.pair in self.graph.nodes:
                    self.home[node.pair] = self.home[node.id]
                if node.parameter and node.name:
                    leaves[node.name] = self.home[node.id]
        for node in self.graph.nodes.values():
            if node.grad_fn != ACCUMULATE or node.id in self.home or not node.base:
                continue
            if node.base in leaves:  # of a graph that is gone: the leaf has a newer one
                self.home[node.id] = leaves[node.base]
            elif not leaves and (module := _module_around(node.base, modules)):
                self.home[node.id] = self._scope(module)  # the graph shows no leaves

    def _module(self, path: str) -> str:
        """The name of the module of a scope: the path without the functions in it."""
        modules = (around for around in scopes_around(path) if not self.graph.is_plain(around))
        return ".".join(around.rpartition("/")[2] for around in modules)

    def _is_inside(self, node: Node, users: set[str]) -> bool:
        """Whether a tensor that a module made stays inside: it has no name, or all its users are in the module."""
        inside = bool(users) and all(self._scope_of_users(node.scope, {user}) for user in users)
        return inside or not node.name

    def _scope_of_users(self, path: str, users: set[str]) -> str:
        """The group of a scope around the users of a leaf: each call of a module without parameters has its own
        group."""
        around = {name for user in users if user for name in ancestors(self.groups, user)}
        groups = (self.groups[name] for name in sorted(around))
        return next((group.id for group in groups if group.kind == SCOPE and group.scope == path), "")


def _module_around(parameter: str, modules: dict[str, str]) -> str:
    """The scope of the innermost module around a parameter that is called; empty if there is none."""
    module = parameter.rpartition(".")[0]
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return modules.get(module, "")


def _passes(numbers: list[int]) -> str:
    """`pass 3`, `passes 1 to 6`, `passes 1, 3, 5`, `8 passes from 1 to 22`."""
    if len(numbers) == 1:
        return f"pass {numbers[0]}"
    first, last = numbers[0], numbers[-1]
    if last - first + 1 == len(numbers):
        return f"passes {first} to {last}"
    if len(numbers) > _MOST_NUMBERS:
        return f"{len(numbers)} passes from {first} to {last}"
    return f"passes {', '.join(map(str, numbers))}"


def _place(node: Node) -> tuple[Hashable, ...]:
    return node.scope, node.file, node.line, node.col, node.end_col


def _runs(rows: Iterable[Node]) -> Iterable[list[Node]]:
    """The operations, cut where the place changes, or the visit to a library's module."""
    run: list[Node] = []
    for node in rows:
        if run and (_place(run[0]), run[0].visit) != (_place(node), node.visit):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def _period(names: list[str | None]) -> int:
    """The length of the block that a list repeats; the length of the list if there is none."""
    count = len(names)
    for period in range(1, count // 2 + 1):
        if count % period == 0 and names[period:] == names[:-period]:
            return period
    return count


# The calls of modules without parameters, told apart: a dropout behind each of two layers is two boxes.
#
# Repeated parameters make a loop, and a plain function is one box for each line that calls it. Two calls of a module
# without parameters are one box if they come behind the same layer of the module around them: a rectifier in a loop
# over a cell is one box, a rectifier between three layers is two.


class Call(NamedTuple):
    """A call of a scope without parameters: the layer or place that it comes `behind`, the `number` of the call since
    then, and whether an operation `begins` it."""

    scope: str
    behind: Hashable
    number: int
    begins: bool


class Calls:
    """Goes over the operations of a graph in their order."""

    def __init__(self, graph: Graph) -> None:
        self.reading = {
            edge.target
            for edge in graph.edges
            if edge.kind == DATA and graph.nodes[edge.target].kind == OP and learns(graph.nodes[edge.source])
        }
        self._graph = graph
        self._read_at = Counter(_line_of(graph.nodes[name]) for name in self.reading)
        self._reading_ops = {_op_in_scope(graph.nodes[name]) for name in self.reading}
        self._learning = {scope for name in self.reading for scope in scopes_around(graph.nodes[name].scope)}
        # for each scope (each equal block by itself): the last place or scope in it that has parameters
        self._behind: dict[tuple[str, str], Hashable] = {}
        self._since: dict[tuple[str, str], Counter[str]] = {}  # and calls of other scopes in it since
        self._open: dict[str, int] = {}  # the visit to each scope of the present call
        self._scope = ""

    def of(self, node: Node) -> Call | None:
        """The outermost call without parameters that an operation is in; None if there is none. To be called once for
        each operation, in the order in which they ran."""
        bare = (path for path in scopes_around(node.scope) if path not in self._learning)
        scope = next((path for path in bare if not self._graph.is_plain(path)), "")
        if not self._learning or not scope:
            self._scope = ""
            self._note(node)
            return None
        begins = scope != self._scope or self._open.get(node.scope, node.visit) != node.visit
        outer = scope.rpartition("/")[0], node.block
        since = self._since.setdefault(outer, Counter())
        if begins:
            since[scope] += 1
            self._scope, self._open = scope, {}
        self._open[node.scope] = node.visit
        return Call(scope, self._behind.get(outer), since[scope], begins)

    def behind(self, node: Node) -> Hashable:
        """The last place or scope with parameters before an operation, in the scope around it; None if there is none.
        To be called before `of` for the same operation."""
        return self._behind.get((node.scope, node.block))

    def came_once(self, behind: Hashable) -> bool:
        """Whether a result of `behind` ran once: it is no part of a loop."""
        if isinstance(behind, str):
            return behind in self._graph.scopes and self._graph.scopes[behind].calls == 1
        return behind is None or self._read_at[behind] == 1

    def _note(self, node: Node) -> None:
        """Note an operation that reads a parameter, in each scope around it. A layer that is called with other weights,
        as by `functional_call`, is the same layer."""
        if node.id not in self.reading and not (node.scope and _op_in_scope(node) in self._reading_ops):
            return
        inner: Hashable = _line_of(node)
        for scope in [*reversed([*scopes_around(node.scope)]), ""]:
            self._behind[scope, node.block], self._since[scope, node.block] = inner, Counter()
            inner = scope


def _op_in_scope(node: Node) -> Hashable:
    return node.scope, node.op, None if node.visit else _line_of(node)


def _line_of(node: Node) -> Hashable:
    return node.file, node.line, node.col


# The parts of a graph that only prepare data for a pass, so that each can be drawn as one box.
#
# Data is what no gradient will ever reach: tensors that do not require grad, and the operations outside of the
# network that compute them from such tensors. The results of a rollout are data too: a network that runs without
# recording a graph, many times before the first operation that records one. A tensor that a module holds, such as a
# mask, belongs to the module.

_FEWEST = 2  # the fewest operations that are drawn as one
_MANY_TENSORS = 4  # the fewest tensors that are drawn as one with a single operation, or with none
_MOST_CALLS = 3  # the most calls at one place of a network that records no graph; more are a rollout


@dataclass(slots=True)
class DataBox:
    """Nodes that are drawn as one. `scope` is the scope of the module that holds a tensor of them; else empty."""

    nodes: list[Node] = field(default_factory=list)
    scope: str = ""


class DataBoxes(NamedTuple):
    """The boxes of a graph, in the order in which they began, and the number of calls of each scope in rollouts."""

    boxes: list[DataBox]
    calls: dict[str, int]


def data_boxes(graph: Graph) -> DataBoxes:
    """The boxes of a graph. Takes linear time."""
    rollouts = _rollouts(graph)
    data = _Data(graph, {node.id for nodes in rollouts for node in nodes})
    boxes: dict[str, DataBox] = {}
    for name in data.leader:
        boxes.setdefault(data.found(name), DataBox()).nodes.append(graph.nodes[name])
    for box in boxes.values():
        box.scope = data.holder(box)
    calls: dict[str, int] = {}
    for nodes in rollouts:
        for scope in scopes_around(nodes[0].scope):
            calls[scope] = max(calls.get(scope, 0), len(nodes))
    return DataBoxes([box for box in boxes.values() if _is_worth_it(box)], calls)


def _is_worth_it(box: DataBox) -> bool:
    ops = sum(node.kind == OP for node in box.nodes)
    return ops >= _FEWEST or bool(box.scope) or len(box.nodes) - ops >= _MANY_TENSORS


class _Data:
    """The nodes of a graph that are data. `leader` leads from each of them to one node for each group: nodes that were
    computed from one another, or are read at one place."""

    def __init__(self, graph: Graph, rollouts: Container[str]) -> None:
        self.nodes = graph.nodes
        self.leader: dict[str, str] = {}
        before: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        computed = {edge.target for edge in graph.edges if edge.kind == DATA}
        for edge in graph.edges:
            if edge.kind in (DATA, MUTATION) or (edge.kind == VIEW and edge.target not in computed):
                before.setdefault(edge.target, []).append(edge.source)
                self.readers.setdefault(edge.source, []).append(edge.target)
        inside = self._made_in(rollouts)
        for node in self.nodes.values():
            read = before.get(node.id, ())
            in_rollout = node.id in rollouts or node.id in inside
            if in_rollout:
                read = [name for name in read if not self.nodes[name].requires_grad]
            is_outside = bool(read) or in_rollout or not node.scope
            if is_outside and self._can_be_data(node, in_rollout) and all(map(self.leader.__contains__, read)):
                self.leader[node.id] = node.id
                for name in read:
                    self._join(node.id, name)
        self._join_by_reader()

    def _made_in(self, rollouts: Container[str]) -> set[str]:
        """The tensors without parameters that only rollouts read, such as noise that a module made."""
        inside: set[str] = set()
        for name, node in reversed(self.nodes.items()):
            readers = self.readers.get(name, ())
            is_plain = not (node.kind == OP or node.parameter or node.buffer)
            if readers and is_plain and all(reader in rollouts or reader in inside for reader in readers):
                inside.add(name)
        return inside

    @staticmethod
    def _can_be_data(node: Node, in_rollout: bool) -> bool:
        if node.kind == OP:
            return not node.grad_fn and (in_rollout or not node.scope)
        return node.kind != GRAD_FN and not (node.requires_grad or node.root)

    def _join_by_reader(self) -> None:
        """Join data that comes into the network at one place: results, and tensors of one name."""
        first: dict[Hashable, str] = {}
        for name in self.leader:
            node = self.nodes[name]
            for reader in self.readers.get(name, ()):
                if reader not in self.leader:
                    at = self.nodes[reader]
                    key = at.scope, at.file, at.line, at.col, at.op, node.name, node.line, node.col
                    self._join(name, first.setdefault(key, name))

    def found(self, name: str) -> str:
        """The node that stands for the group of a node."""
        leader = self.leader
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    def _join(self, one: str, other: str) -> None:
        self.leader[self.found(one)] = self.found(other)

    def holder(self, box: DataBox) -> str:
        """The innermost scope around all that reads the buffers in a box; empty if there is no buffer."""
        readers = {reader for node in box.nodes if node.buffer for reader in self.readers.get(node.id, ())}
        around = [[*scopes_around(self.nodes[reader].scope)] for reader in readers - self.leader.keys()]
        common = [scopes[0] for scopes in zip(*around, strict=False) if len({*scopes}) == 1]
        return common[-1] if common else ""


def _rollouts(graph: Graph) -> list[list[Node]]:
    """The operations of networks that ran many times before the first that recorded a graph, by their places."""
    ran: dict[Hashable, list[Node]] = {}
    for node in graph.nodes.values():
        if node.kind == OP and node.grad_fn:
            break
        if node.kind == OP and node.scope:
            ran.setdefault((node.scope, node.file, node.line, node.col, node.op), []).append(node)
    return [nodes for nodes in ran.values() if len(nodes) > _MOST_CALLS]
