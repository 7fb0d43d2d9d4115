"""The stepper for editors: answers the requests of the Debug Adapter Protocol by a session of the stepper, forwards and
backwards (https://microsoft.github.io/debug-adapter-protocol/specification)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradviz.errors import GradvizError
from gradviz.step import CommandError
from gradviz.step.breakpoints import Breakpoint, breakpoint_of
from gradviz.step.leaves import LeafRow, View, leaf_rows
from gradviz.step.plain import told
from gradviz.step.state import Session
from gradviz.step.verbs import BY_NAME, obey
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace
from gradviz.words.rows import rows
from gradviz.words.sentences import sentence
from gradviz.words.stop import subject

Arguments = dict[str, Any]
THREAD = 1  # the one thread that an editor is shown
_MOVES = {  # requests that move, and the stepper's verb of each
    "next": "line",
    "stepBack": "line-back",
    "stepIn": "next",
    "stepOut": "out",
    "continue": "continue",
    "reverseContinue": "reverse-continue",
}
_CAPABILITIES = (
    "supportsConfigurationDoneRequest", "supportsFunctionBreakpoints", "supportsConditionalBreakpoints",
    "supportsStepBack", "supportsDataBreakpoints", "supportsEvaluateForHovers",
)  # fmt: skip
# Filters of exceptions: the label and the predicate of each.
_EXCEPTIONS = {"nan": ("NaN or infinity", "nan or inf"), "error": ("Errors", "error")}
# References to variables: those of the three scopes, and of the first row of a table that was shown.
_EVENT, _LEAVES, _VARIABLES, _ROWS = 1, 2, 3, 10
_MOST = 200  # rows of a table
_NOTHING = "nothing was recorded there"


class Adapter:
    """Answers one editor. `send` sends it an event with its body; `launched` gives the session of a launch."""

    def __init__(self, send: Callable[[str, Arguments], None], launched: Callable[[Arguments], Session]) -> None:
        self.send, self.launched = send, launched
        self.shown: list[LeafRow] = []
        self.files: list[str] = []  # those without a file on disk, by their references
        # the numbers of breakpoints, by the request (and file) that set them
        self.set_by: dict[str, list[int]] = {}

    def answer(self, command: str, arguments: Arguments) -> Arguments:
        """The body of the response to a request. Raises CommandError, in one line, if it cannot be answered."""
        answers: dict[str, Callable[[Arguments], Arguments]] = {
            "initialize": self._initialize, "launch": self._launch, "attach": self._launch,
            "configurationDone": self._begin, "setBreakpoints": self._break_at_lines,
            "dataBreakpointInfo": self._watchable,
            "setFunctionBreakpoints": lambda one: self._set("functions", [own["name"] for own in one["breakpoints"]]),
            "setDataBreakpoints": self._watch, "setExceptionBreakpoints": self._break_at_faults,
            "threads": lambda _: {"threads": [{"id": THREAD, "name": "the recorded run"}]},
            "stackTrace": self._stack, "scopes": self._scopes, "variables": self._variables,
            "source": self._recorded,
            "evaluate": self._evaluate, "disconnect": lambda _: {}, "terminate": lambda _: {},
            **dict.fromkeys(_MOVES, lambda _: self._moved(command)),
        }  # fmt: skip
        if command not in answers:
            raise CommandError("a recorded run has no {request}", request=command)
        if not (hasattr(self, "session") or command in ("initialize", "launch", "attach", "disconnect")):
            raise CommandError("launch a trace first")
        return answers[command](arguments)

    # --- beginning

    def _initialize(self, asked: Arguments) -> Arguments:
        filters = [{"filter": key, "label": label} for key, (label, _) in _EXCEPTIONS.items()]
        return {**dict.fromkeys(_CAPABILITIES, True), "exceptionBreakpointFilters": filters}

    def _launch(self, asked: Arguments) -> Arguments:
        self.session = self.launched(asked)
        self.send("initialized", {})
        return {}

    def _begin(self, asked: Arguments) -> Arguments:
        self._stopped("entry")
        return {}

    def _moved(self, command: str) -> Arguments:
        obey(self.session, _MOVES[command])
        self._stopped("breakpoint" if _MOVES[command].endswith("continue") else "step")
        return {"allThreadsContinued": True}

    def _stopped(self, reason: str) -> None:
        self.shown.clear()  # references hold until the next stop
        text = self.session.message or sentence(self.session.stop)
        told_as = {"reason": reason, "description": text, "text": text}
        self.send("stopped", {**told_as, "threadId": THREAD, "allThreadsStopped": True})

    # --- breakpoints

    def _break_at_lines(self, asked: Arguments) -> Arguments:
        file = asked["source"].get("path") or asked["source"].get("name", "")
        places = []
        for one in asked.get("breakpoints", ()):
            line = f"{file_name(file)}:{one['line']}"
            only = f" and ({one['condition']})" if one.get("condition") else ""
            places.append(f'if file == "{file_name(file)}" and line == {one["line"]}{only}' if only else line)
        return self._set(f"lines of {file}", places)

    def _break_at_faults(self, asked: Arguments) -> Arguments:
        filters = [one for one in asked["filters"] if one in _EXCEPTIONS]
        return self._set("faults", [f"if {_EXCEPTIONS[one][1]}" for one in filters])

    def _watchable(self, asked: Arguments) -> Arguments:
        name = asked["name"]
        about = str(subject(self.session.words, name, self.session.position))
        return {"dataId": name, "description": f"where {about} changes"}

    def _watch(self, asked: Arguments) -> Arguments:
        words, k = self.session.words, self.session.position

        def watched(name: str) -> Breakpoint:
            about = subject(words, name, k)
            return Breakpoint(f"watch {about}", watched=about)

        return self._renew("data", watched, [one["dataId"] for one in asked["breakpoints"]])

    def _set(self, owner: str, texts: list[str]) -> Arguments:
        return self._renew(owner, lambda text: breakpoint_of(text, self.session.words), texts)

    def _renew(self, owner: str, made: Callable[[str], Breakpoint], texts: list[str]) -> Arguments:
        """Set breakpoints in the place of those that `owner` has set before."""
        for number in self.set_by.pop(owner, []):
            if number in self.session.breakpoints.by_number:
                self.session.breakpoints.delete(number)
        answers: list[Arguments] = []
        numbers, session = self.set_by.setdefault(owner, []), self.session
        for text in texts:
            try:
                numbers.append(session.breakpoints.add(made(text)))
                stops = len(session.breakpoints.events(numbers[-1], session.words, session.columns)) > 0
                answers.append({"id": numbers[-1], "verified": stops, "message": "" if stops else _NOTHING})
            except GradvizError as error:
                answers.append({"verified": False, "message": str(error)})
        return {"breakpoints": answers}

    # --- looking

    def _stack(self, asked: Arguments) -> Arguments:
        site, _ = self.session.stop.place
        callers = self.session.query.places.callers(site.number) if site is not None else []
        frames: list[Arguments] = [
            {"id": number, "name": place.function or "<module>", "line": place.line, "column": max(place.col, 0) + 1,
             "source": self._source(place.file)}
            for number, place in enumerate((one.place for one in callers), 1)
        ]  # fmt: skip
        nowhere = [{"id": 1, "name": sentence(self.session.stop), "line": 0, "column": 0}]
        return {"stackFrames": frames or nowhere, "totalFrames": len(frames) or 1}

    def _source(self, file: str) -> Arguments:
        """A file as an editor knows it: by its path, if it still has the recorded text, else by a reference."""
        path = _path_of(self.session.trace, file)
        if path is not None:
            return {"name": path.name, "path": str(path)}
        if file not in self.files:
            self.files.append(file)
        return {"name": file_name(file), "sourceReference": self.files.index(file) + 1}

    def _recorded(self, asked: Arguments) -> Arguments:
        file = self.files[asked["sourceReference"] - 1]
        return {"content": "".join(f"{line}\n" for line in self.session.trace.source(file))}

    def _scopes(self, asked: Arguments) -> Arguments:
        named = (("Event", _EVENT), ("Leaves", _LEAVES), ("Variables", _VARIABLES))
        return {"scopes": [{"name": name, "variablesReference": at, "expensive": False} for name, at in named]}

    def _variables(self, asked: Arguments) -> Arguments:
        reference, stop = asked["variablesReference"], self.session.stop
        if reference >= _ROWS:
            row = self.shown[reference - _ROWS]
            parts = (("value", row.value, row.name), ("grad", row.grad or "None", f"{row.name}.grad"),
                     ("requires_grad", str(row.requires_grad), ""))  # fmt: skip
            return {"variables": [_variable(*part) for part in parts]}
        if reference == _EVENT:
            event = _variable("event", f"{self.session.position + 1}: {sentence(stop)}")
            return {"variables": [event, *(_variable(str(row.label), row.text) for row in rows(stop))]}
        found, _ = leaf_rows(stop, _MOST, view=View(variables=reference == _VARIABLES))
        first = _ROWS + len(self.shown)
        self.shown += found
        return {
            "variables": [
                {**_variable(row.name, f"{row.value}  grad {row.grad}" if row.grad else row.value, row.name),
                 "type": row.what, "variablesReference": first + at}
                for at, row in enumerate(found)
            ]
        }  # fmt: skip

    def _evaluate(self, asked: Arguments) -> Arguments:
        """A verb of the stepper, as `why` or `who w`; of anything else, the elements at this event."""
        line, before = asked["expression"].strip(), self.session.position
        is_verb = line.partition(" ")[0] in BY_NAME and asked.get("context") != "hover"
        obey(self.session, line if is_verb else f"print {line}")
        said = "\n".join(told(self.session, self.session.position != before))
        if self.session.position != before:
            self._stopped("goto")
        return {"result": said, "variablesReference": 0}


def _variable(name: str, value: str, expression: str = "") -> Arguments:
    return {"name": name, "value": value, "evaluateName": expression or None, "variablesReference": 0}


def _path_of(trace: Trace, file: str) -> Path | None:
    """The path of a recorded file, if there is one with the recorded text: as it was named, or beside the trace."""
    recorded = trace.source(file)
    for path in (trace.path.parent / file, Path(file)):
        try:
            if path.is_file() and path.read_text(encoding="utf-8").splitlines() == list(recorded):
                return path.resolve()
        except (OSError, ValueError):
            continue
    return None
