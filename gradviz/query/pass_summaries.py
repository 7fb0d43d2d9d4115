"""The few numbers that are kept of every pass where passes are left out (`--passes`), and of some steps, and why a pass
was recorded in detail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.curves import ratios
from gradviz.query.query import Query
from gradviz.tracefile.chosen import BEHIND_TROUBLE, first_of, is_regular

FIRST_PASSES, SAMPLE, ERROR, TROUBLE = "first", "sample", "error", "trouble"


@dataclass(frozen=True, slots=True)
class PassSummaries:
    """The numbers of the passes `passes`, which ascend: the losses, and the norms of all gradients together that
    optimizers stepped with. NaN where they are not finite; `has_loss` and `has_norm` are whether they are known."""

    passes: np.ndarray
    losses: np.ndarray
    has_loss: np.ndarray
    norms: np.ndarray
    has_norm: np.ndarray


def pass_summaries(query: Query) -> PassSummaries:
    """The numbers of all passes. Several steps with the gradients of one pass, as of two optimizers, count together.
    Use `query.of(pass_summaries)`."""
    summed = query.trace.table(Kind.SUMMED)
    passes, at = np.unique(summed["in_pass"], return_inverse=True)
    count = len(passes)
    known_loss, known_norm = summed["has_loss"] > 0, summed["norm"] != -1
    losses, squares = np.zeros(count), np.zeros(count)
    losses[at[known_loss]] = _finite(summed["loss"][known_loss])
    np.add.at(squares, at[known_norm], _finite(summed["norm"][known_norm]) ** 2)
    has_loss, has_norm = (np.bincount(at, known, count) > 0 for known in (known_loss, known_norm))
    return PassSummaries(passes, losses, has_loss, np.sqrt(squares), has_norm)


@dataclass(frozen=True, slots=True)
class StepSummaries:
    """Norms of the changes that steps of optimizers, by their numbers, made to all their parameters together, and of
    these before (`sizes`); `passes` are those whose gradients they used, and ascend. NaN where they are not finite."""

    passes: np.ndarray
    optimizers: np.ndarray
    changes: np.ndarray
    sizes: np.ndarray


def step_summaries(query: Query) -> StepSummaries:
    """The changes of all steps of which such numbers were kept. Use `query.of(step_summaries)`."""
    summed = query.trace.table(Kind.STEP_SUMMED)
    rows = np.flatnonzero(summed["change"] != -1)
    rows = rows[np.argsort(summed["in_pass"][rows], kind="stable")]
    changes, sizes = _finite(summed["change"][rows]), _finite(summed["size"][rows])
    return StepSummaries(summed["in_pass"][rows], summed["optimizer"][rows], changes, sizes)


def relative_changes(query: Query) -> dict[int, float]:
    """The norm of the change that the steps behind a pass made together, relative to the norm of their parameters
    before, by pass; of a parameter the first step counts. A pass is left out where these were all 0."""
    summed = query.of(step_summaries)
    passes, at = np.unique(summed.passes, return_inverse=True)
    changes, sizes = (np.sqrt(np.bincount(at, part**2)) for part in (summed.changes, summed.sizes))
    relative = ratios(changes, sizes)
    return {
        number: value for number, value in zip(passes.tolist(), relative.tolist(), strict=True) if value != -1
    }


def _finite(values: np.ndarray) -> np.ndarray:
    """Values, with NaN for an infinity."""
    return np.where(np.isfinite(values), values, np.nan)


def reasons(query: Query) -> dict[int, str]:
    """Why each pass that was recorded in detail was: it is one of the first, or a sample of all; or it came behind a
    NaN (`nan`), a jump of the loss or the norm (`jump`) or an exception (`error`) that was noticed, or behind trouble
    in what was recorded (`trouble`). Empty for a run that was not recorded with `--passes auto`."""
    trace = query.trace
    first = first_of(trace.meta.get("passes", ""))
    if first is None:
        return {}
    summed = trace.table(Kind.SUMMED)
    recorded = [one.number for one in trace.passes if one.recorded]
    causes = {
        number: trace.text(why)
        for number, why in zip(summed["in_pass"].tolist(), summed["why"].tolist(), strict=True)
        if trace.text(why)
    }
    errors = trace.table(Kind.ERROR)
    causes |= dict.fromkeys(errors["in_pass"][errors["in_pass"] > 0].tolist(), ERROR)
    return {number: _reason(number, first, causes) for number in recorded}


def _reason(number: int, first: int, causes: dict[int, str]) -> str:
    before = (causes.get(number - distance) for distance in range(1, BEHIND_TROUBLE + 1))
    if number <= first:
        return FIRST_PASSES
    return next(filter(None, before), SAMPLE if is_regular(number) else TROUBLE)
