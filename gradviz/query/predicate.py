"""Predicates over events: `op == "log" and out.min <= 0`. A small language with its own parser; no code is executed.

    or        a or b
    and       a and b
    not       not a
    compare   field OP constant, constant OP field, constant OP field OP constant
    alone     a field that is true or false: nan, inf, mutation, backward, ...
    OP        ==  !=  <  <=  >  >=  ~      (~: the text contains)

A field may have several values at one event (a node that gives two gradients), or none. A comparison is true if it
is true for at least one value.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NoReturn, Protocol

import numpy as np

from gradviz.errors import GradvizError, nearest
from gradviz.query.predicate_columns import FIELDS, FLAG, NAMES, STATISTICS, TENSORS, TEXT, TraceFields, type_of

_COMPARE: dict[str, Callable[..., Any]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    |(?P<text>"[^"]*"|'[^']*')
    |(?P<sign>==|!=|<=|>=|<|>|~|\(|\))
    |(?P<word>[A-Za-z_][\w.]*))""",
    re.VERBOSE,
)
_DEEPEST = 50
_NO_CONSTANT = "{text}: compare with a number or a text in quotes"
_DID_YOU_MEAN = "there is no field {field}: did you mean {names}?"


class PredicateError(GradvizError):
    """A malformed predicate. The message is one line for the user."""


# the values of a field at one event; a text or flag that the event lacks is "" or False
Values = Callable[[str], Iterable[Any]]
# the kinds of events at which a field may have values; for "" all kinds
Where = Callable[[str], frozenset[Any]]


class Predicate:
    """A parsed predicate. `text` is its text, and `fields` are the fields it uses. Raises PredicateError if
    the text is malformed."""

    def __init__(self, text: str) -> None:
        inner = text.strip()
        is_quoted = len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "\"'"  # as by a shell
        text = inner[1:-1] if is_quoted and inner[0] not in inner[1:-1] else text
        self.text = " ".join(text.split())
        parser = _Parser(text)
        test = parser.whole()
        self.fields = frozenset(parser.fields)
        self.mask, self.holds, self.possible, self.only = test.mask, test.holds, test.possible, test.only

    def __repr__(self) -> str:
        return f"Predicate({self.text!r})"


class _Test(Protocol):
    """A predicate, or a part of one."""

    def mask(self, columns: TraceFields) -> np.ndarray:
        """A boolean array: whether it is true at each event."""

    def holds(self, values: Values) -> bool:
        """Whether it is true at one event; `values` gives the values of a field there."""

    def possible(self, where: Where) -> frozenset[Any]:
        """The kinds of events at which it may be true, given the kinds at which each field has values. It may be too
        many."""

    def only(self, field: str) -> frozenset[str] | None:
        """The texts of a field for which it can be true; None if any text may do."""
        return None


@dataclass(frozen=True, slots=True)
class _Compared(_Test):
    field: str
    sign: str
    constant: float | str

    def mask(self, columns: TraceFields) -> np.ndarray:
        column = columns.column(self.field)
        if isinstance(self.constant, str):
            holds = np.array([_text_holds(str(value), self.sign, self.constant) for value in column.values], bool)
        else:
            with np.errstate(invalid="ignore"):
                holds = _COMPARE[self.sign](column.values, self.constant)
            if self.sign == "!=":
                holds &= ~np.isnan(column.values.astype(np.float64))
        if column.codes is not None:
            holds = holds[column.codes]
        return _spread(holds, column.events, columns.count)

    def holds(self, values: Values) -> bool:
        sign, constant = self.sign, self.constant
        if isinstance(constant, str):
            return any(_text_holds(value, sign, constant) for value in values(self.field))
        compare = _COMPARE[sign]
        return any(compare(value, constant) and value == value for value in values(self.field))

    def possible(self, where: Where) -> frozenset[Any]:
        return where(self.field)

    def only(self, field: str) -> frozenset[str] | None:
        exact = field == self.field and self.sign == "=="
        return frozenset((self.constant,)) if exact and isinstance(self.constant, str) else None


@dataclass(frozen=True, slots=True)
class _Flag(_Test):
    field: str

    def mask(self, columns: TraceFields) -> np.ndarray:
        return columns.column(self.field).values.astype(bool)

    def holds(self, values: Values) -> bool:
        return any(values(self.field))

    def possible(self, where: Where) -> frozenset[Any]:
        return where(self.field)


@dataclass(frozen=True, slots=True)
class _Not(_Test):
    part: _Test

    def mask(self, columns: TraceFields) -> np.ndarray:
        return ~self.part.mask(columns)

    def holds(self, values: Values) -> bool:
        return not self.part.holds(values)

    def possible(self, where: Where) -> frozenset[Any]:
        return where("")


@dataclass(frozen=True, slots=True)
class _Any(_Test):
    parts: tuple[_Test, ...]

    def mask(self, columns: TraceFields) -> np.ndarray:
        return np.logical_or.reduce([part.mask(columns) for part in self.parts])

    def holds(self, values: Values) -> bool:
        return any(part.holds(values) for part in self.parts)

    def possible(self, where: Where) -> frozenset[Any]:
        return frozenset().union(*(part.possible(where) for part in self.parts))

    def only(self, field: str) -> frozenset[str] | None:
        known = [part.only(field) for part in self.parts]
        return None if None in known else frozenset().union(*known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _All(_Test):
    parts: tuple[_Test, ...]

    def mask(self, columns: TraceFields) -> np.ndarray:
        return np.logical_and.reduce([part.mask(columns) for part in self.parts])

    def holds(self, values: Values) -> bool:
        return all(part.holds(values) for part in self.parts)

    def possible(self, where: Where) -> frozenset[Any]:
        return frozenset.intersection(*(part.possible(where) for part in self.parts))

    def only(self, field: str) -> frozenset[str] | None:
        known = [texts for part in self.parts if (texts := part.only(field)) is not None]
        return frozenset.intersection(*known) if known else None


def _text_holds(value: str, sign: str, constant: str) -> bool:
    if sign == "~":
        return constant.lower() in value.lower()
    return bool(value) and bool(_COMPARE[sign](value, constant))


def _spread(holds: np.ndarray, events: np.ndarray | None, count: int) -> np.ndarray:
    """The truth values of events from those of values: true if any value of the event is true."""
    if events is None:
        return holds
    of_events = np.zeros(count, bool)
    of_events[events[holds]] = True
    return of_events


class _Parser:
    """Recursive-descent parser for one predicate."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._tokens())
        self.at = 0
        self.depth = 0
        self.fields: set[str] = set()

    def _tokens(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        end = len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                column = at + len(self.text[at:]) - len(self.text[at:].lstrip())
                if self.text[column] in "\"'":
                    self._fail("the text that begins at column {column} has no closing quote", column=column + 1)
                if self.text[column] == "=":
                    self._fail("= at column {column}: write == to compare", column=column + 1)
                rest = _shown(self.text[column:])
                self._fail("cannot understand {text} at column {column}", text=rest, column=column + 1)
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            at = match.end()

    # --- the grammar

    def whole(self) -> _Test:
        """Parse the whole text."""
        if not self.tokens:
            self._fail('a predicate is missing, such as: grad.rms < 1e-7, op == "log" and out.min <= 0')
        test = self._or()
        if self.at < len(self.tokens):
            _, token, column = self.tokens[self.at]
            message = "{text} at column {column} does not belong there: join parts with and, or"
            self._fail(message, text=_shown(token), column=column + 1)
        return test

    def _or(self) -> _Test:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._fail("the predicate is nested too deeply")
        parts = [self._and()]
        while self._take("word", "or"):
            parts.append(self._and())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _and(self) -> _Test:
        parts = [self._not()]
        while self._take("word", "and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _not(self) -> _Test:
        negations = 0
        while self._take("word", "not"):
            negations += 1
        test = self._atom()
        return _Not(test) if negations % 2 else test

    def _atom(self) -> _Test:
        if self._take("sign", "("):
            test = self._or()
            if not self._take("sign", ")"):
                self._fail("a closing ) is missing")
            return test
        return self._comparison()

    def _comparison(self) -> _Test:
        kind, left = self._operand()
        sign = self._sign()
        if sign is None:
            if kind != "word":
                self._fail("{text} has no comparison", text=_shown(str(left)))
            if type_of(str(left)) != FLAG:
                example = f'{left} == "..."' if type_of(str(left)) == TEXT else f"{left} > 0"
                self._fail("{field} has to be compared, as in {example}", field=left, example=example)
            return _Flag(str(left))
        other, right = self._operand(f"{left} {sign}" if type_of(str(left)) == TEXT else "")
        if kind == other == "word":
            self._fail(_NO_CONSTANT, text=f"{left} {sign} {right}")
        if kind == "word":
            return self._test(str(left), sign, right)
        if other != "word":
            text = f"{_shown(str(left))} {sign} {_shown(str(right))}"
            self._fail("{text}: one side has to be a field", text=text)
        if sign not in _MIRRORED:
            self._fail("the field has to be on the left of ~")
        test = self._test(str(right), _MIRRORED[sign], left)
        second = self._sign()
        if second is None:
            return test
        third, last = self._operand()
        if third == "word":
            self._fail(_NO_CONSTANT, text=f"{right} {second} {last}")
        return _All((test, self._test(str(right), second, last)))

    def _test(self, field: str, sign: str, constant: float | str) -> _Test:
        is_text = type_of(field) == TEXT
        if type_of(field) == FLAG:
            self._fail("{field} is true or false: write {field}, or not {field}", field=field)
        if is_text and not isinstance(constant, str):
            constant = f"{constant:g}"
        if not is_text and isinstance(constant, str):
            self._fail("{field} is a number, {text} is text", field=field, text=_shown(constant))
        if is_text and sign not in ("==", "!=", "~"):
            self._fail("{field} is text: compare it with ==, != or ~ (contains)", field=field)
        if not is_text and sign == "~":
            self._fail("{field} is a number: ~ (contains) is for text", field=field)
        return _Compared(field, sign, constant)

    # --- tokens

    def _take(self, kind: str, token: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at][:2] == (kind, token):
            self.at += 1
            return True
        return False

    def _sign(self) -> str | None:
        if self.at < len(self.tokens):
            kind, token, _ = self.tokens[self.at]
            if kind == "sign" and token not in "()":
                self.at += 1
                return token
        return None

    def _operand(self, before: str = "") -> tuple[str, float | str]:
        if self.at >= len(self.tokens):
            self._fail("something is missing at the end")
        kind, token, column = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return kind, float(token)
        if kind == "text":
            return kind, token[1:-1]
        if kind == "sign" or token in ("and", "or", "not"):
            self._fail("a field is missing before {text} at column {column}", text=token, column=column + 1)
        if token not in NAMES and before:
            self._fail("text needs quotes: {text}", text=f'{before} "{_shown(token)}"')
        if token not in NAMES:
            message, names = _suggested(token)
            self._fail(message, field=_shown(token), names=names)
        self.fields.add(token)
        return kind, token

    def _fail(self, text: str, /, **parts: object) -> NoReturn:
        raise PredicateError(text, **parts)


def _suggested(token: str) -> tuple[str, str]:
    """The message about a word that is not a field, and the names that could be meant."""
    head, _, tail = token.partition(".")
    if token in TENSORS:
        return _DID_YOU_MEAN, f"{token}.absmax"
    if head in TENSORS:
        if near := nearest(tail, STATISTICS):
            return _DID_YOU_MEAN, f"{head}.{near}"
        return "there is no field {field}: this tensor has {names}", ", ".join(STATISTICS)
    if near := nearest(token, (*NAMES, *TENSORS)):
        return _DID_YOU_MEAN, near
    names = (*(f"{tensor}.rms" for tensor in TENSORS), *FIELDS)
    return "there is no field {field}: the fields are {names} (help fields)", ", ".join(names)


def _shown(text: str) -> str:
    short = text if len(text) <= 30 else text[:29] + "…"
    return "".join(c if c.isprintable() else "?" for c in short)
