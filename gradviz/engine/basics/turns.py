"""Locks by which threads take turns. A child that a fork makes has only the thread that forked: a lock that another
thread held would stay taken there for good, so each of ours is free in it."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from gradviz.system import turns
from gradviz.system.process import at_fork

_locks: WeakSet[Any] = WeakSet()


def new_turn() -> Any:
    """A lock. Its owner may not count on taking it again."""
    return _known(turns.new_turn())


def new_own_turn() -> Any:
    """A lock that its owner may take again."""
    return _known(turns.new_own_turn())


def _known(lock: Any) -> Any:
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


at_fork(in_child=_free_all)
