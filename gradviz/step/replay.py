"""What the stepper says at each event, as plain data for those who show it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.graph.moment import Moments
from gradviz.step.facts import Facts
from gradviz.step.gradients import rows
from gradviz.step.numbers import value
from gradviz.step.sentences import sentence
from gradviz.step.state import CommandError
from gradviz.step.stop import Stop
from gradviz.step.timeline import phase
from gradviz.tracefile import Snapshot, Trace

_MOST_WAITING = 20  # gradients that are told one by one; at each event of a long pass there may be thousands


@dataclass(frozen=True, slots=True)
class Told:
    """One event in words. `rows` are (label, text) pairs; `site` is the number of the place whose source to show,
    0 for none, and `why` what that place is to the event."""

    sentence: str
    phase: str
    site: int
    why: str
    rows: tuple[tuple[str, str], ...]


class Replay:
    """The words of one trace. Raises CommandError where it has no events."""

    def __init__(self, trace: Trace) -> None:
        if not trace.count:
            raise CommandError(f"{trace.path} holds no events: there is nothing to replay")
        self.facts = Facts(trace)

    @property
    def moments(self) -> Moments:
        """What the words are taken from."""
        return self.facts.moments

    def told(self, k: int) -> Told:
        """Event k in the stepper's words."""
        stop = Stop(self.facts, k)
        site, why = stop.place
        shown = tuple((row.label, row.text) for row in rows(stop, _MOST_WAITING))
        return Told(sentence(stop), phase(stop), 0 if site is None else site.number, why, shown)

    def value(self, snapshot: Snapshot | None) -> str:
        """A value as the stepper writes it."""
        return value(snapshot)

    def called(self, tensor: int) -> str:
        """What a tensor is called."""
        return self.facts.called(tensor)
