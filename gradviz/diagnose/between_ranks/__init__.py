"""The rules between ranks, the gravest first: the fault of a rule may be the cause of the faults of later rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradviz.diagnose.between_ranks import (
    ranks_apart,
    ranks_arguments,
    ranks_bias,
    ranks_buffers,
    ranks_clip,
    ranks_collectives,
    ranks_data,
    ranks_drift,
    ranks_dropout,
    ranks_early_clip,
    ranks_frozen,
    ranks_hooks,
    ranks_loss,
    ranks_mode,
    ranks_settings,
    ranks_start,
    ranks_steps,
    ranks_sum,
    ranks_unreduced,
    ranks_unused,
)
from gradviz.diagnose.finding import Finding
from gradviz.diagnose.rank_rule import RankRule
from gradviz.query.replicas import Replicas

RANK_RULES: tuple[RankRule, ...] = tuple(
    module.RULE
    for module in (
        ranks_frozen,
        ranks_unused,
        ranks_collectives,
        ranks_steps,
        ranks_start,
        ranks_unreduced,
        ranks_apart,
        ranks_settings,
        ranks_mode,
        ranks_drift,
        ranks_data,
        ranks_sum,
        ranks_clip,
        ranks_early_clip,
        ranks_loss,
        ranks_arguments,
        ranks_hooks,
        ranks_bias,
        ranks_buffers,
        ranks_dropout,
    )
)
BETWEEN_RANKS = {rule.id: rule for rule in RANK_RULES}


def findings_of(ranks: Replicas, ids: Iterable[str]) -> Iterator[Finding]:
    """The findings of the rank rules with these ids."""
    for name in ids:
        yield from BETWEEN_RANKS[name].findings(ranks)
