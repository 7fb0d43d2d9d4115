"""Settings of `check`: the rules to check, the severity that fails a run, and thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gradviz.diagnose.finding import WARNING


class Threshold(NamedTuple):
    """A number that a rule compares with: its default, the least and the largest value allowed, and its meaning."""

    default: float
    least: float
    largest: float
    says: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a check. `select` and `ignore` are ids of rules, `fail_on` is `error` or `warning`, `thresholds`
    are the thresholds by rule that differ from the default."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = WARNING
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def threshold(self, rule: str, known: Threshold | None) -> float:
        """The threshold of a rule: that of the settings, else its default."""
        assert known is not None
        return self.thresholds.get(rule, known.default)
