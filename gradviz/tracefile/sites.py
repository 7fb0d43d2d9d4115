"""The place where an event happened: the frames that led to it, as one number.

A site is a place together with the site that called it, so that a function called from two lines has two sites. Hot
code only collects `(code, offset)` pairs; lines, columns and names are worked out when a trace is written.

Four sorts of frames are on the stack. Frames of the user's program are the places that people see. Frames of libraries
are kept, so that an op inside a library's model has its line there too. Frames of the source's own package and of the
standard library are left out. Frames of the runner mark where the user's program begins.
"""

import ast
import json
import linecache
import os
import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

from gradviz.events.site import Place, place_of
from gradviz.system.turns import new_own_turn

USER, INTERNAL, BOUNDARY, LIBRARY, CALL = 1, 2, 3, 4, 5
DEEPEST = 100  # frames of a site, and one more; callers further out are left out

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_PATHS = sysconfig.get_paths()
_STDLIB = tuple(_PATHS[name] for name in ("stdlib", "platstdlib"))
_LIBRARIES = tuple(_PATHS[name] for name in ("purelib", "platlib"))
# A machine has several folders of libraries: the environment's, the user's own, the system's.
_LIBRARY_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_users(filename: str) -> bool:
    """Whether a file belongs to no library."""
    return not (_is_in_library(filename) or filename.startswith(_STDLIB))


def _is_in_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or any(folder in filename for folder in _LIBRARY_FOLDERS)


class Site(NamedTuple):
    """A place and the number of the site that called it (0: none).

    `names` are the variables that the value made there is assigned to. `library` is the library's own line, if the
    place is a call of a library; else None."""

    number: int
    parent: int
    place: Place
    names: tuple[str, ...]
    library: Place | None = None


class Frame(NamedTuple):
    """One frame of a site: a site as it is written, before library frames are joined with their callers."""

    number: int
    parent: int
    place: Place
    names: tuple[str, ...]
    is_library: bool

    def row(self, path: Callable[[str], str], name: Callable[[str], str]) -> tuple[Any, ...]:
        """The row of the table `sites`; paths and names are stored as these functions give them."""
        at, names = self.place, json.dumps([name(one) for one in self.names])
        where = path(at.file), at.line, at.col, at.end_line, at.end_col, name(at.function)
        return self.number, self.parent, *where, names, self.is_library


class Sites:
    """Numbers the places that events come from.

    `boundary` are the code objects whose callers are no part of the script: the runner's. `own` are the directories of
    the source's own packages. `names` are the names of files by their paths: the script, as the user named it.
    `cell_name` gives the name of a file that is a cell of a notebook. Without `keeps_source` the texts of the files are
    left out of the trace."""

    def __init__(
        self,
        boundary: Iterable[CodeType] = (),
        own: Iterable[str] = (),
        names: Mapping[str, str] | None = None,
        keeps_source: bool = True,
        cell_name: Callable[[str], str | None] = lambda path: None,
    ) -> None:
        self.cell_name = cell_name
        self.keeps_source = keeps_source
        self._adding = new_own_turn()
        self.own = (_PACKAGE, *own)
        self.names = dict(names or {})
        self._paths = {name: path for path, name in self.names.items()}
        self.kinds: dict[int, int] = {}
        self.codes: list[CodeType] = []  # kept alive: `kinds` knows them by address
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.open: dict[int, int] = {}  # the sites of calls that run now, by the identity of their frames
        self._inside: dict[tuple[int, ...], int] = {}  # sites by the frames below such a call, and its site
        self.begin_at(None)
        self._made: dict[int, tuple[int, CodeType | Place, int]] = {}  # parent, code and offset of each site
        self._new: deque[int] = deque()  # added to while it is being written
        self._frames: dict[int, Frame] = {}
        for code in boundary:
            self._classify(code, BOUNDARY)

    def begin_at(self, root: FrameType | None) -> None:
        """Leave out the callers of `root`, the frame that began the recording."""
        self.root = root
        self.called: dict[tuple[int, int, int], int] = {}  # sites in functions that `root` calls

    def number(self, where: FrameType | TracebackType | Place | int | None) -> int:
        """The site of a place. `where` is a frame (the innermost frame at or above it that counts is the place), the
        frames that an exception passed, a place, or already the number. 0 if there is none."""
        if type(where) is FrameType:
            return self.number_of_frame(where)
        if type(where) is int:
            return where
        if where is None:
            return 0
        if isinstance(where, TracebackType):
            return self._number_of_traceback(where)
        return self.numbers.get((where,)) or self._add((where,))

    def number_of_frame(self, frame: FrameType) -> int:
        """The site of the innermost frame that counts, at or above `frame`; 0 if there is none."""
        root = self.root
        if frame is root:
            return self.numbers.get((id(frame.f_code), frame.f_lasti)) or self._walk(frame)
        caller = frame.f_back
        if caller is None or caller is not root:
            return self._walk(frame)
        key = (id(frame.f_code), frame.f_lasti, caller.f_lasti)
        known = self.called.get(key)
        if known is None:
            known = self.called[key] = self._walk(frame)
        return known

    def enter(self, frame: FrameType) -> int:
        """The site of a call that runs in `frame`. If that is a frame of the source's own, the frames above it are not
        examined again until `leave` is called."""
        code = frame.f_code
        kind = self.kinds.get(id(code)) or self._classify(code)
        if kind == INTERNAL:
            kind = self.kinds[id(code)] = CALL
        if kind != CALL:
            return self.number_of_frame(frame)
        self.open.pop(id(frame), None)
        caller = frame.f_back
        is_first = caller is None or caller is self.root
        number = self.open[id(frame)] = self.number_of_frame(frame) if is_first else self._walk(caller)
        return number

    def leave(self, frame: int) -> None:
        """End the call in the frame of this identity."""
        self.open.pop(frame, None)

    def _walk(self, frame: FrameType | None) -> int:
        """The site of the innermost frame that counts, at any depth at or above `frame`; 0 if there is none."""
        kind_of, root, internal = self.kinds.get, self.root, INTERNAL
        key: list[int] = []
        outermost = None
        while frame is not None:
            code = frame.f_code
            kind = kind_of(id(code))
            if kind == internal:  # most frames are internal: those of modules, of the engine
                frame = frame.f_back
                continue
            if kind is None:
                self._classify(code)
                continue
            if kind == CALL:
                call = self.open.get(id(frame))
                if call is not None:
                    return self._number_inside(call, key) if key else call
                frame = frame.f_back
                continue
            if kind == BOUNDARY:
                self.begin_at(outermost)  # the script's own frame, which lives as long as the script
                break
            key += (id(code), frame.f_lasti)
            if frame is root or len(key) > 2 * DEEPEST:
                break
            outermost = frame
            frame = frame.f_back
        frames = tuple(key)
        return self.numbers.get(frames) or self._add(frames)

    def _number_inside(self, call: int, key: list[int]) -> int:
        """The site of frames below the frame of a call, whose site is known."""
        frames = (*key, call)
        known = self._inside.get(frames)
        if known is None:
            whole = (*key, *self._key_of(call))[: 2 * DEEPEST + 2]
            known = self._inside[frames] = self.numbers.get(whole) or self._add(whole)
        return known

    def _key_of(self, number: int) -> tuple[int, ...]:
        """The frames of a site."""
        key: tuple[int, ...] = ()
        while number:
            number, code, offset = self._made[number]
            key += (id(code), offset)
        return key

    def _classify(self, code: CodeType, kind: int = 0) -> int:
        kind = self.kinds[id(code)] = kind or self.sort_of(code.co_filename)
        self.codes.append(code)
        return kind

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's own code at or above `frame`; None if there is none."""
        while frame is not None and (self.kinds.get(id(frame.f_code)) or self._classify(frame.f_code)) != USER:
            frame = frame.f_back
        return frame

    def sort_of(self, filename: str) -> int:
        """The owner of the code in a file: USER, LIBRARY or INTERNAL."""
        if filename.startswith((*self.own, "<frozen ", "<gradviz>")):
            return INTERNAL
        if _is_in_library(filename):
            return LIBRARY
        return USER if is_users(filename) else INTERNAL

    def _add(self, key: tuple[Any, ...]) -> int:
        if not key:
            return 0
        with self._adding:  # several threads may come to new places at once
            return self.numbers.get(key) or self._new_number(key)

    def _new_number(self, key: tuple[Any, ...]) -> int:
        if len(key) == 1:
            parent, what, offset = 0, key[0], 0
        else:
            parent = self.numbers.get(key[2:]) or self._add(key[2:])
            what, offset = next(code for code in reversed(self.codes) if id(code) == key[0]), key[1]
        number = self.numbers[key] = len(self.numbers) + 1
        self._made[number] = (parent, what, offset)
        self._new.append(number)
        return number

    def _number_of_traceback(self, trace: TracebackType | None) -> int:
        """The site that raised an exception, or that it passed through last; 0 if there is none. A traceback begins
        where the exception was caught; the callers of that frame led to it too."""
        key = self._callers(trace)
        while trace is not None:
            code = trace.tb_frame.f_code
            if (self.kinds.get(id(code)) or self._classify(code)) in (USER, LIBRARY):
                key = (id(code), trace.tb_lasti, *key[: 2 * DEEPEST])
            trace = trace.tb_next
        return self.numbers.get(key) or self._add(key)

    def _callers(self, trace: TracebackType | None) -> tuple[int, ...]:
        """The frames that called those of a traceback; none if the exception has left the script."""
        later = trace
        while later is not None:
            if self.kinds.get(id(later.tb_frame.f_code)) == BOUNDARY:
                return ()
            later = later.tb_next
        return () if trace is None else self._key_of(self.number(trace.tb_frame.f_back))

    # --- decoding

    def path_of(self, file: str) -> str:
        """The path of a file of a place."""
        return self._paths.get(file, file)

    def source_of(self, file: str) -> str | None:
        """The text of a file of a place, empty if it cannot be read; None if it is left out."""
        return "".join(linecache.getlines(self.path_of(file))) if self.keeps_source else None

    def frame(self, number: int) -> Frame:
        """One frame, decoded."""
        known = self._frames.get(number)
        if known is None:
            parent, what, offset = self._made[number]
            place = what if isinstance(what, Place) else place_of(what, offset)
            is_library = self.sort_of(place.file) == LIBRARY
            own_names = () if is_library else place.names  # a library's variables are not the user's
            names = own_names or (self._names_of_call(place.function, parent) if place.returns and parent else ())
            names = names or (self._name_of_part(place, parent) if place.part and not is_library else ())
            name = self.name_of(place.file)
            if name != place.file:
                place = replace(place, file=name)
            known = self._frames[number] = Frame(number, parent, place, names, is_library)
        return known

    def name_of(self, path: str) -> str:
        """The name of a file; no two files have the same."""
        name = self.names.get(path)
        if name is None:
            cell = self.cell_name(path)
            name = path if cell is None or cell in self._paths else cell
            self.names[path] = name
            self._paths[name] = path
        return name

    def _names_of_call(self, function: str, caller: int) -> tuple[str, ...]:
        """The names that a caller gives to what a function returns; none if the source shows that the caller calls
        another function, which was given this one: `slope = grad(f)(x)`."""
        frame = self.frame(caller)
        is_given = frame.names and _is_given(frame.place, self.path_of(frame.place.file), function)
        return () if is_given else frame.names

    def _name_of_part(self, place: Place, caller: int) -> tuple[str, ...]:
        """The name that an item of a returned tuple gets if the caller unpacks it: `a` for `a, b = f(x)`. None unless
        the source shows that this function is called there: a function that only gets it as an argument, as
        `max(xs, key=f)`, may return something else."""
        function = place.function
        while caller:
            frame = self.frame(caller)
            if not _calls(frame.place, self.path_of(frame.place.file), function):
                return ()
            if frame.place.unpacks:
                at, count = place.part or (0, 0)
                return frame.names[at : at + 1] if len(frame.names) == count else ()
            if not frame.place.returns:
                return ()
            function, caller = frame.place.function, frame.parent
        return ()

    def site(self, number: int) -> Site:
        """One site. Its place is the innermost of the user's own code."""
        return joined(number, self.frame)

    def take_new(self) -> list[Frame]:
        """The frames added since the last call, decoded."""
        return [self.frame(self._new.popleft()) for _ in range(len(self._new))]


def _calls(place: Place, path: str, function: str) -> bool:
    """Whether the expression at a place is a call of a function of this qualified name: by its own name, or of a module
    or object whose `forward` or `__call__` it is."""
    called, name = _called_at(place, path), function.rpartition(".")[2]
    return called is not None and (name in ("forward", "__call__") or last_name(called.func) == name)


def _is_given(place: Place, path: str, function: str) -> bool:
    """Whether the expression at a place calls a function that was given a function of this qualified name, and that may
    return something else: `max(xs, key=f)`, `grad(f)(x)`, or `slope_of(x)` where `slope_of = grad(f)`."""
    called, name = _called_at(place, path), function.rpartition(".")[2]
    if called is None or name in ("forward", "__call__", last_name(called.func)):
        return False
    is_lambda = name == "<lambda>"
    nodes = [one for value in (*called.args, *called.keywords, called.func) for one in ast.walk(value)]
    if any(isinstance(one, ast.Lambda) if is_lambda else last_name(one) == name for one in nodes):
        return True
    given = "lambda" if is_lambda else re.escape(name)
    maker = re.compile(rf"\s*{re.escape(last_name(called.func))}\s*=.*\(.*\b{given}\b")
    return not isinstance(called.func, ast.Call) and any(map(maker.match, linecache.getlines(path)))


def _called_at(place: Place, path: str) -> ast.Call | None:
    """The call that the expression at a place is; None for any other expression."""
    lines = linecache.getlines(path)[place.line - 1 : place.end_line]
    if not lines or place.col < 0:
        return None
    lines[-1] = lines[-1][: place.end_col]
    lines[0] = lines[0][place.col :]
    text = "".join(lines).replace("\\\n", "\n").replace("\\", "/")  # Python would warn of an unknown escape
    try:
        called = ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return called if isinstance(called, ast.Call) else None


def last_name(expression: ast.AST) -> str:
    """The last name of a path: `sqrt` for `torch.sqrt`; empty for another expression."""
    return expression.id if isinstance(expression, ast.Name) else getattr(expression, "attr", "")


def joined(number: int, frame_of: Callable[[int], Frame | None]) -> Site:
    """A site from frames: the library's frames are joined with the user's frame that called them. If no caller is a
    user's frame, the library's own place is the place."""
    innermost = frame_of(number)
    assert innermost is not None
    frame: Frame | None = innermost
    while frame is not None and frame.is_library:
        frame = frame_of(frame.parent) if 0 < frame.parent < frame.number else None
    if frame is None:
        return Site(number, innermost.parent, innermost.place, innermost.names)
    library = innermost.place if innermost.is_library else None
    return Site(number, frame.parent, frame.place, innermost.names, library)
