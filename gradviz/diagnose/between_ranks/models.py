"""The rules about what each rank trains, and how often: models, settings, modes, data and steps that are not the same
on all ranks, or should not be."""

from collections.abc import Iterator
from typing import NamedTuple

from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    ARE_REPLICAS,
    LONGEST,
    RankFound,
    RankRule,
    each_rank,
    expression_at,
    named,
    odd_among,
    odd_ranks,
    site_of_optimizer,
    site_of_step,
    values_of_each,
)
from gradviz.events.kinds import Kind
from gradviz.query.collective_calls import Collective, all_reduced, collectives, partings
from gradviz.query.failures import failures
from gradviz.query.loss_factors import scaled_losses
from gradviz.query.ops import WITH_NUMBERS
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas, frozen_on_some
from gradviz.query.writes import Author, Writes
from gradviz.words.numbers import called_ranks, plural

# How messages of DistributedDataParallel begin.
_OF_ANOTHER_MODEL = "DDP expects same model across all ranks"
_WAITED = "Expected to have finished reduction in the prior iteration"
_PASSES = 4  # the most passes whose ops are compared
_LEAST = 2  # the fewest: in one pass, numbers may come from its data, and losses may be the same by chance
_SEED = "torch.manual_seed(0)  # before the model is made; or dist.broadcast(p.data, 0) for each parameter"
_SHARE = "dist.broadcast(p.data, 0)  # for each parameter, on each rank, after this line"


@RankRule("ranks-frozen", WARNING, "parameters that some ranks have frozen, and others have not")
def frozen(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-frozen`: all ranks have the same model, but on some ranks a parameter is frozen (`requires_grad` is
    False).

    Why it is bad: the ranks do not reduce the same gradients. DistributedDataParallel refuses such a model when it is
    made. If the parameter is frozen later, or the program reduces by hand, ranks wait for one another for ever, or step
    apart.

    Example:

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        if rank == 1:
            model[0].requires_grad_(False)  # <- ranks-frozen
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            for p in model.parameters():
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: freeze the parameter on all ranks, or on none.

    Not reported: ranks with models of their own, as in a pipeline, and ranks that reduce nothing.
    """
    refused = [_has_failed(query, _OF_ANOTHER_MODEL) for query in ranks.queries]
    for query, is_refused in zip(ranks.queries, refused, strict=True):
        if not (is_refused or query.of(collectives) or len(query.of(all_reduced))):
            return  # nothing brings the ranks together
    found = frozen_on_some(ranks)
    if found is None:
        return
    frozen_ranks = ranks.where([not requires for requires in found.values])
    place = found.values.index(False)
    query, event = ranks.queries[place], found.events[place]
    when = f"when pass {found.number} begins" if found.number else "when the run ends"
    text = expression_at(query, event) if event else ""
    freezing = f"{text} = False" if text.endswith(".requires_grad") else text
    many = len(found.names) > 1
    yield RankFound(
        f"{named(found.names)} {'do' if many else 'does'} not require a gradient on "
        f"{called_ranks(frozen_ranks)} {when}, and {'do' if many else 'does'} on the others"
        f"{', for which DistributedDataParallel refuses the model' if any(refused) else ''}",
        f"{freezing if 0 < len(freezing) <= LONGEST else 'p.requires_grad_(False)'}  # on all ranks, or on none",
        frozen_ranks,
        (event,) if event else (),
        site=query.places.at(event) if event else query.places.site(query.tensors.site(found.tensors[place])),
    )


def _has_failed(query: Query, message: str) -> bool:
    return any(message in failure.message for failure in failures(query))


@RankRule("ranks-unused", WARNING, "parameters that ranks do not all use, where all wait for them")
def unused(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-unused`: a parameter gets a gradient on some ranks alone. DistributedDataParallel waits for the gradient
    on all ranks, and refuses to go on.

    Why it is bad: the rank that does not use the parameter raises an error at its next forward, and the other ranks
    wait for it or lose their connection.

    Example:

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.main, self.extra = nn.Linear(4, 1), nn.Linear(4, 1)

            def forward(self, x, with_extra):
                return self.main(x) + (self.extra(x) if with_extra else 0)

        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4), rank == 0).pow(2).mean().backward()  # <- ranks-unused
            optimizer.step()

    Cure: `DistributedDataParallel(Net(), find_unused_parameters=True)`, or use all parameters in each pass on each
    rank.

    Not reported: parameters that all ranks leave out (see `unused-parameter`), and models with
    `find_unused_parameters=True`.
    """
    number = min(len(query.trace.passes) for query in ranks.queries)
    if not number or not any(_has_failed(query, _WAITED) for query in ranks.queries):
        return
    passes = [query.trace.passes[number - 1] for query in ranks.queries]
    used = [_reached(query, one.number) for query, one in zip(ranks.queries, passes, strict=True)]
    reached = dict.fromkeys(name for names in used for name in names)
    lacking = {name: ranks.where([name not in names for names in used]) for name in reached}
    apart = next((without for without in lacking.values() if without), ())
    if not apart:
        return
    names = [name for name in reached if lacking[name] == apart]
    many = len(names) > 1
    yield RankFound(
        f"{named(names)} get{'s' * (not many)} no gradient on {called_ranks(apart)} in pass "
        f"{passes[0].number}, and {'do' if many else 'does'} on "
        f"{called_ranks([rank for rank in ranks.ranks if rank not in apart])}: DistributedDataParallel waits "
        f"for {'them' if many else 'it'} on all, and refuses to go on",
        "torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # where the model is wrapped",
        apart,
        (passes[ranks.place(apart[0])].first,),
        pass_number=passes[0].number,
    )


def _reached(query: Query, pass_number: int) -> list[str]:
    """The names of the parameters that a pass gave a gradient, in the order in which they were made."""
    came = query.trace.table(Kind.ACCUMULATED)
    tensors = sorted(came["tensor"][came["in_pass"] == pass_number].tolist())
    return [name for tensor in tensors if (name := query.trace.parameters.get(tensor))]


@RankRule("ranks-collectives", WARNING, "ranks whose collectives are not the same, in the same order")
def calls(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-collectives`: the n-th collective of a rank is not that of the other ranks: it is another collective, has
    another shape, is missing, or belongs to another parameter.

    Why it is bad: ranks wait for one another in a collective: the run hangs until its timeout, or combines tensors that
    do not belong together.

    Example:

        losses = torch.ones(2 + rank)
        dist.all_reduce(losses)  # <- ranks-collectives

    Cure: call the same collectives, with the same shapes, in the same order on each rank.

    Not reported: collectives of a group of some ranks, and collectives that PyTorch calls itself.
    """
    parting, mixed_up = partings(ranks.queries), ranks.mixed_up
    if parting is not None:
        rank, call = next((rank, call) for rank, call in ranks.by_rank(parting.values).items() if call is not None)
        yield RankFound(
            f"collective {parting.number} is not the same on all ranks: "
            f"{each_rank(ranks, list(map(_called, parting.values)))}",
            "call the same collectives, with the same shapes, on each rank",
            (rank,),
            (call.event,),
        )
    elif mixed_up is not None:
        yield RankFound(
            f"collective {mixed_up.number} puts together what belongs to different parameters: "
            f"{each_rank(ranks, mixed_up.values)}",
            "call the collectives for the parameters in the same order on each rank, as model.parameters() has them",
            events=mixed_up.events[:1],
        )


def _called(call: Collective | None) -> str:
    if call is None:
        return "none any more"
    return f"{call.name} of shape {call.shape}" if call.has_tensor else call.name


@RankRule("ranks-steps", WARNING, "ranks that make fewer steps than others", needs=(ARE_AVERAGED,))
def steps(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-steps`: a rank makes fewer steps than the others, though the ranks average their gradients.

    Why it is bad: the other ranks wait for this rank in the next all_reduce, or go on alone, and the models part.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3 - rank):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            if step < 2:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
            optimizer.step()  # <- ranks-steps

    Cure: give each rank the same number of batches: `DistributedSampler(dataset, drop_last=True)`, or `model.join()` of
    DistributedDataParallel around the loop.

    Not reported: ranks that train models of their own.
    """
    counts = [len(query.trace.table(Kind.STEPPED).events) for query in ranks.queries]
    if len(set(counts)) < 2:
        return
    rank = min((count, rank) for rank, count in ranks.by_rank(counts).items() if count)[1]
    as_many_passes = len({len(query.trace.passes) for query in ranks.queries}) == 1
    yield RankFound(
        "the ranks do not make the same number of steps: "
        f"{each_rank(ranks, [plural(count, 'step') for count in counts])}",
        "optimizer.step()  # on all ranks, after each pass that it follows on any"
        if as_many_passes
        else "give each rank the same number of batches: DistributedSampler(dataset, drop_last=True), or model.join()",
        ranks.where([count == min(counts) for count in counts]),
        site=site_of_step(ranks.ranks[rank]),
    )


@RankRule("ranks-start", WARNING, "replicas that differ before the first step", needs=(ARE_AVERAGED,))
def start(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-start`: parameters differ between the ranks before the first pass, though the ranks average their
    gradients.

    Why it is bad: the ranks train different models with the mean of all gradients, which is the gradient of no model.

    Example:

        torch.manual_seed(rank)
        model = nn.Linear(4, 1)  # <- ranks-start
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(7 + rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: seed all ranks alike before the model is made, or send the values of rank 0 to all ranks:
    `dist.broadcast(p.data, 0)` for each parameter. DistributedDataParallel does this when it is made; later writes to
    the parameters have to happen on all ranks.

    Not reported: ranks that do not average their gradients, because each has a part of the model.
    """
    found = ranks.starts_apart
    if not found:
        return
    first, names = found[0], [one.name for one in found]
    values, tensors = values_of_each(ranks, first.values), ranks.by_rank(first.tensors)
    apart = odd_ranks(ranks, first.values)
    where = "each rank" if len(apart) == len(ranks.ranks) else called_ranks(apart)
    begins = f"{named(names)} begin{'s' * (len(found) == 1)} with other values on {where}"
    writes = {rank: _last_write(ranks.ranks[rank], tensor) for rank, tensor in tensors.items()}
    writing = [rank for rank, event in writes.items() if event]
    if writing and len(writing) < len(writes):
        yield RankFound(
            f"{begins}, though the gradients are averaged: this line writes to {named(names[:1])} on "
            f"{called_ranks(writing)} alone, and it is {values}",
            _SHARE,
            tuple(writing),
            (writes[writing[0]],),
        )
        return
    one = ranks.ranks[apart[0]]
    yield RankFound(
        f"{begins}, though the gradients are averaged: {named(names[:1])} is {values}",
        _SEED,
        apart,
        site=one.places.site(one.tensors.site(tensors[apart[0]])),
    )


def _last_write(query: Query, tensor: int) -> int:
    """The last write of a rank to a parameter before the first pass, by the program's own lines; 0 if there is none."""
    writes = query.of(Writes)
    made = query.tensors.made(tensor)
    early = (writes.leaves == tensor) & (writes.events < query.trace.passes[0].first)
    later = [event for event in writes.events[early].tolist() if made is None or event > made.index]
    return next((event for event in later[::-1] if query.tensors.writer(event) != "broadcast"), 0)


@RankRule("ranks-settings", WARNING, "optimizers with other settings on some ranks", needs=(ARE_AVERAGED, ARE_REPLICAS))
def settings(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-settings`: an optimizer steps with other settings on one rank than on another: another learning rate,
    another weight decay.

    Why it is bad: the same gradient makes another step on each rank, and the replicas part.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + rank))  # <- ranks-settings
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: give the optimizer the same settings on all ranks. A scheduler that follows a loss (ReduceLROnPlateau) needs
    the same loss on all ranks: `dist.all_reduce(loss)` before its step.

    Not reported: ranks that train different models, or different parts of a model.
    """
    for found in ranks.other_settings:
        apart = odd_among(ranks, [repr(value) for value in found.values])
        query = ranks.ranks[apart[-1]]
        yield RankFound(
            f"the optimizer's settings are not the same on all ranks at step {found.number}: "
            f"{each_rank(ranks, [f'{found.name}={value!s}' for value in found.values])}",
            "make the same optimizer on all ranks"
            if found.name == "optimizer"
            else f"give {found.name} the same value on all ranks",
            apart,
            site=site_of_optimizer(query) if found.number == 1 else site_of_step(query, found.number),
        )


@RankRule("ranks-mode", WARNING, "modules in evaluation mode on some ranks alone", needs=(ARE_AVERAGED,))
def mode(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-mode`: a module is in evaluation mode on some ranks when it is called for a pass, and in training mode on
    others.

    Why it is bad: dropout is off on some ranks, and batch norm uses other statistics: the ranks compute gradients of
    different functions.

    Example:

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            if rank == 0 and step == 1:
                model.eval()
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-mode
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: call `model.train()` before the pass on each rank, also on the rank that evaluates in between.

    Not reported: calls in evaluation mode that no pass follows.
    """
    found = ranks.other_mode
    if found is None:
        return
    off = ranks.where([not is_training for is_training in found.values])
    yield RankFound(
        f"{found.name} is in evaluation mode on {called_ranks(off)} for pass {found.number}, and in training mode on "
        f"{called_ranks(ranks.where(found.values))}",
        f"{found.name}.train()  # before this call, on each rank",
        off,
        (found.events[ranks.place(off[0])],),
        pass_number=found.number,
    )


@RankRule(
    "ranks-drift", WARNING, "replicas that part later, though their gradients are the same", needs=(ARE_AVERAGED,)
)
def drift(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-drift`: parameters that were the same on all ranks begin to differ, though their gradients are the same.

    Why it is bad: the ranks average gradients of different models, and the models part more and more.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()
            with torch.no_grad():
                model.weight.add_(0.01 * torch.randn(1, 4))  # <- ranks-drift

    Cure: write the same values to parameters on all ranks, or send the values of rank 0 to all ranks afterwards:
    `dist.broadcast(p.data, 0)`.

    Not reported: parameters that part because their gradients do (see `ranks-apart`), or the settings of their
    optimizers (see `ranks-settings`).
    """
    drift = ranks.drift
    if drift is None or any(one.number <= drift.step for one in ranks.other_settings):
        return
    if any(one.step <= drift.step for one in ranks.gradients_apart):
        return
    spans = zip(ranks.ranks.items(), drift.tensors, drift.since, drift.until, strict=True)
    written = {rank: _written(query, t, since, until) for (rank, query), t, since, until in spans}
    writing = [rank for rank, event in written.items() if event]
    began = (
        f"{named(drift.names)} {'are' if len(drift.names) > 1 else 'is'} the same on all ranks before step "
        f"{drift.step}, and not after it: {named(drift.names[:1])} is {values_of_each(ranks, drift.values)}"
    )
    if writing:
        message = f"{began}; this line writes to it in between"
        yield RankFound(message, _SHARE, tuple(writing), (written[writing[0]],))
        return
    apart = odd_ranks(ranks, drift.values)
    yield RankFound(began, _SHARE, apart, site=site_of_step(ranks.ranks[apart[0]], drift.step))


_NOT_ITS_OWN = (Author.OPTIMIZER, Author.UNKNOWN)


def _written(query: Query, leaf: int, since: int, until: int) -> int:
    """The first write to a parameter between two events that no optimizer made; 0 if there is none."""
    writes = query.of(Writes)
    between = (writes.leaves == leaf) & (writes.events > since) & (writes.events < until)
    events = writes.events[between].tolist()
    return next((event for event in events if writes.author(event, leaf) not in _NOT_ITS_OWN), 0)


@RankRule("ranks-data", WARNING, "ranks that have the same data", needs=(ARE_AVERAGED, ARE_REPLICAS))
def data(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-data`: the ranks compute the same losses, pass by pass: all of them have the same data.

    Why it is bad: the ranks do the same work. The mean of their gradients is the gradient of a single rank. A part of
    the data is never used, or the batch is smaller than it was meant to be.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-data
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: give each rank its own part of the data: `DataLoader(dataset, sampler=DistributedSampler(dataset))`, with
    `sampler.set_epoch(epoch)`; or seed random data with the rank.

    Not reported: ranks that hold parts of one model and so need the same data; losses that the ranks have averaged.
    """
    if ranks.same_roots < _LEAST:
        return
    first = ranks.queries[0].trace.passes[0]
    yield RankFound(
        f"the loss is the same on all ranks, in each of {ranks.same_roots} passes: the ranks compute with the same "
        "data",
        "DataLoader(dataset, sampler=torch.utils.data.DistributedSampler(dataset))",
        events=(first.first,),
        pass_number=first.number,
    )


@RankRule("ranks-arguments", WARNING, "ops that ranks call with different numbers", needs=(ARE_AVERAGED, ARE_REPLICAS))
def arguments(ranks: Replicas) -> Iterator[RankFound]:
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

    Not reported: numbers that differ from pass to pass, as numbers from the data do; ranks that call other ops or ops
    at other lines; ranks that average nothing. `ranks-loss` reports a number that multiplies the loss.
    """
    if ranks.other_mode is not None:
        return  # ranks-mode reports another mode
    passes = list(ranks.together(called_before_passes))
    kinds = ({tuple((one.op, one.line, one.shape) for one in calls) for calls in each} for each in passes)
    if len(passes) < _LEAST or any(len(kind) > 1 for kind in kinds):
        return
    for place in range(min(len(calls) for together in passes for calls in together)):
        by_pass = [[calls[place] for calls in together] for together in passes]
        arguments = {tuple(call.args for call in together) for together in by_pass}
        if len(arguments) == 1 and len(set(*arguments)) > 1:  # the same in each pass, and not on each rank
            texts = [call.args or "nothing" for call in by_pass[0]]
            odd = odd_among(ranks, texts)
            call = by_pass[0][ranks.place(odd[0])]
            yield RankFound(
                f"{call.op}() is called with other numbers on some ranks, in each of the first "
                f"{plural(len(passes), 'pass', 'passes')}, and the gradients are averaged: {each_rank(ranks, texts)}",
                f"give {call.op}() the same numbers on all ranks",
                odd,
                (call.event,),
            )
            return


class Called(NamedTuple):
    """An op before a pass: its name, line, arguments that are no tensors, the shape of its result, and the event."""

    op: str
    line: int
    args: str
    shape: object
    event: int


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
        called.append([_call(query, event) for event in events if event not in apart and query.nodes.of_op(event)])
        since = one.first
    return called


def _call(query: Query, event: int) -> Called:
    op = query.tensors.op(event)
    _, line = query.places.line(op.site)  # not the file: machines have it in different folders
    return Called(op.op, line, op.args, query.trace.shape(op.outputs[0]) if op.outputs else None, event)


@RankRule("ranks-buffers", NOTE, "running statistics that differ between the ranks", needs=(ARE_AVERAGED, ARE_REPLICAS))
def buffers(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-buffers`: the running statistics of a normalisation differ between the ranks when they are used again.

    Why it is bad: in evaluation mode each rank computes other results, and a saved model has the statistics of one
    rank.

    Example:

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-buffers
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`, or send the buffers of rank 0 to all ranks before
    each call, as DistributedDataParallel does by itself: `dist.broadcast(buffer, 0)` for each of `model.buffers()`.

    Not reported: statistics that are the same again before the next call.
    """
    found = ranks.buffer_apart
    if found is None:
        return
    model = found.name.partition(".")[0]
    yield RankFound(
        f"{found.name} differs between the ranks when it is used again: {values_of_each(ranks, found.values)}",
        f"for buffer in {model}.buffers(): dist.broadcast(buffer, 0)  # on each rank, before this call",
        events=found.events[:1],
    )


@RankRule(
    "ranks-dropout", NOTE, "dropout that drops the same elements on all ranks", needs=(ARE_AVERAGED, ARE_REPLICAS)
)
def dropout(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-dropout`: dropout drops the same elements of different data on all ranks: their random numbers are the
    same.

    Why it is bad: the ranks should sample independently. With equal masks the mean over the ranks is as noisy as a
    single rank.

    Example:

        torch.manual_seed(rank)
        data = torch.randn(3, 4, 4)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(data[step]).pow(2).mean().backward()  # <- ranks-dropout
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: `torch.manual_seed(seed + rank)` after the model is made.

    Not reported: masks of tensors whose elements were not recorded; ranks that have the same data (see `ranks-data`).
    """
    event = ranks.same_dropout
    if event < 0 or ranks.same_roots:
        return
    yield RankFound(
        "dropout drops the same elements on all ranks, though their data differ",
        "torch.manual_seed(dist.get_rank())  # after the model is made",
        events=(event,),
    )
