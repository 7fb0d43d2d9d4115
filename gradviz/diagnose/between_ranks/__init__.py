"""The rules between ranks, the gravest first: the fault of a rule may be the cause of the faults of later rules."""

from collections.abc import Iterable, Iterator

from gradviz.diagnose.between_ranks import averages, models, scales
from gradviz.diagnose.finding import Finding
from gradviz.diagnose.rank_rule import RankRule
from gradviz.query.replicas import Replicas

RANK_RULES: tuple[RankRule, ...] = (
    models.frozen, models.unused, models.calls, models.steps, models.start, averages.unreduced,
    averages.apart, models.settings, models.mode, models.drift, models.data, averages.sum_, scales.clip,
    scales.early_clip, scales.loss, models.arguments, averages.hooks, scales.bias, models.buffers,
    models.dropout,
)  # fmt: skip
BETWEEN_RANKS = {rule.id: rule for rule in RANK_RULES}


def findings_of(ranks: Replicas, ids: Iterable[str]) -> Iterator[Finding]:
    """The findings of the rank rules with these ids."""
    for name in ids:
        yield from BETWEEN_RANKS[name].findings(ranks)
