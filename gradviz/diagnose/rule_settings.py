"""Settings of `check`: the rules to check, the severity that fails a run, and thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradviz.diagnose.finding import WARNING


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with: its default, the least and the largest value allowed, and its meaning."""

    default: float
    least: float
    largest: float
    says: str


# By the id of the rule.
THRESHOLDS: Mapping[str, Threshold] = {
    "dead-relu": Threshold(0.99, 0.5, 1, "the share of zeros in the results of a rectifier"),
    "exploding-gradient": Threshold(1e4, 0, math.inf, "the norm of all gradients of a pass"),
    "lr-too-large": Threshold(1e3, 1, math.inf, "how many times larger the norm of the gradients becomes"),
    "vanished-lr": Threshold(1e-6, 0, 1, "the learning rate relative to the highest one before"),
    "vanishing-gradient": Threshold(1e-7, 0, math.inf, "the root mean square of a leaf's gradient"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a check. `select` and `ignore` are ids of rules, `fail_on` is `error` or `warning`, `thresholds`
    are the thresholds by rule that differ from the default."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = WARNING
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def threshold(self, rule: str) -> float:
        """The threshold of a rule."""
        return self.thresholds.get(rule, THRESHOLDS[rule].default)
