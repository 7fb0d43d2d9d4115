"""Rule: one kind of fault, the search for it, and what the trace must have for the search.

The file of a rule imports the words that rules are written in from here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.fix import Edit, Edits, Fix, Spot
from gradviz.diagnose.rule_settings import Threshold
from gradviz.events.kinds import Kind
from gradviz.tracefile import Site

__all__ = (
    "ERROR", "NOTE", "WARNING", "Case", "Edit", "Edits", "Fix", "Found", "Kind", "Need", "Rule", "Site", "Spot",
    "Threshold", "unmet",
)  # fmt: skip


class Need(Enum):
    """The things that a trace must have for a rule to be checked. The value says what is missing without it."""

    VALUES = "values were not recorded (--values none)"
    PASS = "no backward pass was recorded"
    PASSES = "there are fewer than two backward passes"
    DETAILS = "no backward pass was recorded in detail (--passes, --scope)"
    STEP = "no optimizer stepped"
    TRAINING = "nothing stepped on a gradient: no optimizer, and no update by hand"
    STEPS = "there are fewer than two steps of an optimizer"
    START = "the beginning of the run is not in the trace (--last)"
    SCHEDULER = "there is no learning-rate scheduler"
    COMPARED = "custom Functions were not compared (--check-functions), nor values recorded"


@dataclass(frozen=True, slots=True)
class Found:
    """A result of a rule's search, before it becomes a Finding, which escapes its texts. Its line is that of `site`,
    else that of the first event with a site."""

    message: str
    fix: Fix | str  # a text is advice
    events: tuple[int, ...]
    site: int | Site | None = 0
    node: int = 0
    number: int = 0
    tensors: tuple[int, ...] = ()
    severity: str = ""  # empty: the severity of the rule

    @property
    def cure(self) -> Fix:
        """The cure, as edits if it has them."""
        return self.fix if isinstance(self.fix, Fix) else Fix(self.fix)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its stable id, its usual severity, what it looks for in one sentence, and the search. A finding of a rule
    in `follows` explains a finding of this rule, if both are about the same tensor or one is about no tensor. A rule
    that is `opt_in` is checked only if it is selected, or if the run was `asked_for_it`. A finding of a rule that is
    `at_once` stands however the run goes on: it is about one thing that has happened. `threshold` is the number of the
    rule that the settings may change. `left_out` are the things that the rule could not check, each with the reason."""

    id: str
    severity: str
    looks_for: str
    search: Callable[[Case], Iterable[Found]] = lambda case: ()
    needs: tuple[Need, ...] = ()
    follows: tuple[str, ...] = ()
    opt_in: bool = False
    at_once: bool = False
    threshold: Threshold | None = None
    asked_for_it: Callable[[Case], bool] = lambda case: False
    left_out: Callable[[Case], Iterable[tuple[str, str]]] = lambda case: ()

    def __call__(self, search: Callable[[Case], Iterable[Found]]) -> "Rule":
        """The rule with the search that it decorates."""
        return replace(self, search=search)

    def threshold_in(self, case: Case) -> float:
        """The threshold by the settings of a case."""
        return case.settings.threshold(self.id, self.threshold)


def unmet(case: Case) -> set[Need]:
    """The needs that a trace does not meet."""
    return {need for need, is_met in _HAS.items() if not is_met(case)}


_HAS: dict[Need, Callable[[Case], bool]] = {
    Need.VALUES: lambda case: case.trace.has_values,
    Need.PASS: lambda case: bool(case.trace.passes),
    Need.PASSES: lambda case: len(case.trace.passes) > 1,
    Need.DETAILS: lambda case: not case.trace.passes or any(one.recorded for one in case.trace.passes),
    Need.STEP: lambda case: len(case.training.stepped) > 0,
    Need.TRAINING: lambda case: bool(case.training.trained),
    Need.STEPS: lambda case: len(case.training.stepped) > 1,
    Need.START: lambda case: not case.trace.passes or case.trace.passes[0].number == 1,
    Need.COMPARED: lambda case: case.trace.has_values or bool(case.trace.meta.get("check_functions")),
    Need.SCHEDULER: lambda case: len(case.scheduled) > 0,
}
