"""`late-clip`: a gradient is changed in place (clipped, scaled) after the step that used it, and no other step uses
it before it is cleared or the run ends; or it is clipped before backward() has computed it; or the parameters to clip
are those of an iterator that has given them away before.

Why it is bad: the limit has no effect. The step has already used the whole gradient, or there is no gradient yet.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- late-clip
        loss.backward()
        optimizer.step()

Cure: clip between `loss.backward()` and `optimizer.step()`.

Not reported: gradients that are clipped between `backward()` and the step, gradients that the program itself sets
before a step.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, typed_for
from gradviz.diagnose.own_words import in_order
from gradviz.diagnose.rule import ERROR, Case, Found, Kind, Rule
from gradviz.query.source_trees import assigned_before
from gradviz.query.training import ACCUMULATED, CHANGED, CLEARED, STEPPED
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct

_LEAST = 2  # calls
_ITERATORS = {"filter", "map", "chain", "parameters"}


@Rule(
    "late-clip",
    ERROR,
    "gradients that are clipped where it has no effect: before backward() or after the step",
    follows=("detached-path", "no-graph"),
)
def late_clip(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    changed = lives.whats == CHANGED
    late = changed & (lives.before(came) > 0) & (lives.before(used) > 0) & (lives.after(used) == 0)
    late &= lives.after(came) == 0
    yield from _without_gradients(case)
    yield from _spent(case)
    cleared = lives.whats == CLEARED
    early = changed & (lives.before(came) == 0) & (lives.before(used) == 0) & (lives.after(came) > 0)
    early &= lives.windows == np.append(0, lives.windows[:-1])[: len(lives.windows)]
    early &= np.append(False, cleared[:-1])[: len(cleared)] & ~_next_is(used, came | used)
    for events in case.by_site(distinct(lives.events[early])).values():
        leaves = tuple(distinct(lives.leaves[contained(lives.events, events) & early]).tolist())
        yield _before(case, int(events[0]), leaves)
    writes, sites = case.query.of(Writes), case.query.places.of_events
    last = max([*case.training.stepped.events.tolist(), *case.training.by_hand[0].tolist()], default=-1)
    for events in case.by_site(distinct(lives.events[late])).values():
        if events.min() > last or "inf" in case.query.places.line_text(case.site(int(events[0]))):
            continue  # the program looks at gradients after the training, or measures their norm
        leaves = tuple(distinct(lives.leaves[contained(lives.events, events)]).tolist())
        if case.site(int(events[0])) in sites[writes.events[contained(writes.leaves, leaves)]]:
            continue  # it converts or moves the parameters, too
        yield Found(
            f"the gradients of {case.called(leaves)} are changed after the step that used them: it has no effect",
            Fix(_in_order(case, int(events[0])), _between),
            (int(events[0]),),
            tensors=leaves,
        )


def _next_is(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Whether the first row after each row that is marked in `among` is marked in `wanted`, too."""
    rows = np.flatnonzero(among)
    following = np.searchsorted(rows, np.arange(len(among)), side="right")
    known = following < len(rows)
    result = np.zeros(len(among), bool)
    result[known] = wanted[rows[following[known]]]
    return result


def _without_gradients(case: Case) -> Iterator[Found]:
    """Calls of a function that clips, at a line where it never finds a gradient, or where it raises because there is
    none."""
    clipped = case.trace.table(Kind.CLIPPED)
    counts = clipped.lists("tensors").counts
    for site, events in case.by_site(clipped.events).items():
        own = contained(clipped.events, events)
        often = len(events) >= _LEAST and len(case.trace.passes) > 0
        if not counts[own].any() and (often or _failed_at(case, site)) and not _came_before(case, int(events[0])):
            yield replace(_before(case, int(events[0]), ()), tensors=tuple(case.training.holders))


def _spent(case: Case) -> Iterator[Found]:
    """Calls of a function that clips which are given no parameter again and again, though gradients came: an iterator
    gave its parameters away before."""
    clipped = case.trace.table(Kind.CLIPPED)
    counts = clipped.lists("tensors").counts
    for site, events in case.by_site(clipped.events).items():
        empty = events[counts[contained(clipped.events, events)] == 0].tolist()
        place = case.place(int(events[0]))
        call = case.query.places.tree(site)
        name = ast.unparse(call.args[0]) if isinstance(call, ast.Call) and call.args else ""
        made = assigned_before(case.query, place, name)
        is_one = len(distinct(case.training.stepped["optimizer"])) == 1 or len(empty) < len(events)
        if len(empty) < _LEAST or made is None or not is_one:
            continue
        value = made.value
        called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
        is_iterator = isinstance(value, ast.GeneratorExp) or called in _ITERATORS
        if is_iterator and all(_came_before(case, event) for event in empty):
            listed = f"list({ast.unparse(value)})"
            yield Found(
                f"{name}, made at line {made.lineno}, is an iterator and has given its parameters away before: "
                "this call clips nothing",
                Fix(f"{name} = {listed}  # line {made.lineno}", typed_for(ast.unparse(value), listed, value.lineno)),
                (empty[0],),
                tensors=tuple(case.training.holders),
            )


def _came_before(case: Case, event: int) -> bool:
    """Whether gradients came between the last step before an event and the event. If so, backward() was in time."""
    came, steps = case.trace.table(Kind.ACCUMULATED).events, case.training.stepped.events
    since = int(steps[steps < event].max(initial=-1))
    return bool(((came > since) & (came < event)).any())


def _failed_at(case: Case, site: int) -> bool:
    """Whether the exception that ended the program came from a line."""
    place = case.query.places.site(site)
    return place is not None and any(
        failure.site is not None and not failure.node and failure.site.place.line == place.place.line
        for failure in case.failures
    )


def _before(case: Case, event: int, leaves: tuple[int, ...]) -> Found:
    of = f" of {case.called(leaves)}" if leaves else ""
    return Found(
        f"the gradients{of} are clipped before backward() has computed them: it has no effect",
        Fix(_in_order(case, event), _between),
        (event,),
        tensors=leaves,
    )


def _in_order(case: Case, event: int) -> str:
    """The three calls in their right order: backward(), the call at the event, step()."""
    begun = _nearest([backward_pass.first for backward_pass in case.trace.passes], event)
    stepped = _nearest(case.training.stepped.events.tolist(), event)
    if not begun:  # the program ended before its first backward()
        clips = case.words.expression(case.site(event), 80) or "clip the gradients"
        return f"loss.backward(); {clips}; optimizer.step()  # in this order"
    return in_order(case, *map(case.site, [*begun, event, *stepped]))


def _nearest(events: list[int], event: int) -> list[int]:
    """The last of the events before an event, or else the first; empty if there is none."""
    before = [one for one in events if one < event]
    return before[-1:] or events[:1]


def _between(spot: Spot) -> list[Edit]:
    """A statement that clips gradients, moved before the step in its block."""
    source, statement = spot.source, spot.statement
    loop = source.loop(statement)
    if loop is not None and not source.calls("step", within=loop):
        statement = loop
    steps = [other for other in source.siblings(statement) if source.calls("step", within=other)]
    if not steps:
        return []
    head, _, body = source.code(statement).partition("\n")
    is_short = bool(body) and "\n" not in body  # a loop with one statement fits any indentation on one line
    moved = f"{head} {body.strip()}" if is_short else source.code(statement)
    return [source.removed(statement), source.before(steps[0], moved)]
