"""`ranks-arguments`: an op is called with other numbers on some ranks: another probability of a dropout, another
reduction of the loss, another slope.

Why it is bad: the ranks average the gradients of different functions. The mean is the gradient of none of them.

Example:

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1 + 0.4 * rank), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-arguments
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: give the op the same numbers on all ranks.

Not reported: numbers that differ from pass to pass, as numbers from the data do; ranks that call other ops or ops at
other lines; ranks that average nothing. `ranks-loss` reports a number that multiplies the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, ARE_REPLICAS, RankFound, RankRule, each_rank, odd_among
from gradviz.events.kinds import Kind
from gradviz.query.loss_factors import scaled_losses
from gradviz.query.ops import WITH_NUMBERS
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import plural

_PASSES = 4  # the most passes that are compared
_LEAST = 2  # the fewest: in one pass, the numbers may come from its data


class Called(NamedTuple):
    """An op before a pass: its name, line, arguments that are no tensors, the shape of its result, and the event."""

    op: str
    line: int
    args: str
    shape: object
    event: int


class OtherArguments(NamedTuple):
    """An op that ranks call with different arguments in each of `passes` passes: its calls by rank in the first."""

    calls: tuple[Called, ...]
    passes: int


def other_arguments(ranks: Replicas) -> OtherArguments | None:
    """The first op whose arguments differ between ranks, while each rank has the same in each of the first passes.
    None if there is none, or if the ranks do not call the same ops."""
    called = [query.of(called_before_passes) for query in ranks.queries]
    passes = list(zip(*called, strict=False))
    if len(passes) < _LEAST or not all(_are_alike(together) for together in passes):
        return None
    for place in range(min(len(calls) for together in passes for calls in together)):
        calls = [tuple(calls[place] for calls in together) for together in passes]
        arguments = {tuple(call.args for call in together) for together in calls}
        if len(arguments) == 1 and len(set(*arguments)) > 1:
            return OtherArguments(calls[0], len(passes))
    return None


def called_before_passes(query: Query) -> list[list[Called]]:
    """The ops with numbers of their own that run before each of the first passes; without the ops that only multiply
    its loss. Use `query.of(called_before_passes)`."""
    ops = query.trace.table(Kind.OP)
    named = ops.events[query.trace.named(ops["op"], WITH_NUMBERS) & (ops["in_pass"] == 0)]
    losses = query.of(scaled_losses)
    called, since = [], -1
    for number, one in enumerate(query.trace.passes[:_PASSES]):
        loss = losses[number] if number < len(losses) else None
        apart = {event for event, _ in loss.numbers} if loss is not None else set()
        events = named[(named > since) & (named < one.first)].tolist()
        called.append(
            [_called(query, event) for event in events if event not in apart and query.nodes.of_op(event)]
        )
        since = one.first
    return called


def _called(query: Query, event: int) -> Called:
    op = query.tensors.op(event)
    _, line = query.places.line(op.site)  # not the file: machines have it in different folders
    return Called(op.op, line, op.args, query.trace.shape(op.outputs[0]) if op.outputs else None, event)


def _are_alike(together: Sequence[list[Called]]) -> bool:
    """Whether ranks call the same ops at the same lines, with results of the same shapes."""
    return len({tuple((call.op, call.line, call.shape) for call in calls) for calls in together}) == 1


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if ranks.other_mode is not None:
        return  # ranks-mode reports another mode
    found = other_arguments(ranks)
    if found is None:
        return
    arguments = [call.args or "nothing" for call in found.calls]
    odd = odd_among(ranks, arguments)
    place = [*ranks.ranks].index(odd[0])
    call = found.calls[place]
    yield RankFound(
        f"{call.op}() is called with other numbers on some ranks, in each of the first "
        f"{plural(found.passes, 'pass', 'passes')}, and the gradients are averaged: {each_rank(ranks, arguments)}",
        f"give {call.op}() the same numbers on all ranks",
        odd,
        (call.event,),
    )


RULE = RankRule(
    "ranks-arguments",
    WARNING,
    "ops that ranks call with different numbers",
    _search,
    needs=(ARE_AVERAGED, ARE_REPLICAS),
)
