"""Ctrl-C between any two instructions leaves no lock taken, no mode set, no terminal raw."""

from __future__ import annotations

import dis
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType

import pytest

import gradviz

PACKAGE = Path(gradviz.__file__).parent
A_CALL_ENDS_THE_LOOP = """
def f(things, lock):
    with lock:
        for thing in things:
            print(thing)
"""
A_CONDITION_ENDS_THE_LOOP = """
def f(things, lock):
    with lock:
        for thing in things:
            if thing:
                print(thing)
"""


TURNS = """
import signal
from gradviz.system.turns import new_own_turn, new_turn

def interrupt(*_):
    raise KeyboardInterrupt

def take_turns(lock):
    while True:
        with lock:
            pass

signal.signal(signal.SIGALRM, interrupt)
for new in (new_turn, new_own_turn):
    for i in range(200):
        lock = new()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001 + i * 1e-6)
            take_turns(lock)
        except KeyboardInterrupt:
            pass
        assert not (lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked()), new
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that raises in the program")
def test_ctrl_c_leaves_no_lock_taken() -> None:
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def functions_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from functions_of(constant)


def unguarded_jumps(code: CodeType) -> list[int]:
    """The lines of jumps back, inside a `with` or `try`, at which Ctrl-C is handled as if they stood outside it.

    Where a loop ends with a condition, Python from 3.12 on adds a jump that is not in the exception table (a relative
    of github.com/python/cpython/issues/108214). Python 3.14 makes such a loop of a call of `any` or `all`, too."""
    if not code.co_exceptiontable:
        return []
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: instruction for instruction in instructions}
    entries = dis.Bytecode(code).exception_entries
    blocks = [entry for entry in entries if at[entry.target].opname == "PUSH_EXC_INFO"]

    def guards(offset: int) -> set[int]:
        return {block.target for block in blocks if block.start <= offset < block.end}

    return [
        jump.positions.lineno
        for jump, following in pairwise(instructions)
        if jump.opname == "JUMP_BACKWARD" and guards(jump.argval) & guards(following.offset) - guards(jump.offset)
    ]


def compiled(text: str, name: str = "<text>") -> list[CodeType]:
    return list(functions_of(compile(text, name, "exec")))


def test_the_check_tells_a_guarded_jump_from_one_that_is_not() -> None:
    assert not any(unguarded_jumps(code) for code in compiled(A_CALL_ENDS_THE_LOOP))
    conditional = [name for name in dis.opname if name.startswith("POP_JUMP_BACKWARD_IF")]
    if not conditional:  # from 3.12 on a condition only jumps forward
        assert [unguarded_jumps(code) for code in compiled(A_CONDITION_ENDS_THE_LOOP)] == [[], [5]]


@pytest.mark.slow
def test_no_loop_in_a_block_ends_with_a_condition() -> None:
    """Such a loop stands in a function of its own, which the block calls."""
    found = {
        (path.relative_to(PACKAGE).as_posix(), code.co_qualname): unguarded_jumps(code)
        for path in PACKAGE.rglob("*.py")
        for code in compiled(path.read_text(encoding="utf-8"), str(path))
    }
    assert len(found) > 1000
    assert {name: lines for name, lines in found.items() if lines} == {}
