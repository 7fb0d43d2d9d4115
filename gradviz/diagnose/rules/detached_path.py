"""`detached-path`: a leaf that should learn never gets a gradient, or none from a later pass on, because an event on
every path from it to the root blocks gradients: detach(), .data, no_grad, an op that is not differentiable, or plain
numbers in between; or the backward of a custom Function returns None on the way to it. Also reported: one path of
several that is cut (a term of a loss, a use of a layer, a part of a result that is joined with the rest again, the only
input of a part, as in `decoder(q.sample())`, the state before each step of a recurrence), a term that compares a tensor
with its own numbers, and a root that was made from numbers.

Why it is bad: no gradient comes back through the cut. The leaf keeps its first value, while the loss may still fall
because other leaves learn.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = (x ** 2).detach()  # <- detached-path
    z = y * 3
    z.backward()

Cure: remove the call that blocks the gradient between the leaf and the loss: `.detach()`, `.data`, `.item()`,
`torch.no_grad()`. Replace an op that has no derivative by a differentiable op.

Not reported: a cut that keeps one network out of the pass of another (a generator in the pass of its discriminator), a
target network, an evaluation, a frozen copy, a number that is only logged, a probe on detached features, a recurrence
that is cut every few steps, a sampled action beside its log-probability, a part that a library's own code cuts off, or
a whole leaf that it cuts off and no optimizer holds. A decoder behind codes without a straight-through estimate,
`decoder(q.detach())`, looks like such a probe, and a layer under no_grad that is added to its own results like a target
of itself. The second call of a net in a difference, cut off, looks like the target of a consistency loss, whether it is
the negative of a ranking or the prior of a divergence; `exp(logp - logp.detach())` is meant as 1 with a gradient, and
looks like a ratio to old values; one side of a similarity, `a @ b.detach().T`, looks like the stopped gradient of a
Siamese net. A note only: a layer that reads what is cut off, whose result a later op combines with it, as a gate does,
one way of several from a result, keys beside queries, the prediction beside its target, or one of the two states of a
recurrence: that may be meant.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.blocked import blocks
from gradviz.diagnose.cut_cures import how_cut, without_cut
from gradviz.diagnose.cuts import Cut, Place, compared_with_itself, partial_cuts
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Fix, Found, Need, Rule, Site
from gradviz.diagnose.without_gradient import Wanting, lacking, lacks_gradient, rootless
from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.copies import copied_from
from gradviz.query.flow import place_of_cut
from gradviz.query.missing_gradients import Lack, Lacks
from gradviz.query.pass_owners import PassOwners, optimizer_name
from gradviz.query.source_trees import names_read
from gradviz.sets import grouped


@Rule(
    "detached-path",
    ERROR,
    "a cut between a leaf that should learn and the root",
    needs=(Need.DETAILS,),
    follows=("stale-optimizer",),
)
def detached_path(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.cut is not None:
            event = failed.cut.index
            why, cure = how_cut(case, event)
            yield Found(
                f"{case.words.called(failed.root)} is cut off from all that requires grad: {why}",
                cure,
                (event,),
                site=place_of_cut(case.query, event),
                severity=case.severity_of(failed.failure),
            )
    cuts = grouped(
        (case.query.of(Lacks).place(lack), lack) for lack in case.of(lacking) if lack.lack in (Lack.CUT, Lack.COPIED)
    )
    for site, lacks in cuts.items():
        made = case.query.tensors.made(lacks[0].root)
        owners = case.query.of(PassOwners).optimizers(lacks[0].pass_number)
        if owners and made is not None and made.index == lacks[0].event:
            yield _root_of_numbers(case, made, lacks)
            continue
        leaves = tuple(lack.leaf for lack in lacks)
        is_in_library = case.query.places.is_in_library(lacks[0].event)
        if is_in_library and case.training.holders.keys().isdisjoint(leaves):
            continue
        why, cure = how_cut(case, lacks[0].event)
        root = case.words.called(lacks[0].root) if lacks[0].root else "the root"
        yield Found(
            f"{lacks_gradient(case, leaves)}: the path to {root} is cut here, {why}",
            cure,
            (lacks[0].event,),
            site=site,
            tensors=leaves,
            severity=NOTE if all(lack.severity == NOTE for lack in lacks) else WARNING,
        )
    yield from _as_numbers(case)
    yield from _not_returned(case)
    yield from _with_itself(case)
    yield from _partial(case)


def _not_returned(case: Case) -> Iterator[Found]:
    """Leaves for which the backward of a custom Function returns None."""
    lacks = case.query.of(Lacks)
    found = grouped((lacks.function_without(lack), lack) for lack in case.of(lacking) if lack.lack is Lack.NOT_RETURNED)
    for function, own in found.items():
        leaves = tuple(lack.leaf for lack in own)
        yield Found(
            f"{lacks_gradient(case, leaves)}: the backward of {function} "
            f"returns None on the way to {'it' if len(leaves) == 1 else 'them'}",
            "return a gradient here, not None; or leave what is not to learn without requires_grad",
            (own[0].event,),
            site=lacks.place(own[0]),
            node=lacks.node_of(own[0]),
            number=own[0].pass_number,
            tensors=leaves,
            severity=own[0].severity,
        )


def _partial(case: Case) -> Iterator[Found]:
    """The cuts beside open paths behind which every leaf gets a gradient. A leaf without one, or with zeros only, has a
    finding of its own. A library cuts on purpose, and no line of the program could mend it."""
    lacking_leaves = {lack.leaf for lack in case.of(lacking)}
    lacking_leaves.update(leaf for block in case.of(blocks) for leaf in block.leaves)
    for cut in case.of(partial_cuts):
        if not lacking_leaves.isdisjoint(cut.leaves) or case.query.places.is_in_library(cut.event):
            continue
        use = f"use {case.words.called(cut.tensor)} itself, which is a tensor"
        of_number = "", Fix(use, without_cut, cut.reading)
        why, cure = of_number if cut.reading else how_cut(case, cut.event)
        yield Found(
            _told(case, cut, why),
            cure,
            (cut.event, *((cut.reader,) if cut.place is Place.BRANCH else ())),
            site=place_of_cut(case.query, cut.event),
            tensors=cut.leaves,
            severity=NOTE if cut.may_be_meant else WARNING,
        )


def _told(case: Case, cut: Cut, why: str) -> str:
    """What is cut off at a place, why, and what is lost by it."""
    leaves, is_one = case.called(cut.leaves), len(cut.leaves) == 1
    name, lose = case.words.called(cut.tensor), f"{leaves} get{'s' * is_one} no gradient"
    if cut.place is Place.TERM:
        is_flat = not cut.reading and cut.event in case.downstream.flat
        lacks = f", and {why}" if is_flat else " without its graph"
        return f"{cut.reading or name} is added to the loss{lacks}: {lose} from {name}"
    if cut.place is Place.USE:
        root, reader = case.words.called(cut.root), case.at(cut.reader)
        ways = f"one of two ways from {leaves} to {root} is cut here"
        return f"{ways}, {why}: {reader} is called with what has a graph, too"
    if cut.place is Place.PART:
        only = f"get{'s' * (len(cut.part) == 1)} only what is cut off here"
        return f"{case.called(cut.part)} {only}, {why}: {lose} through it"
    if cut.place is Place.STEP:
        reader = case.at(cut.reader)
        return f"{name} is cut off before each call at {reader}, {why}: {lose} from later steps of the same pass" + (
            " through it" if cut.may_be_meant else ""
        )
    if cut.place is Place.BRANCH:
        reader = case.at(cut.reader)
        return f"one of two branches from {name} to {reader} is cut here, {why}: {lose} through it"
    if cut.place is Place.BESIDE:
        way = f"one way from {name} to {case.words.called(cut.root)} is cut here, {why}"
        return f"{way}, and another is open: {lose} through this one"
    its = optimizer_name(case.query, {cut.optimizer}) or "one of their optimizers"
    path = f"the path to {case.words.called(cut.root)} is cut here, {why}"
    return f"no pass before a step of {its} brings {leaves} a gradient: {path}"


def _root_of_numbers(case: Case, made: OpRan | TensorMade, lacks: list[Wanting]) -> Found:
    """The finding of a root that was made from plain numbers, as a new leaf."""
    behind, lacking = [lack.leaf for lack in lacks], lacks[0]
    copied = copied_from(case.query, made) if isinstance(made, TensorMade) else 0
    source = case.words.called(copied) if copied else "loss"
    return Found(
        f"{case.words.called(lacking.root)} is a new leaf of plain numbers: pass {lacking.pass_number} ends at it and "
        f"trains nothing: {lacks_gradient(case, behind)}",
        Fix(f"{source}.backward()  # of the tensor that was computed, without torch.tensor()", without_cut),
        (made.index, case.query.passes.by_number[lacking.pass_number].first),
        number=lacking.pass_number,
        tensors=(lacking.root, *behind),
        severity=NOTE if all(lack.severity == NOTE for lack in lacks) else ERROR,
    )


def _with_itself(case: Case) -> Iterator[Found]:
    """Terms that compare a tensor with itself."""
    for op in case.of(compared_with_itself):
        name = case.words.called(op.inputs[0])
        yield Found(
            f"{op.op} compares {name} with itself: its result is 0 at each call, and no gradient flows back through it",
            f"give {op.op} what {name} is to be compared with",
            (op.index,),
            site=_given_twice(case, op.index),
            severity=WARNING,
        )


def _given_twice(case: Case, event: int) -> Site | None:
    """The innermost call around an op that gives the same variables as two arguments; else the site of the op."""
    for site in case.query.places.callers(case.site(event)):
        call = case.query.places.tree(site.number)
        given = [read for one in call.args if (read := names_read(one))] if isinstance(call, ast.Call) else []
        if any(given.count(read) > 1 for read in given):
            return site
    return case.place(event)


def _as_numbers(case: Case) -> Iterator[Found]:
    """Tensors that the loss reads as plain numbers."""
    by_place: dict[tuple[Site | None, str], list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.AS_NUMBER:
            by_place.setdefault((case.query.of(Lacks).place(lack), lack.reading), []).append(lack)
    for (site, reading), lacks in by_place.items():
        leaves, event, result = tuple(lack.leaf for lack in lacks), lacks[0].event, lacks[0].result
        cure = f"use {case.words.called(result)} itself, which is a tensor"
        if reading.startswith("math."):
            cure = f"torch.{reading.removeprefix('math.')}  # not {reading}"
        yield Found(
            f"{lacks_gradient(case, leaves)}: {reading} is a plain number, through which no gradient flows back",
            Fix(cure, without_cut, reading),
            (event, *filter(None, (case.query.tensors.maker(result),))),
            site=site,
            tensors=leaves,
            severity=NOTE if all(lack.severity == NOTE for lack in lacks) else WARNING,
        )
