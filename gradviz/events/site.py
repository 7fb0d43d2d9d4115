"""The place of an event in the program, read off a code object and the instruction that was running.

While a program runs, a recorder keeps `(frame.f_code, frame.f_lasti)`: two reads. Everything else is worked out here,
when it is needed: the columns of the expression, and the name of its result, by following the value along the
interpreter's stack from the instruction that made it to the instruction that stores it.
"""

import contextlib
import dis
import linecache
import types
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import NamedTuple

UNKNOWN_COLUMN = -1


@dataclass(frozen=True, slots=True)
class Place:
    """An expression in a source file, and the destination of its value.

    Lines count from 1, columns from 0 in characters; a column that is not known is -1. `names` are the targets of the
    assignment that the value goes to: one for `y = f()`, several for `a, b = f()`. `returns` says that the function
    returns the value as it is to its caller, which may have a name for it; `part` says that it returns it as one item
    of a tuple: its place, and the number of items. `unpacks` says that the value is the result of a call, and that
    `names` are those of its items."""

    file: str
    line: int
    col: int
    end_line: int
    end_col: int
    function: str
    names: tuple[str, ...]
    returns: bool
    part: tuple[int, int] | None = None
    unpacks: bool = False


def place_of(code: types.CodeType, lasti: int) -> Place:
    """Return the place of the instruction at byte offset `lasti` (`frame.f_lasti`) of `code`.

    An offset that is not in the code, such as that of a frame not yet started, gives the first line of the code."""
    decoded = _decode(_Identity(code))
    known = 0 <= lasti // 2 < len(decoded.positions)
    line, end_line, col, end_col = decoded.positions[lasti // 2] if known else (None, None, None, None)
    line = line or code.co_firstlineno
    end_line = end_line or line
    stack = _destination(decoded, lasti) if known else _Stack()
    shift = _shift(_Identity(code))
    return Place(
        file=code.co_filename,
        line=line,
        col=_character_column(code.co_filename, line, col, shift),
        end_line=end_line,
        end_col=_character_column(code.co_filename, end_line, end_col, shift),
        function=code.co_qualname,
        names=stack.names,
        returns=stack.returns,
        part=stack.part,
        unpacks=stack.unpacks and decoded.ops[decoded.index_at(lasti)].name.startswith("CALL"),
    )


_STORING = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


def giver_of(value: object, frames: Iterable[types.FrameType]) -> Place | None:
    """The expression that gave a value, if a variable in one of these frames proves it: it still has the value, and
    nothing else is ever assigned to it."""
    for frame in frames:
        code = frame.f_code
        stars = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
        for name in [name for name, held in [*frame.f_locals.items()] if held is value]:
            stores = _stores(code, name, _STORING)
            if len(stores) == 1 and name not in arguments:
                return place_of(code, stores[0])
    return None


def _stores(code: types.CodeType, name: str, storing: tuple[str, ...]) -> list[int]:
    """The instructions before those that assign to a variable, also in functions inside."""
    before, found = 0, []
    for instruction in dis.get_instructions(code):
        if instruction.opname in storing and instruction.argval == name:
            found.append(before)
        before = instruction.offset
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found + [offset for one in inner for offset in _stores(one, name, _STORING[2:])]


def _character_column(file: str, line: int, utf8_column: int | None, shift: int) -> int:
    """Turn a column in UTF-8 bytes into a column in characters, `shift` further right. Without the source it stays as
    it is."""
    if utf8_column is None:
        return UNKNOWN_COLUMN
    utf8_column += shift
    text = linecache.getline(file, line)
    if not text or text.isascii():
        return utf8_column
    return len(text.encode()[:utf8_column].decode(errors="ignore"))


# --- instructions, alike for every version of Python -------------------------------------------------------


class _Op(NamedTuple):
    offset: int
    name: str
    code: int
    arg: int
    value: object


class _Decoded(NamedTuple):
    ops: list[_Op]
    positions: list[tuple[int | None, int | None, int | None, int | None]]

    def index_at(self, offset: int) -> int:
        """Return the index of the instruction that `offset` lies in, even if only in its inline cache."""
        start = self.ops[bisect_right(self.ops, offset, key=lambda op: op.offset) - 1].offset
        return bisect_left(self.ops, start, key=lambda op: op.offset)


class _Identity:
    """Code as a key, by identity: equal code may come from different files, and hashing it takes as long as reading."""

    __slots__ = ("code",)

    def __init__(self, code: types.CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.code is other.code


@lru_cache(maxsize=1024)
def _decode(key: _Identity) -> _Decoded:
    return _Decoded(list(_plain_ops(key.code)), list(key.code.co_positions()))


@lru_cache(maxsize=1024)
def _shift(key: _Identity) -> int:
    """How much further right the text of a code stands in its file than its columns say. A notebook whose cells are
    functions of a file (marimo) compiles their bodies without the indentation. The names in the code show it: each
    reads as the text at its place. 0 where they do not agree on a shift."""
    decoded = _decode(key)
    first_of_each = {op.offset: op for op in reversed(decoded.ops)}  # halves of an instruction have one place
    names = []
    for op in first_of_each.values():
        line, end_line, col, end_col = decoded.positions[op.offset // 2]
        if op.name.startswith(_WRITTEN_NAMES) and isinstance(op.value, str) and line is not None and line == end_line:
            written = op.value.encode()
            if col is not None and end_col == col + len(written):
                names.append((linecache.getline(key.code.co_filename, line).encode(), col, written))
    indentation = min((len(text) - len(text.lstrip()) for text, _, _ in names), default=0)
    for shift in range(indentation + 1):
        if all(text.startswith(written, col + shift) for text, col, written in names):
            return shift
    return 0


_WRITTEN_NAMES = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "LOAD_FAST", "STORE_FAST")

# Instructions that only prepare the next one: PRECALL may even be where `f_lasti` points during a call.
_PREFIXES = frozenset({"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"})


def _plain_ops(code: types.CodeType) -> Iterator[_Op]:
    """Yield the instructions: prefixes as part of the instruction that they prepare, super-instructions as halves."""
    start: int | None = None
    for instruction in dis.get_instructions(code):
        start = instruction.offset if start is None else start
        if instruction.opname in _PREFIXES:
            continue
        halves = _halves(instruction.opname)
        if halves and isinstance(instruction.argval, tuple):
            for half, name in zip(halves, instruction.argval, strict=True):
                yield _Op(start, half, dis.opmap[half], 0, name)
        elif instruction.opname == "BINARY_OP":
            name = "BINARY_SUBSCR" if instruction.argrepr == "[]" else instruction.opname
            yield _Op(start, name, instruction.opcode, instruction.arg or 0, instruction.argrepr)
        else:
            yield _Op(start, instruction.opname, instruction.opcode, instruction.arg or 0, instruction.argval)
        start = None


def _halves(opname: str) -> tuple[str, ...]:
    """Split `STORE_FAST_LOAD_FAST` into `STORE_FAST`, `LOAD_FAST`; other instructions have no halves."""
    for first in ("LOAD_FAST_BORROW", "LOAD_FAST", "STORE_FAST"):
        second = opname.removeprefix(f"{first}_")
        if second in {"LOAD_FAST_BORROW", "LOAD_FAST", "STORE_FAST"} and second != opname:
            return first, second
    return ()


# --- where a value goes ------------------------------------------------------------------------------------

_NAME_LOADS = ("LOAD_NAME", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_")
_NAME_STORES = frozenset({"STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF"})
_SINKS = frozenset({"POP_ITER", "POP_EXCEPT", "LIST_EXTEND", "SET_UPDATE", "DICT_MERGE", "DICT_UPDATE"})
# These take their operands off the stack and leave one value there, or two if a NULL goes with a callable.
_MAKERS = (
    *("BINARY_", "BUILD_", "CALL", "COMPARE_", "CONTAINS_", "CONVERT_", "FORMAT_", "GET_ITER", "IS_OP"),
    *("LIST_TO_TUPLE", "LOAD_", "MAKE_FUNCTION", "PUSH_NULL", "SET_FUNCTION_", "UNARY_"),
)
# These leave something of their own beneath the value they make: an iterator, the exit of a context manager.
_MAKERS_ON_TOP = frozenset({"FOR_ITER", "BEFORE_WITH"})
_CALL_OVERHEAD = {"CALL": 2, "CALL_KW": 3}


class _Value:
    """A value on the stack of which only its identity is known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Constant:
    value: object


class _Unfollowable(Exception):
    """Reading the instructions in order does not show where the value goes."""


def _destination(decoded: _Decoded, lasti: int) -> "_Stack":
    """Return the stack from the moment the instruction at `lasti` made a value to the moment when the value is gone."""
    ops = decoded.ops
    index = decoded.index_at(lasti)
    op = ops[index]
    stack = _Stack()
    if op.name in _MAKERS_ON_TOP or (op.name.startswith(_MAKERS) and _stack_use(op)[1] == 1):
        index += 1
        if op.name == "BINARY_OP" and str(op.value).endswith("=") and ops[index].name == "SWAP":
            stack.items[:0] = _target_of_augmented(ops, index - 1)
    elif op.name != "UNPACK_SEQUENCE":  # UNPACK_SEQUENCE makes its values itself, by iterating
        return stack
    with contextlib.suppress(_Unfollowable):
        stack.follow(decoded, index)
    return stack


def _target_of_augmented(ops: list[_Op], index: int) -> list[object]:
    """Return the target that the `+=` at `index` stores to: `self` of `self.h += x`, `d` and 0 of `d[0] += x`.

    The compiler copies the target just before it reads the old value, and nothing inside an expression looks alike."""
    for start in range(index - 1, 0, -1):
        first, second = ops[start], ops[start + 1]
        if first.name == "COPY" and (
            (first.arg == 1 and second.name == "LOAD_ATTR") or (first.arg == 2 and second[1:] == first[1:])
        ):
            return _loaded_before(ops, start)[-first.arg :]
    return []


def _loaded_before(ops: list[_Op], stop: int) -> list[object]:
    """Return the values that the unbroken run of loads and subscripts before index `stop` leaves on the stack."""
    start = stop
    while start and ops[start - 1].name.startswith(("LOAD_", "BINARY_SUBSCR")):
        start -= 1
    stack = _Stack()
    for op in ops[start:stop]:
        stack.step(op)
    return stack.items


class _Stack:
    """The interpreter's stack from the moment the value was made, as far as its contents are known.

    An item is the text of a name (`self.w`), a `_Constant`, a `_Value`, or a tuple of items just gathered."""

    def __init__(self) -> None:
        self.value = _Value()
        self.items: list[object] = [self.value]
        self.wanted: list[object] = [self.value]
        self.found: dict[object, str] = {}
        self.returns = self.unpacks = False
        self.part: tuple[int, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all wanted values; empty if one of them was given none."""
        complete = all(item in self.found for item in self.wanted)
        return tuple(self.found[item] for item in self.wanted) if complete else ()

    def follow(self, decoded: _Decoded, index: int) -> None:
        """Run from instruction `index` until the value is gone from the stack. Raises _Unfollowable."""
        while self._holds_wanted(self.items):
            op = decoded.ops[index]
            if op.name == "RETURN_VALUE":
                self._return(self.items[-1])
                return
            if op.name == "JUMP_FORWARD" and isinstance(op.value, int):
                index = decoded.index_at(op.value)
            else:
                self.step(op)
                index += 1

    def _return(self, item: object) -> None:
        self.returns = item is self.value
        if isinstance(item, tuple) and item.count(self.value) == 1:
            self.part = item.index(self.value), len(item)

    def step(self, op: _Op) -> None:
        """Do to the stack what `op` does. Raises _Unfollowable if that is not known."""
        if op.name in _NAME_STORES:
            self._store(self._pop(), str(op.value))
        elif op.name == "STORE_ATTR":
            owner = self._pop()
            self._store(self._pop(), f"{owner}.{op.value}" if isinstance(owner, str) else None)
        elif op.name == "STORE_SUBSCR":
            key, container = self._pop(), self._pop()
            self._store(self._pop(), _subscripted(container, key))
        elif op.name == "POP_TOP":
            dropped = self._pop()
            if dropped is not self.value:  # in `_, _, y = f()`: Python 3.12 drops overwritten values at once
                self._store(dropped, "_")
        elif op.name == "COPY":
            self.items.append(self._reach(op.arg))
        elif op.name == "SWAP":
            self._reach(op.arg)
            self.items[-1], self.items[-op.arg] = self.items[-op.arg], self.items[-1]
        elif op.name == "UNPACK_SEQUENCE":
            self._unpack(self._pop(), op.arg)
        elif op.name in _SINKS:
            self._pop()
        elif not op.name.startswith("DELETE_"):
            self._make(op)

    def _make(self, op: _Op) -> None:
        pops, pushes = _stack_use(op)
        popped = [self._pop() for _ in range(pops)][::-1]
        self.items += [_made_of(op, popped)] if pushes == 1 else [_Value() for _ in range(pushes)]

    def _unpack(self, item: object, count: int) -> None:
        if isinstance(item, tuple) and len(item) == count:
            self.items += reversed(item)
            return
        parts = [_Value() for _ in range(count)]
        if item is self.value and not self.names:
            self.wanted, self.unpacks = list(parts), True
        self.items += reversed(parts)

    def _store(self, item: object, target: str | None) -> None:
        if target is not None and item in self.wanted:
            self.found.setdefault(item, target)

    def _holds_wanted(self, items: Iterable[object]) -> bool:
        return any(item in self.wanted or (isinstance(item, tuple) and self._holds_wanted(item)) for item in items)

    def _reach(self, depth: int) -> object:
        while len(self.items) < depth:
            self.items.insert(0, _Value())
        return self.items[-depth]

    def _pop(self) -> object:
        self._reach(1)
        return self.items.pop()


def _stack_use(op: _Op) -> tuple[int, int]:
    """Return the number of values that `op` takes off the stack and the number it leaves. Raises _Unfollowable."""
    if op.name in _CALL_OVERHEAD:
        return op.arg + _CALL_OVERHEAD[op.name], 1
    if not op.name.startswith(_MAKERS):
        raise _Unfollowable(op.name)
    effect = dis.stack_effect(op.code, op.arg if op.code >= dis.HAVE_ARGUMENT else None)
    pushes = 2 if effect == 2 or (effect == 1 and op.name in {"LOAD_ATTR", "LOAD_METHOD"}) else 1
    return pushes - effect, pushes


def _made_of(op: _Op, popped: list[object]) -> object:
    """Return the known facts about the one value that `op` makes of the values it popped."""
    if op.name.startswith(_NAME_LOADS):
        return str(op.value)
    if op.name in {"LOAD_CONST", "LOAD_SMALL_INT"}:
        return _Constant(op.value)
    if op.name == "LOAD_ATTR" and isinstance(popped[0], str):
        return f"{popped[0]}.{op.value}"
    if op.name == "BINARY_SUBSCR":
        return _subscripted(*popped) or _Value()
    if op.name in {"BUILD_TUPLE", "BUILD_LIST"}:
        return tuple(popped)
    return _Value()


def _subscripted(container: object, key: object) -> str | None:
    """Return `d['k']` for a container that has a name and a key that is a constant, else None."""
    if not isinstance(container, str) or not isinstance(key, _Constant):
        return None
    text = repr(key.value)
    return f"{container}[{text[1:-1] if isinstance(key.value, tuple) and key.value else text}]"
