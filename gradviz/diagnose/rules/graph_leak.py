"""`graph-leak`: a tensor that lives on from pass to pass keeps the graphs of all passes alive. Each time that its
line runs, the tensor leads to the nodes of one more pass, and no pass ever goes through it.

Why it is bad: memory grows with each pass until none is left, and there is no other sign. Where passes keep the saved
tensors (`retain_graph=True`), the finding says how much memory these take at least.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for step in range(5):
        loss = model(torch.randn(4, 3)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # <- graph-leak

Cure: keep numbers, not tensors with a graph: `total += loss.item()`, `losses.append(loss.detach())`.

Not reported: graphs of inner steps that wait for the outer one; graphs in cycles of references, as a closure that holds
itself, which wait until Python collects them.
"""

import ast
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, bracketed
from gradviz.diagnose.loops import given_away, keeping_lines
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import GraphsAlive, Kind
from gradviz.query.flow import op_of
from gradviz.query.passes import each_left_out
from gradviz.query.query import Query
from gradviz.query.source_trees import assigned_to, statement_at
from gradviz.query.training import STEPPED
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo, Site
from gradviz.tracefile.sound import dtype_of
from gradviz.words.numbers import size


def held_bytes(query: Query, alive: GraphsAlive) -> int:
    """The least number of bytes that saved tensors of graphs of earlier passes take, as a pass ends at which these
    graphs are alive.

    Counted are the tensors that an op computed and that were saved by nodes which are alive for certain, because a
    living node leads to them, and through which each pass so far kept the saved tensors (`retain_graph`). Memory that
    several tensors share counts once. Leaves and data are not counted. 0 if a pass was not recorded in detail: it may
    have freed saved tensors."""
    passes = [one for one in query.trace.passes if one.number <= alive.in_pass]
    if not all(one.is_in_detail and one.recorded for one in passes):
        return 0
    bases = query.trace.states.base
    memories = {
        query.memory.home(bases(saved.tensor) or saved.tensor, query.nodes.made(node) or 0)
        for node in _keeping_nodes(query, alive)
        for saved in query.nodes.saved(node)
        if saved.tensor
    }
    return sum(_size_if_computed(query, tensor) for tensor in memories if tensor > 0)


def _keeping_nodes(query: Query, alive: GraphsAlive) -> list[int]:
    """The nodes of earlier passes that are alive for certain and have their saved tensors."""
    earlier = [living.number for living in alive.graphs]
    beginnings = [alive.in_pass, *(earlier if alive.are_whole else ())]
    roots = [query.passes.began(n).roots for n in beginnings if n in query.passes.by_number]
    # of several roots it is not known which is alive
    living = query.nodes.walk([own[0].node for own in roots if len(own) == 1])
    received, began = query.trace.table(Kind.RECEIVED), query.trace.table(Kind.PASS_BEGAN)
    so_far = received.events < alive.index
    freeing = began["number"][~began["retain_graph"]]
    freed = set(received["node"][so_far & contained(received["in_pass"], freeing)].tolist())
    in_earlier = set(received["node"][contained(received["in_pass"], np.array(earlier))].tolist())
    return [node for node in living if node in in_earlier and node not in freed]


def _size_if_computed(query: Query, tensor: int) -> int:
    """The bytes of a tensor; 0 if no op computed it, or if they are not known."""
    form = query.trace.states.form(query.trace.states.first(tensor)) if op_of(query, tensor) is not None else None
    dtype = None if form is None else dtype_of(form.dtype)
    return 0 if form is None or dtype is None else math.prod(form.shape) * dtype.itemsize


_LEAST = 3  # additions at one line
_OF_A_LINE = 2  # the fewest graphs from one line: with fewer, the program has many lines and no loop
_FREED_AT_ONCE = 2  # the fewest graphs: a program may replace the last loss beside those that it keeps
_NUMBERS = "keep .item() or .detach() of it: a number, or a tensor without a graph"
_NODES = 256  # the most nodes of a graph whose tensors are looked at


@Rule("graph-leak", WARNING, "graphs that are kept alive from pass to pass", needs=(Need.PASSES, Need.DETAILS))
def graph_leak(case: Case) -> Iterator[Found]:
    chain = _longest_chain(case)
    if chain is not None:
        yield chain
    yield from _alive(case, case.place(chain.events[0]) if chain is not None else None)


def _longest_chain(case: Case) -> Found | None:
    """The finding for nodes that no pass went through and that hold more graphs each time that their line runs. None if
    there are no such nodes."""
    table = case.trace.table(Kind.NODE)
    held = _held(case)
    rows = np.flatnonzero(held > 0)
    longest: tuple[int, np.ndarray] | None = None
    begun = case.trace.table(Kind.PASS_BEGAN)
    for site in distinct(table.sites[rows]).tolist():
        of_line = rows[table.sites[rows] == site]
        passes_before = np.searchsorted(begun.events, table.events[of_line])
        # the last before each pass, behind those in detail
        seen = np.append(passes_before[1:] != passes_before[:-1], True)
        if each_left_out(case.trace):
            seen &= contained(begun["number"][passes_before - 1], case.trace.in_detail)
        of_line = of_line[seen]
        grows = site and len(of_line) >= _LEAST and np.all(np.diff(held[of_line]) > 0)
        if grows and (longest is None or held[of_line[-1]] > held[longest[1][-1]]):
            longest = site, of_line
    if longest is None:
        return None
    site, of_line = longest
    result = case.called(case.query.nodes.outputs(int(table["node"][of_line[-1]])))
    alive = case.trace.table(Kind.ALIVE)
    memory = _held_text(case, int(alive.events[-1])) if len(alive) else ""
    at_last = memory and f"; at the end of pass {alive['in_pass'][-1]} they {memory}"
    return Found(
        f"{result} keeps the graphs of {case.at_least(len(of_line))} passes alive: it has a grad_fn, and "
        f"grows with each{at_last}",
        Fix(_without_graph(case, int(table.events[of_line[-1]]), int(table["node"][of_line[-1]])), _detached),
        (int(table.events[of_line[0]]), int(table.events[of_line[-1]])),
        site=site,
    )


def _without_graph(case: Case, event: int, node: int) -> str:
    """The statement that keeps graphs, with numbers in their place, or tensors without a graph."""
    statement = statement_at(case.query, case.place(event))
    target = assigned_to(statement)
    if not target or not isinstance(statement, ast.Assign | ast.AugAssign):
        return _NUMBERS

    def calling(method: str) -> ast.Call:
        return ast.Call(ast.Attribute(statement.value, method), [], [])

    detached = calling("detach")
    if isinstance(statement, ast.Assign):
        return f"{target} = {ast.unparse(detached)}"
    is_scalar = all((case.trace.shape(tensor) or (None,))[0] == () for tensor in case.query.nodes.outputs(node))
    added = calling("item") if is_scalar else detached
    text = ast.unparse(ast.AugAssign(statement.target, statement.op, added))
    return f"{text}  # or {ast.unparse(detached)}" if is_scalar else text


def _held(case: Case) -> np.ndarray:
    """For each node that no pass went through, the number of paths from it to nodes of passes; 0 for other nodes."""
    table = case.trace.table(Kind.NODE)
    edges = table.lists("edges")
    ran = case.query.nodes.have_run
    row_of = {node: row for row, node in enumerate(table["node"].tolist())}
    held = np.zeros(len(table), np.float64)
    for row in np.flatnonzero(~ran).tolist():
        for node in edges.of(row)[:, 0].tolist():
            at = row_of.get(node)
            if at is not None:
                held[row] += 1 if ran[at] else held[at]
    return held


def _alive(case: Case, chained: Site | None) -> Iterator[Found]:
    """The finding from ALIVE events, which count the nodes that outlive their passes. The finding of a chain explains
    them too, unless a line other than that of the chain keeps them."""
    table = case.trace.table(Kind.ALIVE)
    outside_steps = ~contained(table["in_pass"], sorted(case.training.inside_steps))
    rows, least = _last_of_steps(case, np.flatnonzero(outside_steps))
    lists = table.lists("graphs")
    counts = []
    for row, first in zip(rows.tolist(), least.tolist(), strict=True):
        counts.append(_graphs(case, [n for n in lists.of(row)[:, 0].tolist() if n < first]))
    grew = np.diff(counts) > 0
    if grew.sum() < _LEAST - 1:
        return
    by_number = case.query.passes.by_number
    sites = Counter(by_number[n].site for n in lists.of(int(rows[-1]))[:, 0].tolist() if n in by_number)
    if sites and max(sites.values()) < _OF_A_LINE:
        return
    number = int(table["in_pass"][outside_steps][-1])
    if each_left_out(case.trace) and number != case.trace.in_detail[-1]:
        return  # they were freed meanwhile
    backward_pass = case.query.passes.by_number[number]
    lines, name = _keeping(case, backward_pass)
    # with a line that keeps a tensor, graphs may be freed now and then
    if not name and not grew[1 - _LEAST :].all():
        return
    if chained is not None and (not lines or chained.place.line in [line.place.line for line in lines]):
        return
    alive = [set(lists.of(row)[:, 0].tolist()) for row in range(len(table))]
    are_garbage = not name and _are_garbage(alive)
    if are_garbage and len(_left_over(alive) & alive[-1]) < _LEAST:
        return
    keeper = " or ".join(f"line {line.place.line}" for line in lines) if len(lines) > 1 else "this line"
    what = f"{keeper} keeps {name}, and with it the graph" if name else "something keeps the graphs"
    held = _held_text(case, int(table.events[outside_steps][-1]))
    also, cure = f", and {held}" if held else "", _detached if len(lines) == 1 else None
    yield Found(
        f"{what} of {'several passes' if are_garbage else 'each pass'}: at the end of pass {number}, those of "
        f"{counts[-1]} earlier ones are still alive{also}",
        Fix(f"keep {name or 'loss'}.item() or {name or 'loss'}.detach(), not the tensor with its graph", cure),
        (int(table.events[outside_steps][-1]), backward_pass.first),
        site=lines[0] if len(lines) == 1 else max(sites, key=lambda one: sites[one], default=backward_pass.site),
        number=number,
    )


def _are_garbage(alive: Sequence[set[int]]) -> bool:
    """Whether graphs, by the passes whose graphs are alive after each pass, wait in cycles of references until Python
    collects them: several are freed at once, while an older one stays, which an earlier collection had passed on to an
    older generation. What a program keeps is freed in the order in which it was kept, or all at once."""
    for before, after in itertools.pairwise(alive):
        freed = before - after
        if len(freed) >= _FREED_AT_ONCE and min(before) < min(freed):
            return True
    return False


def _left_over(alive: Sequence[set[int]]) -> set[int]:
    """The graphs that stayed when an older and a younger graph were freed at once: the program keeps them. A collection
    frees all that is younger than the oldest graph that it frees."""
    return {
        graph
        for before, after in itertools.pairwise(alive)
        if (freed := before - after)
        for graph in before & after
        if min(freed) < graph < max(freed)
    }


def _held_text(case: Case, event: int) -> str:
    """How much memory living graphs hold; empty if it is not known that they hold any."""
    alive = case.trace.event(event)
    assert isinstance(alive, GraphsAlive)
    held = held_bytes(case.query, alive)
    return f"hold at least {size(held)} of saved tensors" if held else ""


def _last_of_steps(case: Case, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last of these rows between each two steps, and for each row the first pass since the step before it. Graphs
    of that pass or later may be meant for a pass that is still to come, as the inner graphs of MAML are. If the run has
    too few steps: all rows, and a pass number above all others."""
    steps = distinct(case.training.lives.events[case.training.lives.whats == STEPPED])
    table = case.trace.table(Kind.ALIVE)
    before = np.searchsorted(steps, table.events[rows])
    last = np.append(before[1:] != before[:-1], True)[: len(rows)]
    if last.sum() < _LEAST:
        return rows, np.full(len(rows), np.iinfo(np.int64).max)
    begun = case.trace.table(Kind.PASS_BEGAN)
    since = np.append(0, steps)[before[last]]
    at = np.minimum(np.searchsorted(begun.events, since), len(begun) - 1)
    return rows[last], begun["number"][at]


def _graphs(case: Case, numbers: list[int]) -> int:
    """The number of graphs that these passes went through. Passes from the same roots share a graph. A pass that is not
    in the trace (`--last`) counts as one graph."""
    passes = case.query.passes
    return len(
        {
            tuple(root.node for root in passes.began(number).roots) if number in passes.by_number else number
            for number in numbers
        }
    )


def _keeping(case: Case, backward_pass: PassInfo) -> tuple[list[Site], str]:
    """The lines that may keep a tensor from the graph of a pass, and the name of the tensor;
    ([], "") if there are none. Of several tensors, the one that was made last."""
    site = case.query.places.site(backward_pass.site)
    roots = [root.node for root in case.query.passes.began(backward_pass.number).roots]
    nodes = sorted(case.query.nodes.walk(roots), reverse=True)[:_NODES]
    tensors = [t for node in nodes for t in case.query.nodes.outputs(node) if t]
    made = {name: case.query.tensors.maker(t) for t in tensors[::-1] if (name := case.query.names.of(t))}
    by = case.query.tensors.maker(tensors[0]) if tensors else None
    function = case.place(by)
    if site is None:
        return [], ""
    function_name = function.place.function.rpartition(".")[2] if function is not None else ""
    lines = list(keeping_lines(case, site.place.file, made, function_name))
    lines = lines or list(given_away(case, site.place.file, made))
    latest_first = sorted(lines, key=lambda line: -(made.get(line[1]) or 0))
    if not latest_first:
        return [], ""
    name = latest_first[0][1]
    sites = [case.query.places.of_line(site.place.file, line) for line, own in latest_first if own == name]
    return list(dict.fromkeys(filter(None, sites))), name


def _detached(spot: Spot) -> list[Edit]:
    """`total += loss.detach()` in place of `total += loss`; the same for a value that is appended."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.AugAssign | ast.Assign):
        value = statement.value
        longer = value.right if isinstance(value, ast.BinOp) else value
        kept = longer.elts if isinstance(longer, ast.List) else [value]
    else:
        added = spot.calls_here("append") if isinstance(statement, ast.Expr) else []
        kept = [call.args[0] for call in added if call.args]
    return [source.replaced(value, f"{bracketed(source, value)}.detach()") for value in kept[:1]]
