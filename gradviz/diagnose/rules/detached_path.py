"""`detached-path`: a leaf that should learn never gets a gradient, because an event on every path from it to the root
blocks gradients: detach(), .data, no_grad, an op that is not differentiable, or plain numbers in between."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.as_number import read_as_number
from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.grad_mode import switched_off
from gradviz.diagnose.reach import Lack, Lacking, how_cut, lacking
from gradviz.diagnose.rootless import rootless
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.tracefile import Site


def _search(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.cut is not None:
            off, why, cure = _explained(case, failed.cut.index)
            yield Found(
                f"{case.words.called(failed.root)} is cut off from all that requires grad: {why}",
                cure,
                (failed.cut.index,),
                site=off,
                severity=case.severity_of(failed.failure),
            )
    cuts: dict[int, list[int]] = {}
    found = [lack for lack in case.of(lacking) if lack.lack in (Lack.CUT, Lack.COPIED)]
    for lack in found:
        cuts.setdefault(case.site(lack.event), []).append(lack.leaf)
    for site, leaves in cuts.items():
        own = [lack for lack in found if lack.leaf in leaves]
        off, why, cure = _explained(case, own[0].event)
        root = case.words.called(own[0].root) if own[0].root else "the root"
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: "
            f"the path to {root} is cut here, {why}",
            cure,
            (own[0].event,),
            site=off or site,
            tensors=tuple(leaves),
            severity=NOTE if all(lack.severity == NOTE for lack in own) else WARNING,
        )
    yield from _as_numbers(case)


def _as_numbers(case: Case) -> Iterator[Found]:
    """What the loss reads as plain numbers."""
    by_event: dict[tuple[int, str], list[Lacking]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.OFF_PATH:
            (result, *_) = case.query.tensors.op(lack.event).outputs
            found = read_as_number(case, result)
            if found is not None:
                by_event.setdefault(found, []).append(lack)
    for (event, reading), own in by_event.items():
        leaves = [lack.leaf for lack in own]
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: {reading} is a plain number, "
            "through which no gradient flows back",
            f"use {case.words.called(case.query.tensors.op(own[0].event).outputs[0])} itself, which is a tensor",
            (event, own[0].event),
            site=case.site(event),
            tensors=tuple(leaves),
            severity=NOTE if all(lack.severity == NOTE for lack in own) else WARNING,
        )


def _explained(case: Case, event: int) -> tuple[Site | int, str, str]:
    """(line, why, cure) of an event that blocks gradients; the line is 0 unless it is that of a call that turned grad
    mode off."""
    is_off = case.query.tensors.is_op(event) and not case.query.tensors.op(event).grad_enabled
    call = switched_off(case, event) if is_off else None
    if call is None:
        return (0, *how_cut(case, event))
    return call, "grad mode is off from here on", "with torch.no_grad(): ...  # which ends with its block"


RULE = Rule(
    "detached-path",
    ERROR,
    "a cut between a leaf that should learn and the root",
    _search,
    needs=(Need.DETAILS,),
)
