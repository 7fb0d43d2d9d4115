"""Several sessions that are stepped together: two runs, or the ranks of a run, which are aligned by their
collectives."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from gradviz.query.collective_calls import Collective, collective_clock
from gradviz.query.ranks import ranked_traces
from gradviz.step import CommandError
from gradviz.step.moves import count
from gradviz.step.state import Session
from gradviz.words.escape import clean
from gradviz.words.numbers import listed

_EVENT = attrgetter("event")


class Group:
    """Sessions that are moved together. `alone` is the session that is shown by itself, if any."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = [*sessions]
        self.alone: Session | None = None
        for session in self.sessions:
            session.group = self
            session.settings.history = self.sessions[0].settings.history

    @property
    def shown(self) -> list[Session]:
        """The sessions that are on the screen, and that commands move."""
        return self.sessions if self.alone is None else [self.alone]

    @property
    def first(self) -> Session:
        """The session whose position is the group's."""
        return self.shown[0]

    @property
    def by_rank(self) -> dict[int, Session]:
        """The sessions by their ranks."""
        return dict(zip(ranked_traces([session.trace for session in self.sessions]), self.sessions, strict=True))

    def meet(self, number: int) -> None:
        """Move the shown sessions to a collective, by its number from 1. A session with fewer collectives goes to its
        last event."""
        called = [_called(session) for session in self.shown]
        calls = [one[number - 1] if number <= len(one) else None for one in called]
        are_same = len({None if call is None else (call.name, call.shape) for call in calls}) == 1
        for session, own, call in zip(self.shown, called, calls, strict=True):
            session.go(session.last if call is None else call.event)
            if call is None:
                session.message = session.say(
                    "there is no collective {number}: {count} are called", number=number, count=len(own)
                )
                continue
            session.message = session.say(
                "collective {number} of {count}: {call}",
                number=number,
                count=len(own),
                call=f"{clean(call.name)} {call.shape}" if call.has_tensor else clean(call.name),
            )
            if not are_same:
                session.message += session.say("; not the same on all ranks")

    def look_into(self, rank: int) -> None:
        """Show one rank by itself. Raises CommandError if there is no such rank."""
        ranks = self.by_rank
        if rank not in ranks:
            known = listed(map(str, ranks)) if len(ranks) < 10 else f"0 to {max(ranks)}"
            raise CommandError("there is no rank {rank}: the ranks are {ranks}", rank=rank, ranks=known)
        self.alone = ranks[rank]

    def follow(self, leader: Session) -> None:
        """Move the other sessions to the collective that `leader` has reached, unless they are there."""
        number = clock(leader)
        for session in self.sessions:
            called = _called(session)
            if clock(session) != number and number <= len(called):
                session.go(called[number - 1].event if number else 0)


def clock(session: Session) -> int:
    """The number of collectives of all ranks that a session has reached."""
    return bisect_right(_called(session), session.position, key=_EVENT)


def clock_text(session: Session) -> str:
    """`collective 3 of 24`; empty if there are none, or if a long run has not been read whole."""
    count_of_all = len(_called(session)) if session.trace.is_whole else 0
    if not count_of_all:
        return ""
    return session.say("collective {number} of {count}", number=clock(session), count=count_of_all)


def _called(session: Session) -> list[Collective]:
    session.reach_all()
    return session.query.of(collective_clock)


def group_of(session: Session) -> Group:
    """The group of a session; a session of one trace is a group by itself."""
    return session.group if session.group is not None else Group([session])


# --- verbs


def collective(session: Session, argument: str, forward: bool = True) -> None:
    """Go to the next or the previous collective, on all ranks."""
    group, called = group_of(session), _called(session)
    if not called:
        raise CommandError("no collective of all ranks is recorded in this trace")
    most = max(len(_called(one)) for one in group.shown)
    before = bisect_left(called, session.position, key=_EVENT)
    if forward and clock(session) == most:
        raise CommandError("there is no later collective")
    if not (forward or before):
        raise CommandError("there is no earlier collective")
    wanted = clock(session) + count(argument) if forward else before - count(argument) + 1
    group.meet(min(max(wanted, 1), most))


def rank(session: Session, argument: str) -> None:
    """Show one rank; without a number, show all ranks."""
    group = group_of(session)
    if len(group.sessions) < 2:
        raise CommandError("this is one trace: gradviz step shows all ranks of a folder or a pattern")
    if not argument:
        if group.alone is not None:
            group.follow(group.alone)
            group.alone = None
        return
    group.look_into(count(argument))
