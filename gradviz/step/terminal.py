"""The stepper in a terminal: reads keys and draws screens."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

import click
from rich.console import Console
from rich.control import Control

from gradviz.errors import GradvizError
from gradviz.query.predicate_columns import NAMES
from gradviz.query.ranks import label_of
from gradviz.step.group import Group, group_of
from gradviz.step.plain import told
from gradviz.step.screen import Screen, Together, has_more
from gradviz.step.state import Session
from gradviz.step.verbs import BY_KEY, VERBS, parse, run_together
from gradviz.system.console import END, INTERRUPT, Keyboard, on_resize, on_suspend
from gradviz.words.escape import clean

_KEYS = "(n next, b back, y why, : command, ? help, q quit)"


_READ_ON = ("space", "down", "j", "n", "page-down", "enter")
_READ_BACK = ("up", "k", "b", "page-up", "backspace")


def interact(session: Session, console: Console | None = None) -> None:
    """Run the stepper until the user quits with `q`, Ctrl-C, Ctrl-D or the end of the input. Keys and commands move
    all sessions of the session's group."""
    with suppress(KeyboardInterrupt):
        Terminal(group_of(session), console or Console(highlight=False)).loop()


_NO_SUCH_KEY = "no such key: {key}. n next, b back, B backward pass, y why, : command, ? all keys"


class Terminal:
    """An interactive session in a terminal, or several side by side: its keyboard, its prompt and its screen."""

    def __init__(self, group: Group, console: Console) -> None:
        self.group = group
        self.console = console
        self.keyboard = Keyboard()
        self.prompt: Prompt | None = None
        self.plain = console.is_dumb_terminal
        self.waiting = False  # whether it waits for a key
        self.stale = False  # the terminal's size changed since the last drawing
        for one in self.group.sessions:
            one.announce = self._announce

    @property
    def session(self) -> Session:
        """The session that receives the keys: the first on the screen."""
        return self.group.first

    def loop(self) -> None:
        """Take over the terminal, read keys and draw screens until the session is over; on Ctrl-Z release it."""
        with on_resize(self._resized), on_suspend(self._leave, self._come_back):
            self._take()
            try:
                self._converse()
            finally:
                self._leave()

    def _converse(self) -> None:
        self.show()
        if self.plain:
            click.echo(_KEYS, file=self.console.file)
        for session in self.group.sessions:
            session.prepare()  # meanwhile, the user reads the first screen
        keys, ahead = Keys(), self.session.settings.ahead
        while not self.session.over:
            typed = "" if ahead else self._read()
            if not (typed or ahead):
                return
            ahead += keys.feed(typed)
            while ahead and not self.session.over:
                self.press(ahead.pop(0))
            if not self.session.over:
                self.show()

    def _read(self) -> str:
        """The typed characters; empty at the end of the input."""
        self.waiting = True
        try:
            if self.stale:
                self._resized()
            return self.keyboard.read()
        except KeyboardInterrupt:
            if not self.session.live:
                raise
            return INTERRUPT
        except (EOFError, OSError):
            return ""
        finally:
            self.waiting = False

    def _resized(self) -> None:
        """Draw in the new size. If a screen is being drawn now, do it afterwards."""
        self.stale = not self.waiting
        if self.waiting:
            self.show()

    def press(self, key: str) -> None:
        """Handle a key: text for the prompt if it is open, otherwise a verb."""
        if key == END:
            self.session.over = True
        elif key == INTERRUPT:  # Ctrl-C was meant to pause the script, which had already paused
            self.prompt, self.session.message = None, "the script is paused: c lets it go on, q ends it"
        elif self.prompt is not None:
            self._type(key)
        elif key == ":":
            self._ask("")
        elif self._put_away(key):
            pass
        elif (verb := BY_KEY.get(self._meant(key))) is not None:
            if verb.needs or verb.asked:
                self._ask(f"{verb.name} ")
            else:
                self._obey(verb.name)
        elif key.isdigit():
            self._ask(key)
        else:
            no_key = self.session.say(_NO_SUCH_KEY, key=repr(key))
            self.session.message = "" if key == "escape" else no_key

    def _meant(self, key: str) -> str:
        """The key that is meant: at the place of an open question, `a` and `z` mean A and Z."""
        exercise = self.session.exercise
        asks = exercise is not None and exercise.asks_at(self.session.position)
        return key.upper() if asks and key in ("a", "z") else key

    def _ask(self, text: str) -> None:
        self.prompt = Prompt(text, self.session.settings.history, self._names)

    def _names(self, before: str) -> list[str]:
        """The completions that Tab offers: verbs for the first word, then tensors and fields."""
        if not before.strip():
            return sorted(verb.name for verb in VERBS)
        labels = self.session.words.query.names.labels
        return [*labels, *(f"{label}.grad" for label in labels), *NAMES]

    def _put_away(self, key: str) -> bool:
        """Scroll a long page. Any other key closes the page, also `q`, as the page says; in plain text `q`
        ends the session, as nothing is to be closed. Returns whether the key was handled."""
        session = self.session
        if not session.page or (key == "q" and self.plain):
            return False
        if key in _READ_ON and not self.plain and has_more(session, *self.console.size):
            session.scrolled += 1
        elif key in _READ_BACK and session.scrolled:
            session.scrolled -= 1
        elif command := session.page_keys.get("space" if key in _READ_ON else key):
            self._obey(command)
        else:
            for one in self.group.shown:
                one.page, one.message, one.scrolled = [], "", 0
                one.page_keys = {}
        for one in self.group.shown:
            one.scrolled = session.scrolled
        return True

    def _type(self, key: str) -> None:
        assert self.prompt is not None
        if key == "enter":
            line, self.prompt = self.prompt.text, None
            if line.strip():
                self.session.settings.history.append(line.strip())
                self._obey(line)
        elif not self.prompt.type(key):
            self.prompt = None

    def _obey(self, line: str) -> None:
        try:
            verb, argument = parse(line)
        except GradvizError as error:
            self.session.message = self.session.say(error.text, **error.parts)
            return
        run_together(self.group, verb, argument)

    def _announce(self, text: str) -> None:
        """Show the text that announces a slow command."""
        if self.plain:
            click.echo(text, file=self.console.file)
            return
        self.session.message = text
        self.show()
        self.session.message = ""

    def show(self) -> None:
        """Draw the screen, or print the stop if the terminal can only print."""
        if not self.plain:
            width, height = self.console.size
            self.console.control(Control.home())
            self.console.print(self._drawn, end="", no_wrap=True, crop=True, height=height, width=width)
            return
        line = self._typed
        said = f":{line}" if line is not None else "\n".join(self._told())
        click.echo(said, file=self.console.file)

    @property
    def _drawn(self) -> Screen | Together:
        if len(self.group.sessions) == 1:
            return Screen(self.session, self._typed)
        return Together(self.group, self._typed)

    def _told(self) -> Iterator[str]:
        for session in self.group.shown:
            if len(self.group.sessions) > 1:
                yield f"== {clean(label_of(session.trace))}"
            yield from told(session)
            yield ""

    @property
    def _typed(self) -> str | None:
        return None if self.prompt is None else self.prompt.shown

    def _take(self) -> None:
        self.keyboard.begin()
        if not self.plain:
            self.console.set_alt_screen(True)
            self.console.show_cursor(False)

    def _leave(self) -> None:
        if not self.plain:
            self.console.set_alt_screen(False)
            self.console.show_cursor(True)
        self.keyboard.end()

    def _come_back(self) -> None:
        self._take()
        self._resized()


_NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[7~": "home", "\x1b[8~": "end",
    "\xe0H": "up", "\xe0P": "down", "\xe0M": "right", "\xe0K": "left", "\xe0G": "home", "\xe0O": "end",
    "\x00H": "up", "\x00P": "down", "\x00M": "right", "\x00K": "left", "\x00G": "home", "\x00O": "end",
    "\x1bOP": "?", "\x1b[11~": "?", "\xe0;": "?", "\x00;": "?",  # F1
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape", " ": "space", "\t": "tab",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|[\xe0\x00][A-Z;]|.", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;]*|O)\Z")


class Keys:
    """Splits terminal input into keys. A read may contain several keys, or only a part of a key."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The keys in a piece of input: by name, or the character itself."""
        text = self._rest + text
        unfinished = _UNFINISHED.search(text)
        self._rest = unfinished[0] if unfinished else ""
        whole = text[: len(text) - len(self._rest)]
        return [_NAMES.get(key, key) for key in _KEY.findall(whole)]


_CURSOR = "▏"
_CLEAR, _CUT_WORD = "\x15", "\x17"  # Ctrl-U, Ctrl-W


class Prompt:
    """The text that is being typed after `:`. `names` returns the possible completions of the last word,
    given the text before it."""

    def __init__(self, text: str, history: list[str], names: Callable[[str], list[str]]) -> None:
        self.text = text
        self.cursor = len(text)
        self._history = [*dict.fromkeys(reversed(history))]  # newest first, without repetitions
        self._names = names
        self._at = -1  # index into the history; -1: the new text
        self._typed = text
        self._choices: list[str] = []  # the completions that Tab cycles through

    @property
    def shown(self) -> str:
        """The line with its cursor."""
        return self.text[: self.cursor] + _CURSOR + self.text[self.cursor :]

    def type(self, key: str) -> bool:
        """Handle a key. Returns False if the key cancels the prompt."""
        if key == "escape" or (key == "backspace" and not self.text):
            return False
        if key != "tab":
            self._choices = []
        edit = _EDITS.get(key)
        if edit is not None:
            edit(self)
        elif key == "space" or (len(key) == 1 and key.isprintable()):
            self._replace(self.cursor, self.cursor, " " if key == "space" else key)
        return True

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = start + len(text)

    def _recall(self, at: int) -> None:
        if not -1 <= at < len(self._history):
            return
        if self._at == -1:
            self._typed = self.text
        self._at = at
        self._replace(0, len(self.text), self._typed if at == -1 else self._history[at])

    def _complete(self) -> None:
        """Replace the last word by the next name that begins with it; after the last name, by the text that
        was typed."""
        start = self.text[: self.cursor].rfind(" ") + 1
        if not self._choices:
            stem = self.text[start : self.cursor]
            names = [name for name in self._names(self.text[:start]) if name.startswith(stem) and name != stem]
            self._choices = [*names, stem]
        choice = self._choices.pop(0)
        self._choices.append(choice)
        self._replace(start, self.cursor, choice)


_EDITS: dict[str, Callable[[Prompt], None]] = {
    "backspace": lambda p: p._replace(max(p.cursor - 1, 0), p.cursor, ""),
    "left": lambda p: setattr(p, "cursor", max(p.cursor - 1, 0)),
    "right": lambda p: setattr(p, "cursor", min(p.cursor + 1, len(p.text))),
    "home": lambda p: setattr(p, "cursor", 0),
    "end": lambda p: setattr(p, "cursor", len(p.text)),
    _CLEAR: lambda p: p._replace(0, p.cursor, ""),
    _CUT_WORD: lambda p: p._replace(p.text[: p.cursor].rstrip().rfind(" ") + 1, p.cursor, ""),
    "up": lambda p: p._recall(p._at + 1),
    "down": lambda p: p._recall(p._at - 1),
    "tab": Prompt._complete,
}
