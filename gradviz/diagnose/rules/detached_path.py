"""`detached-path`: a leaf that should learn never gets a gradient, because an event on every path from it to the root
blocks gradients: detach(), .data, no_grad, an op that is not differentiable, or plain numbers in between; or the
backward of a custom Function returns None on the way to it. Also reported: one path of several that is cut (a term of a
loss, a use of a layer, a part of a result that is joined with the rest again, the only input of a part, as in
`decoder(q.sample())`), a term that compares a tensor with its own numbers, and a root that was made from numbers.

Why it is bad: no gradient comes back through the cut. The leaf keeps its first value, while the loss may still fall
because other leaves learn.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = (x ** 2).detach()  # <- detached-path
    z = y * 3
    z.backward()

Cure: remove the call that blocks the gradient between the leaf and the loss: `.detach()`, `.data`, `.item()`,
`torch.no_grad()`. Replace an op that has no derivative by a differentiable op.

Not reported: a cut that keeps one network out of the pass of another (a generator in the pass of its
discriminator), a target network, an evaluation, a frozen copy, a number that is only logged, a probe on
detached features, a sampled action beside its log-probability, a part that a library's own code cuts off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_causes import how_cut
from gradviz.diagnose.cut_edits import without_cut
from gradviz.diagnose.cuts import (
    Cut,
    cut_holdings,
    cut_inputs,
    cut_parts,
    cut_rows,
    cut_terms,
    cut_uses,
    equal_sides,
)
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.fix import Fix
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.without_gradient import Wanting, lacking, rootless, roots_of_numbers
from gradviz.events.kinds import Kind
from gradviz.query.flow import place_of_cut
from gradviz.query.missing_gradients import Lack, Lacks
from gradviz.query.pass_owners import optimizer_name
from gradviz.tracefile import Site
from gradviz.words.escape import clean


def _search(case: Case) -> Iterator[Found]:
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
    yield from _numbers(case)
    roots = {found.made for found in case.of(roots_of_numbers)}
    cuts: dict[Site | None, list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack in (Lack.CUT, Lack.COPIED) and lack.event not in roots:
            cuts.setdefault(case.query.of(Lacks).place(lack.lacking), []).append(lack)
    for site, lacks in cuts.items():
        leaves = tuple(lack.leaf for lack in lacks)
        why, cure = how_cut(case, lacks[0].event)
        root = case.words.called(lacks[0].root) if lacks[0].root else "the root"
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: "
            f"the path to {root} is cut here, {why}",
            cure,
            (lacks[0].event,),
            site=site,
            tensors=leaves,
            severity=NOTE if all(lack.severity == NOTE for lack in lacks) else WARNING,
        )
    yield from _as_numbers(case)
    yield from _not_returned(case)
    yield from _terms(case)
    yield from _equal_sides(case)
    yield from _uses(case)
    yield from _inputs(case)
    yield from _rows(case)
    yield from _parts(case)
    yield from _holdings(case)


def _not_returned(case: Case) -> Iterator[Found]:
    """Leaves for which the backward of a custom Function returns None."""
    lacks = case.query.of(Lacks)
    found: dict[str, list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.NOT_RETURNED:
            found.setdefault(lacks.function_without(lack.lacking), []).append(lack)
    for function, own in found.items():
        leaves = tuple(lack.leaf for lack in own)
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: the backward of {clean(function)} "
            f"returns None on the way to {'it' if len(leaves) == 1 else 'them'}",
            "return a gradient here, not None; or leave what is not to learn without requires_grad",
            (own[0].event,),
            site=lacks.place(own[0].lacking),
            node=lacks.node_of(own[0].lacking),
            number=own[0].lacking.pass_number,
            tensors=leaves,
            severity=own[0].severity,
        )


def _at_cut(
    case: Case, event: int, leaves: tuple[int, ...], what: str, more: str = "", *events: int
) -> Found:
    """The finding of a cut at an event. Its message is `what` (is cut), the reason of the cut, and `more`."""
    why, cure = how_cut(case, event)
    return Found(
        f"{what}, {why}{more}",
        cure,
        (event, *events),
        site=place_of_cut(case.query, event),
        tensors=leaves,
        severity=WARNING,
    )


def _lose_it(case: Case, leaves: tuple[int, ...]) -> str:
    return f"{case.called(leaves)} get{'s' * (len(leaves) == 1)} no gradient through it"


def _holdings(case: Case) -> Iterator[Found]:
    """Leaves of two optimizers that are cut off in the passes of one of them."""
    for held in case.of(cut_holdings):
        its = optimizer_name(case.query, {held.optimizer}) or "one of their optimizers"
        what = f"no pass before a step of {its} brings {case.called(held.leaves)} a gradient: the path to "
        yield _at_cut(case, held.event, held.leaves, f"{what}{case.words.called(held.root)} is cut here")


def _parts(case: Case) -> Iterator[Found]:
    """Parts of a result that are cut off, and then joined with the rest, which still has its graph."""
    for part in _of_what_learns(case, cut_parts):
        what = f"a part of {case.words.called(part.tensor)} is cut off here"
        joined = f", and joined with the rest, which is not: {_lose_it(case, part.leaves)}"
        yield _at_cut(case, part.event, part.leaves, what, joined, part.reader)


def _rows(case: Case) -> Iterator[Found]:
    """Rows of a weight behind a cut, though its other rows learn."""
    for part in case.of(cut_rows):
        what = f"{part.share:.0%} of {case.called(part.leaves)} never gets a gradient: what it computes is cut off here"
        yield _at_cut(case, part.event, part.leaves, what)


def _of_what_learns(case: Case, question: Callable[[Case], list[Cut]]) -> Iterator[Cut]:
    """The cuts behind which every leaf gets a gradient. A leaf without a gradient has a finding of its own. A library
    cuts on purpose, and no line of the program could mend it."""
    without = {lack.leaf for lack in case.of(lacking)}
    return (
        cut
        for cut in case.of(question)
        if without.isdisjoint(cut.leaves) and not case.query.places.is_in_library(cut.event)
    )


def _inputs(case: Case) -> Iterator[Found]:
    """Parts whose only input is cut off, though other terms bring the leaves behind the cut a gradient."""
    for cut in _of_what_learns(case, cut_inputs):
        what = f"{case.called(cut.part)} get{'s' * (len(cut.part) == 1)} only what is cut off here"
        yield _at_cut(case, cut.event, cut.leaves, what, f": {_lose_it(case, cut.leaves)}")


def _numbers(case: Case) -> Iterator[Found]:
    """Roots that were made from plain numbers."""
    for plain_root in case.of(roots_of_numbers):
        name = case.words.called(plain_root.root)
        behind = [lack.leaf for lack in case.of(lacking) if lack.event == plain_root.made]
        source = case.words.called(plain_root.source) if plain_root.source else "loss"
        lost = f": {case.called(behind)} never get{'s' * (len(behind) == 1)} a gradient" if behind else ""
        yield Found(
            f"{name} is a new leaf of plain numbers: pass {plain_root.number} ends at it and trains nothing{lost}",
            Fix(
                f"{source}.backward()  # of the tensor that was computed, without torch.tensor()", without_cut
            ),
            (plain_root.made, case.query.passes.by_number[plain_root.number].first),
            number=plain_root.number,
            tensors=(plain_root.root, *behind),
        )


def _uses(case: Case) -> Iterator[Found]:
    """Calls of a part with a cut-off input, though other calls of the same part have an input with a graph."""
    for use in _of_what_learns(case, cut_uses):
        what = f"one of two ways from {case.called(use.leaves)} to {case.words.called(use.root)} is cut here"
        also = f": {case.at(use.reader)} is called with what has a graph, too"
        yield _at_cut(case, use.event, use.leaves, what, also)


def _terms(case: Case) -> Iterator[Found]:
    """Terms of a loss without their graph, though other terms bring the same leaves a gradient."""
    for term in _of_what_learns(case, cut_terms):
        name = case.words.called(term.tensor)
        is_read = case.trace.kinds[term.event] == Kind.NUMBER_READ
        blocks = not is_read and not case.query.nodes.of_op(term.event)
        yield Found(
            f"{term.reading} is added to the loss without its graph: {case.called(term.leaves)} "
            f"get{'s' * (len(term.leaves) == 1)} no gradient from {name}",
            how_cut(case, term.event)[1]
            if blocks
            else Fix(f"use {name} itself, which is a tensor", without_cut, term.reading),
            (term.event,),
            site=place_of_cut(case.query, term.event),
            tensors=term.leaves,
            severity=WARNING,
        )


def _equal_sides(case: Case) -> Iterator[Found]:
    """Terms of a loss that compare a tensor with itself, outside of the graph."""
    for op in case.of(equal_sides):
        one, other = (case.words.called(tensor) for tensor in op.inputs[:2])
        yield Found(
            f"{clean(op.op)} compares equal numbers, {one} and {other}, and nothing that they are computed from gets a "
            "gradient: this term of the loss trains nothing",
            f"give {clean(op.op)} the output of what is to learn in place of {one} or {other}",
            (op.index,),
            severity=WARNING,
        )


def _as_numbers(case: Case) -> Iterator[Found]:
    """Tensors that the loss reads as plain numbers."""
    by_event: dict[tuple[int, str], list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.AS_NUMBER:
            by_event.setdefault((lack.event, lack.lacking.reading), []).append(lack)
    for (event, reading), lacks in by_event.items():
        leaves, result = tuple(lack.leaf for lack in lacks), lacks[0].lacking.result
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: {reading} is a plain number, "
            "through which no gradient flows back",
            Fix(
                _as_tensor(reading) or f"use {case.words.called(result)} itself, which is a tensor",
                without_cut,
                reading,
            ),
            (event, *filter(None, (case.query.tensors.maker(result),))),
            site=case.query.of(Lacks).place(lacks[0].lacking),
            tensors=leaves,
            severity=NOTE if all(lack.severity == NOTE for lack in lacks) else WARNING,
        )


def _as_tensor(reading: str) -> str:
    """The function of `torch` for a function of `math` that was called with a tensor; empty for any other reading."""
    of_math = reading.removeprefix("math.")
    return f"torch.{of_math}  # not {reading}" if of_math != reading else ""


RULE = Rule(
    "detached-path",
    ERROR,
    "a cut between a leaf that should learn and the root",
    _search,
    needs=(Need.DETAILS,),
)
