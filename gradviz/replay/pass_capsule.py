"""A pass as a PyTorch program that anybody can read and run: its values are beside it in an .npz file.

The result is code, and a trace may come from anybody: so functions are those of the closed table, names of variables
are made here, numbers and texts are written by `repr`, and names of dtypes and arguments are words."""

import keyword
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.events.kinds import CallMade, Kind
from gradviz.query.optimizer_steps import event_after_step
from gradviz.query.query import Query
from gradviz.query.replayable_functions import AUTOCASTING, DIFFERENTIATES, NAMES, settings_of
from gradviz.replay.changed_pass import step_behind
from gradviz.replay.plan import Call, Input, Plan, ReplayError, argument_of
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.file import take_away
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.ring import drop_unused, segment_of, standing, thin
from gradviz.words.escape import clean

CAPSULE = "capsule"  # in the notes of a run: the number of the only pass


def write_capsule(trace: Trace, path: Path, number: int, needed: np.ndarray) -> None:
    """Write pass `number` of a trace to `path`, in place of a file there: the events since the pass before it, the
    optimizer's step behind it, the events `needed` from elsewhere, and the events with the state of their tensors.
    Raises OSError if the file cannot be written, TraceError if the trace is damaged."""
    if path.exists() and path.samefile(trace.path):
        raise OSError(f"{path} is the trace itself: choose another name for the capsule")
    if trace.is_being_recorded:
        raise OSError(f"{trace.path} is being recorded: take a capsule when its run has ended")
    trace.reach_all()
    path.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            trace._connection.backup(connection)
            _thin(connection, path, number, needed)
    except BaseException as error:
        with suppress(OSError):
            take_away(path)
        if isinstance(error, sqlite3.Error):
            raise OSError(f"cannot write {path}: {error}") from error
        raise


def _thin(connection: sqlite3.Connection, path: Path, number: int, needed: np.ndarray) -> None:
    """Remove from a copy of a trace what the pass does not need."""
    copy = Trace(path, connection)
    whole = np.zeros(copy.count, bool)
    start, end = segment_of(copy, number)
    stop = _end_of_step(copy, end)
    whole[start:stop] = True
    kept = whole | standing(copy, whole)
    kept[stop:] &= copy.kinds[stop:] == Kind.NAMED  # events of later passes and steps do not belong to it
    kept[needed] = True
    cursor = connection.cursor()
    cursor.execute("BEGIN EXCLUSIVE")
    _unpack(cursor, copy, kept)
    copy = Trace(path, connection)
    for table in ("skipped", "contents", "site_ops"):
        cursor.execute(f"DELETE FROM {table}")
    # As a reader shows them: they had not ended yet.
    cursor.execute("UPDATE passes SET last = NULL, nodes = NULL, digest = NULL WHERE last >= ?", (copy.count,))
    drop_unused(cursor, copy, kept, "strings", "text")
    drop_unused(cursor, copy, kept, "rules", "rule")
    thin(cursor, copy, kept, whole)
    cursor.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (CAPSULE, str(number)))
    cursor.execute("COMMIT")
    cursor.execute("VACUUM")
    cursor.execute("PRAGMA journal_mode = DELETE")


def _end_of_step(copy: Trace, end: int) -> int:
    """The end of the optimizer's step between the end of a pass and the next pass; the end of the pass if there is no
    step."""
    began, steps = copy.indices(Kind.PASS_BEGAN), copy.indices(Kind.STEPPED)
    following = min(began[began >= end].tolist(), default=copy.count)
    following_steps = steps[(steps >= end) & (steps < following)]
    if not len(following_steps):
        return end
    stop = int(following_steps[-1]) + 1
    while stop < copy.count and copy.kinds[stop] == Kind.MUTATED:
        stop += 1
    return stop


def _unpack(cursor: sqlite3.Cursor, copy: Trace, kept: np.ndarray) -> None:
    """Keep each chunk as it is, no longer packed with the chunks before it, so that chunks can be removed. Values are
    kept only for chunks with events that stay."""
    unpacked = []
    for place, (number, first, count, _) in enumerate(copy.chunks.list):
        here = slice(first, first + count)
        values = copy.chunks.values(place) if kept[here].any() else b""
        links, states = copy._links_of(place).tobytes(), copy.chunks.one("states", place).tobytes()
        unpacked.append((number, (copy.events[here].tobytes(), links, states, values)))
    for number, parts in unpacked:
        for table, data in zip(("events", "links", "states", "payloads"), parts, strict=True):
            cursor.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(data), number))
    cursor.execute("UPDATE chunks SET since = id")


_HEAD = '''\
"""Pass {number} of {script}, as gradviz recorded it: python {name} runs it again."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

values = np.load(Path(__file__).with_suffix(".npz"))
'''
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "matmul": "@", "pow": "**", "floordiv": "//",
    "mod": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
    "xor": "^",
}  # fmt: skip
_OPERATOR = re.compile(r"Tensor\.__(?P<turned>r?)(?P<name>\w+?)__")
_PLACES = {"F": "F", "torch": "torch", "linalg": "torch.linalg", "special": "torch.special", "fft": "torch.fft"}
_WORD = re.compile(r"[a-z]\w{0,30}", re.ASCII)
_LONGEST = 40  # characters of a name
# Names that variables cannot have: names that the program uses itself, and an argument of NumPy's function that
# writes the values.
_OWN_NAMES = frozenset("F Path allow_pickle complex file float gradients np print slice torch values".split())
_OF_A_NUMBER = re.compile(r"t\d+", re.ASCII)  # the names of tensors without a name


def write_script(query: Query, plan: Plan, path: Path) -> Path:
    """Write the program of a pass to `path`, and its values beside it; returns the path of the values. Raises
    ReplayError for a call that cannot be written, OSError if a file cannot be written."""
    writing = _Writing(query, plan)
    text = writing.text(path.name)
    values = path.with_suffix(".npz")
    path.write_text(text, encoding="utf-8")
    with values.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **writing.arrays)
    return values


class _Writing:
    """The program of one pass, and the arrays that it reads: under the name of a variable, or under a key with a
    space, which is never a variable."""

    def __init__(self, query: Query, plan: Plan) -> None:
        self.query, self.plan = query, plan
        self.arrays: dict[str, np.ndarray] = {}
        self.names: dict[int, str] = {}
        self.taken = {*_OWN_NAMES}
        self.place = ""

    def text(self, name: str) -> str:
        """The program."""
        script = clean(self.query.trace.meta.get("script", "")).replace('"', "'").replace("\\", "/")
        head = _HEAD.format(number=self.plan.number, script=script or "a run", name=clean(name).replace('"', "'"))
        lines = [head, *self._steps(), "", *self._backward()]
        return "\n".join(lines) + "\n"

    # --- lines

    def _steps(self) -> Iterator[str]:
        context = ""
        for step in self.plan.steps:
            if isinstance(step, Input):
                yield self._input(step)
                continue
            if step.context != context:
                context = step.context
                yield from self._begin(context)
            place = self._placed(step)
            if place != self.place:
                self.place = place
                yield ""
                yield f"# {place}"
            yield from self._call(step)

    def _input(self, step: Input) -> str:
        name = self._name(step.tensor)
        key = name if name not in self.arrays else f"{name} at {step.event}"
        array = step.value.array
        assert array is not None
        self.arrays[key] = array
        made = f'torch.from_numpy(values["{key}"])'
        if step.value.dtype == "bfloat16":
            made += ".to(torch.bfloat16)"
        return f"{name} = {made}{'.requires_grad_()' if step.wants_gradient else ''}"

    def _begin(self, context: str) -> Iterator[str]:
        """Set autocast and the default dtype."""
        settings = settings_of(context)
        yield f"torch.set_default_dtype(torch.{_word(settings.default)})"
        for device in AUTOCASTING:
            is_on = device in settings.autocast
            yield f'torch.set_autocast_enabled("{device}", {is_on})'
            if is_on:
                yield f'torch.set_autocast_dtype("{device}", torch.{_word(settings.autocast[device])})'

    def _placed(self, call: Call) -> str:
        site = self.query.places.site(call.site)
        if site is None:
            return "somewhere"
        line = clean(self.query.places.line_text(call.site)).strip()
        return f"{clean(Path(site.place.file).name)}, line {site.place.line}: {line}".rstrip(": ")

    def _call(self, call: Call) -> Iterator[str]:
        if call.function not in NAMES:
            raise ReplayError(f"{clean(call.function)} is not among the functions that a replay may call")
        if call.generator is not None:
            key = f"random {call.event}"
            self.arrays[key] = np.asarray(call.generator, np.uint8)
            yield f'torch.set_rng_state(torch.from_numpy(values["{key}"]))'
        expression = self._expression(call)
        if not call.outputs:
            yield expression
            return
        names = ", ".join(self._name(tensor) for tensor in call.outputs)
        if call.function == DIFFERENTIATES:
            yield f"gradients = [one for one in {expression} if one is not None]"
            expression, names = "gradients", names + "," * (len(call.outputs) == 1)
        yield f"{names} = {expression}"

    def _backward(self) -> Iterator[str]:
        roots = [self._name(tensor) for tensor in self.plan.roots]
        if len(roots) == 1 and all(start is None or (start.ndim == 0 and start == 1) for start in self.plan.starts):
            yield f"{roots[0]}.backward()"
        else:
            yield self._backward_from(roots)
        yield ""
        for root in roots:
            yield f'print("{root} =", {root}.detach())'
        for leaf in self.plan.leaves:
            name = self._name(leaf)
            yield f'print("{name}.grad:", None if {name}.grad is None else {name}.grad.norm())'

    def _backward_from(self, roots: list[str]) -> str:
        """A pass with several roots, or with a gradient that the program gave."""
        starts = ["None"] * len(roots)
        for at, (root, start) in enumerate(zip(roots, self.plan.starts, strict=True)):
            if start is not None:
                self.arrays[f"start {root}"] = start
                starts[at] = f'torch.from_numpy(values["start {root}"]).to({root}.dtype)'
        return f"torch.autograd.backward([{', '.join(roots)}], [{', '.join(starts)}])"

    # --- expressions

    def _expression(self, call: Call) -> str:
        """A call as a program would write it."""
        place, _, name = call.function.partition(".")
        args = [self._value(part, call) for part in call.arguments[0]]
        named = [f"{_word(key)}={self._value(part, call)}" for key, part in call.arguments[1].items()]
        if call.function == DIFFERENTIATES:
            return f"torch.autograd.grad({', '.join([*args, *named])})"
        if place != "Tensor":
            return f"{_PLACES[place]}.{name}({', '.join([*args, *named])})"
        if name.endswith(".__get__"):
            return f"{args[0]}.{name.removesuffix('.__get__')}"
        if name in ("__getitem__", "__setitem__"):
            index = self._index(call.arguments[0][1], call)
            return f"{args[0]}[{index}]" + (f" = {args[2]}" if name == "__setitem__" else "")
        operator = _OPERATOR.fullmatch(call.function)
        sign = _INFIX.get(operator["name"]) if operator is not None and len(args) == 2 and not named else None
        if operator is not None and sign is not None:
            left, right = reversed(args) if operator["turned"] else args
            return f"{left} {sign} {right}"
        return f"{args[0]}.{name}({', '.join([*args[1:], *named])})"

    def _index(self, tree: Any, call: Call) -> str:
        kind, of = argument_of(tree, call)
        return ", ".join(self._place_in(part, call) for part in (of if kind == "tuple" else [tree])) or "()"

    def _place_in(self, tree: Any, call: Call) -> str:
        """A part of an index; a slice is written with colons."""
        kind, of = argument_of(tree, call)
        if kind != "slice":
            return self._value(tree, call)
        start, stop, step = ("" if bound is None else self._value(bound, call) for bound in of)
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def _value(self, tree: Any, call: Call) -> str:
        """A part of the arguments as Python. Raises ReplayError for a part of unknown form."""
        kind, of = argument_of(tree, call)
        if kind == "plain":
            return _written(of)
        if kind == "tensor":
            return self._name(of)
        if kind == "device":
            return f"torch.device({of!r})"
        if isinstance(of, str):
            return f"torch.{_word(of)}"
        parts = ", ".join(self._value(part, call) for part in of)
        if kind == "list":
            return f"[{parts}]"
        return f"({parts}{',' if len(of) == 1 else ''})" if kind == "tuple" else f"{kind}({parts})"

    def _name(self, tensor: int) -> str:
        """The variable of a tensor: named as in the program, if that is a valid name."""
        known = self.names.get(tensor)
        if known is not None:
            return known
        called = re.sub(r"\W+", "_", self.query.names.of(tensor) or "", flags=re.ASCII).strip("_")[:_LONGEST]
        is_name = called.isidentifier() and not keyword.iskeyword(called) and not _OF_A_NUMBER.fullmatch(called)
        name = called if is_name and called not in self.taken else f"t{tensor}"
        self.taken.add(name)
        self.names[tensor] = name
        return name


def _written(value: Any) -> str:
    """A value as one token of Python; a negative number is in brackets, so that it may follow any sign."""
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f"({value!r})" if isinstance(value, (int, float)) and value < 0 else repr(value)


def _word(text: str) -> str:
    """A word, which is safe in a program. Raises ReplayError for any other text."""
    if not _WORD.fullmatch(text) or keyword.iskeyword(text):
        raise ReplayError("a name in the arguments of a call is no word: the trace is damaged")
    return text


# Takes out of a trace the data that a pass needs: as a small trace of its own.


def _after_the_step(query: Query, plan: Plan) -> list[int]:
    """The events that have the parameters after the optimizer step that follows the pass, if there is one."""
    try:
        stepped = step_behind(query, plan)
    except ReplayError:
        return []
    events = [event_after_step(query, stepped, leaf) for leaf in stepped.parameters if leaf in plan.leaves]
    return [event for event in events if event is not None]


def write(query: Query, plan: Plan, path: Path) -> None:
    """Write a trace with only the pass of a plan, from which it can run again, and the parameters after the next
    step. Raises OSError if that is impossible."""
    events = [step.event for step in plan.steps] + _after_the_step(query, plan)
    calls = [query.trace.event(call.event) for call in plan.calls]
    generators = [call.generator for call in calls if isinstance(call, CallMade) and call.generator]
    kept = query.trace.table(Kind.KEPT)
    states = kept.events[np.isin(kept["copy"], generators)]
    write_capsule(query.trace, path, plan.number, np.array(sorted({*events, *states.tolist()}), np.int64))
