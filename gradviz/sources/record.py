"""Records a block of a program: `with gradviz.record("run.gradviz"):`."""

from __future__ import annotations

import os
import platform
import sys
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from inspect import iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from gradviz import background
from gradviz.errors import text_of
from gradviz.events.kinds import OpRan
from gradviz.events.listener import Listener
from gradviz.events.values import GRADES, INPUTS, WITH_ELEMENTS
from gradviz.sources import numpy_engine, pytorch
from gradviz.sources.in_scope import InScope
from gradviz.sources.notebook_cells import cell_name, notebook_meta
from gradviz.sources.operands import operands
from gradviz.sources.ranks_here import rank_meta
from gradviz.sources.tracebacks import has_our_frames, without_our_frames
from gradviz.system.paths import as_argument
from gradviz.system.process import at_fork, work_of_children
from gradviz.tracefile import Recorder, Sites
from gradviz.tracefile.chosen import AutoPasses, Passes, passes_of
from gradviz.tracefile.recorder import ChoosingRecorder, InputsRecorder
from gradviz.tracefile.sites import LIBRARY, USER

_MOST = 4  # recordings that have ended and are remembered


class Numbers(NamedTuple):
    """The numbers of the tensors of one recording: a range for gradviz's engine, by identity for PyTorch."""

    first: int
    end: int
    of_torch: dict[int, tuple[weakref.ref[Any], int]]

    def of(self, tensor: Any) -> int:
        """The number of a tensor of either engine; 0 if it was not recorded."""
        found, number = self.of_torch.get(id(tensor), (None, 0))
        if found is not None and found() is tensor:
            return number
        if not self.end:
            return 0
        from gradviz.engine.core.tensor import Tensor

        number = getattr(tensor, "_number", 0) if isinstance(tensor, Tensor) else 0
        return number if self.first <= number < self.end else 0


_Stamp = tuple[int, int]
_ended: OrderedDict[Path, tuple[Numbers, _Stamp]] = OrderedDict()


def numbers_now(engine: Any, of_torch: Any) -> Numbers:
    """The numbers that a recording has given until now; the arguments are its attachments to both engines."""
    first = end = 0
    if engine.began:
        from gradviz.engine.core.state import state
        from gradviz.events.counters import next_tensor_number

        first, end = state.first_number, next_tensor_number()
    recorder = of_torch.recorder if of_torch is not None else None
    known = list(recorder.source.identity.known.values()) if recorder is not None else []
    alive = [(tensor, one.number) for one in known if (tensor := one()) is not None]
    return Numbers(first, end, {id(tensor): (weakref.ref(tensor), number) for tensor, number in alive})


def remember(path: Path, numbers: Numbers) -> None:
    """Remember the tensors of a recording that has ended; only the last few recordings are kept. The path has to be
    absolute: the program may have changed its directory."""
    stamp = _stamp(path)
    _ended.pop(path, None)
    if stamp is not None:
        _ended[path] = numbers, stamp
    while len(_ended) > _MOST:
        _ended.popitem(last=False)


def in_an_ended(tensor: Any) -> tuple[Path, Numbers] | None:
    """The file and the numbers of the newest ended recording that has a tensor; None if there is none, or the file
    has changed since."""
    for path, (numbers, stamp) in reversed(_ended.items()):
        if numbers.of(tensor) and _stamp(path) == stamp:
            return path, numbers
    return None


def _stamp(path: Path) -> _Stamp | None:
    """The stamp of a file, which changes when the file is overwritten; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


_P = ParamSpec("_P")
_R = TypeVar("_R")
_recording: list[record] = []


def _before_fork() -> None:
    """Wait for a commit to end: a child must not inherit the file in the middle of a commit. Also end our threads:
    Python warns of a fork beside threads."""
    background.pause_all()
    for running in _recording:
        if running.recorder is not None:
            running.recorder.writer.writing.acquire()
            running.recorder.lock.acquire()


def _after_fork_in_parent() -> None:
    for running in _recording:
        if running.recorder is not None:
            running.recorder.lock.release()
            running.recorder.writer.writing.release()
            running.recorder.limit = 0  # the next event wakes the writer


def _after_fork_in_child() -> None:
    """Stop recording in a child: the file belongs to its parent."""
    background.forget_all()
    for running in _recording:
        running.abandon()


at_fork(_before_fork, _after_fork_in_parent, _after_fork_in_child)


class record:
    """Record what gradviz's engine and PyTorch do in a `with` block into the file `path`; or, as a decorator, in each
    call of a function, which writes the file anew.

    `values` is `none`, `stats`, `inputs` (what a pass can be run again from) or `full`; `passes` the numbers of the
    backward passes to record in detail (None: all), or a text as of `--passes` (`auto`: ever fewer, and those behind a
    NaN, a jump or an error; `1-1000,auto`: so many first), or `every` so many of them; `scope` the name of the modules
    or custom Functions to record in detail (None: the whole program); `last` how many passes to keep (None: all),
    besides those around an error or a NaN; `aten` whether to record the aten ops that PyTorch's ops are made of;
    `check_functions` whether to compare the backward of custom Functions with finite differences, for which their
    forward runs again; `source` whether the trace keeps the source texts of the program (places stay); `profile`
    whether to measure the time, the memory and the operations of PyTorch's ops; `histograms` whether to count the
    elements of what modules return, of parameters and of gradients in 32 bins, on PyTorch, at passes 1, 2, 4, 8 and
    so on. `through` wraps the recorder: it is given the recorder and returns the listener that the engine calls.
    Without `with_torch` PyTorch is left alone. An exception passes through, and is noted in the trace. Raises OSError
    where the file cannot be written, ValueError for a setting that does not exist."""

    def __init__(
        self,
        path: Path | str,
        values: str = "stats",
        passes: Container[int] | Passes | AutoPasses | str | None = None,
        sites: Sites | None = None,
        meta: dict[str, str] | None = None,
        through: Callable[[Recorder], Listener] | None = None,
        with_torch: bool = True,
        scope: str | None = None,
        last: int | None = None,
        say: Callable[[str], None] | None = None,
        aten: bool = False,
        check_functions: bool = False,
        source: bool = True,
        every: int | None = None,
        profile: bool = False,
        histograms: bool = False,
    ) -> None:
        if every is not None:
            if every < 1 or passes is not None:
                raise ValueError(f"every is a number from 1, in place of passes, not {every}")
            passes = Passes((), (every,))
        if isinstance(passes, str):
            passes = passes_of(passes)
        if last is not None and last < 1:
            raise ValueError(f"last is a number of passes, from 1, not {last}")
        if values not in GRADES:
            raise ValueError(f"values is none, stats, inputs or full, not {values!r}")
        if values == INPUTS and scope is not None:
            raise ValueError("inputs are kept of whole passes: leave out scope, or take values=full")
        self.path = Path(path)
        self.values, self.passes, self.scope, self.last, self.aten = values, passes, scope, last, aten
        self.check_functions, self.profile, self.histograms = check_functions, profile, histograms
        self.source = source
        self.say = say
        self.failure: BaseException | None = None  # the error that ended the recording before the block ended
        self.kept_earlier = False  # whether nothing was recorded, and an earlier trace is still there
        self.in_scope: InScope | None = None
        self.sites = sites
        self.meta = meta
        self.through = through
        self.with_torch = with_torch
        self.attachment: pytorch.Attachment | None = None
        self.recorder: Recorder | None = None
        self.error: BaseException | None = None  # one that ended the run and was handled inside the block

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """A function whose calls are recorded. A recorded call that calls the function again records both as one.
        Raises TypeError for a coroutine or generator function: its body runs later."""
        if not callable(function) or iscoroutinefunction(function) or isgeneratorfunction(function):
            raise TypeError(f"record decorates a plain function, not {function!r}")

        @wraps(function)
        def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if self.recorder is not None:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return recorded

    @property
    def scopes_instead(self) -> tuple[str, ...] | None:
        """The names of some scopes that were entered, if the scope to record never was; otherwise None."""
        in_scope = self.in_scope
        return None if in_scope is None or in_scope.entered else tuple(in_scope.seen)

    def __enter__(self) -> record:
        caller = sys._getframe(1)
        sites = self.sites
        if sites is None:
            sites = Sites(own=pytorch.own_directories() if self.with_torch else (), cell_name=cell_name)
            sites.begin_at(caller)
        sites.keeps_source = self.source
        meta = {**run_meta(), **notebook_meta(caller), **(self.meta or {})}
        if not self.source:
            meta["no_source"] = "1"
        if self.scope is not None:
            meta["scope"] = self.scope
        meta |= {name: "1" for name in ("check_functions", "profile", "histograms") if getattr(self, name)}
        if self.last is not None:
            meta["last"] = str(self.last)
        settings = self.passes, sites, meta, self.scope is not None, self.last, self.say
        keeps_inputs = self.values == INPUTS
        inputs = InputsRecorder(self.path, *settings) if keeps_inputs else None
        kind = ChoosingRecorder if isinstance(self.passes, AutoPasses) else Recorder
        self.recorder = inputs or kind(self.path, self.values, *settings)
        listener = self.through(self.recorder) if self.through is not None else self.recorder
        if self.scope is not None:
            listener = self.in_scope = InScope(listener, self.scope)
        self.engine = numpy_engine.Attachment(listener, self.check_functions, inputs)
        self.engine.begin()
        if self.with_torch:
            replayed = self.recorder if self.values in WITH_ELEMENTS else None
            self.attachment = pytorch.Attachment(
                listener, self._torch_began, self._torch_failed, self.through is not None, replayed, aten=self.aten,
                check_functions=self.check_functions, profile=self.profile, histograms=self.histograms,
            )  # fmt: skip
            self.attachment.begin()
        self.work_of_children = work_of_children()
        _recording.append(self)
        return self

    def up_to_here(self, tensor: Any) -> Numbers | None:
        """The numbers of a recording under way, after writing the file up to now; None if `tensor` is not in the
        recording, or the file could not be written, which the recording reports itself."""
        numbers = numbers_now(self.engine, self.attachment)
        if self.recorder is None or not numbers.of(tensor):
            return None
        try:
            self.recorder.flush()
        except OSError:
            return None
        return numbers

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which this thread records nothing: a debugger evaluates something in the paused program."""
        with ExitStack() as stack:
            stack.enter_context(self.engine.quiet())
            if self.attachment is not None:
                stack.enter_context(self.attachment.quiet())
            yield

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """The function that the op which made a node computed, from its tensor inputs, arrays to arrays. `alone`
        means that the op made no other node. Raises LookupError, with the reason, if the op cannot run again."""
        if self.attachment is not None and self.attachment.recorder is not None:
            return self.attachment.forward_of(op)
        from gradviz.sources.engine_replayable import forward_of

        return forward_of(op, node, alone)

    def _torch_began(self) -> None:
        """Note in the file that the engine is PyTorch."""
        import torch

        if self.recorder is not None:
            self.recorder.note(engine="torch", torch=torch.__version__)

    def _torch_failed(self, line: str) -> None:
        """Report that PyTorch cannot be recorded, or no longer: once, to the user and in the file."""
        if self.recorder is not None:
            self.recorder.note(stopped=f"{line}; complete up to event {self.recorder.count}")
            with suppress(Exception):  # there may be no stderr
                self.recorder.writer.say(f"gradviz: {line}: the program runs on unrecorded")

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.recorder is None:
            return
        last, about = error or self.error, {}
        with suppress(Exception):  # whatever a frame holds, the program's own exception goes on
            used = operands(last, self.recorder.sites) if isinstance(last, Exception) else []
            with self.quiet():
                about = {"operands": ", ".join(one.told(self.values != "none") for one in used)} if used else {}
            if used and self.attachment is not None and self.attachment.recorder is not None:
                self.attachment.recorder.resting.raised(used)
        numbers = numbers_now(self.engine, self.attachment)
        if self.attachment is not None:
            if left_out := self.attachment.left_out():  # values, for lack of device memory
                self.recorder.note(left_out=str(left_out))
            self.recorder.note(**self.attachment.rank())
            self.attachment.end()
        self.engine.end()
        _recording.remove(self)
        self._tell_of(last)
        self.recorder.sites.begin_at(None)
        recorder = self.recorder
        others = {"children": "1"} if work_of_children() > self.work_of_children else {}
        recorder.close(**end_meta(last, recorder.sites), **about, **others)
        self.failure = recorder.writer.failure
        self.kept_earlier = recorder.writer.file.is_beside
        remember(recorder.writer.file.path, numbers)
        self.recorder = None
        if error is not None and has_our_frames(error.__traceback__):
            error.with_traceback(without_our_frames(error.__traceback__))

    def _tell_of(self, error: BaseException | None) -> None:
        """Record the error that ends the program, unless the backward pass that raised it has recorded it."""
        recorder = self.recorder
        if recorder is None or not isinstance(error, Exception):
            return
        type_and_message = type(error).__name__, text_of(error)
        if type_and_message != recorder.last_error and recorder.sites.number(error.__traceback__):
            recorder.error(error.__traceback__, *type_and_message)

    def abandon(self) -> None:
        """Stop recording without touching the file."""
        if self.recorder is not None:
            self.engine.abandon()
            if self.attachment is not None:
                self.attachment.abandon()
            self.recorder.writer.abandon()
            self.recorder = None


def under_way() -> record | None:
    """The innermost recording that is under way; None if nothing is recorded."""
    return _recording[-1] if _recording else None


def where_recorded(tensor: Any) -> tuple[Path, Numbers] | None:
    """The file that a tensor at hand was recorded in, and the tensor numbers of that recording: the newest that has
    the tensor. None if there is none."""
    for running in reversed(_recording):
        if (numbers := running.up_to_here(tensor)) is not None:
            return running.path, numbers
    return in_an_ended(tensor)


def run_meta() -> dict[str, str]:
    """The metadata that a trace has when the run begins."""
    from gradviz.version import __version__

    rank = rank_meta()
    is_script = sys.argv and sys.argv[0].endswith(".py") and sys.modules["__main__"].__spec__ is None
    return {
        "gradviz": __version__,
        "engine": "numpy",
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "script": sys.argv[0] if sys.argv else "",
        "ended": "",
        **({"program": as_argument(sys.argv[0]) + " ARGUMENTS" * (len(sys.argv) > 1)} if is_script else {}),
        **({**rank, "host": platform.node()} if rank else {}),
    }


def end_meta(error: BaseException | None, sites: Sites) -> dict[str, str]:
    """The metadata about how the run ended; `sites` knows whose code a file is, and its displayed name."""
    if error is None:
        return {"ended": "ok"}
    if isinstance(error, SystemExit):
        code = getattr(error, "code", None)
        return {"ended": f"exit {text_of(code) if code is not None else 0}"}
    lines = traceback.format_exception_only(error)
    # The lines of a SyntaxError begin with its place, which is indented.
    text = next(line for line in lines if not line.startswith(" ")).strip()
    meta = {"ended": "error", "error_type": type(error).__name__, "error": text}
    file, line = _place_of_end(error, sites)
    return {**meta, "error_file": sites.name_of(file), "error_line": str(line)} if file else meta


def _place_of_end(error: BaseException, sites: Sites) -> tuple[str, int]:
    """The file and line of the program's own code that an error left last, else that of a library. A file that cannot
    be parsed ran no line: the place is in the file. "" and 0 if none is known."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return error.filename, error.lineno or 0
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
    for owner in USER, LIBRARY:
        for frame in reversed(frames):
            if sites.sort_of(frame.filename) == owner:
                return frame.filename, frame.lineno or 0
    return "", 0
