"""Fix: the cure that a rule finds, as text for people and as edits of the source, and the edits that several rules
share.

A rule returns a Fix with its text and, if the cure is sure, a function that makes the edits. The patch that it gives at
the line of the finding is the one source of diffs, of SARIF fixes and of the trial of a cure. A Fix without edits is
advice."""

import ast
import difflib
import io
import os
import re
import shutil
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from tempfile import mkstemp
from typing import Concatenate, NamedTuple, ParamSpec

from gradviz.query.functions_of_source import (
    Function,
    blocks_of,
    called,
    ends_of,
    nodes_of,
    parents_of,
    parsed,
    tree_of,
)
from gradviz.query.query import Query
from gradviz.system.paths import file_name
from gradviz.tracefile import Site
from gradviz.words.escape import clean

LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Edit(NamedTuple):
    """Other text for the characters from `start` to `end` of a program."""

    start: int
    end: int
    new: str


class SourceText:
    """A program: its text and its tree. Raises SyntaxError if it is no Python."""

    def __init__(self, text: str) -> None:
        tree = tree_of(text)
        if tree is None:
            raise SyntaxError(text)
        self.text, self.tree, self.lines = text, tree, lines_of(text)
        self._starts = [0, *accumulate(map(len, self.lines))]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first character of a node in the text, and the first character after it."""
        first = self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return first, self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, utf8_column: int) -> int:
        text = self.lines[line - 1]
        column = utf8_column if text.isascii() else len(text.encode()[:utf8_column].decode())
        return self._starts[line - 1] + column

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        first, last = self.span(node)
        return self.text[first:last]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while (outer := self.parent(node)) is not None:
            node = outer
            yield node

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node; None for the whole program."""
        return parents_of(self.tree).get(node)

    def nodes(self, line: int, end_line: int | None = None) -> Iterator[ast.AST]:
        """The nodes that begin on a line, or on the lines from `line` to `end_line`."""
        last = end_line or line
        return (node for node in nodes_of(self.tree) if line <= getattr(node, "lineno", 0) <= last)

    def expression(self, line: int, column: int, end_line: int, end_column: int) -> ast.expr | None:
        """The expression with exactly these ends, lines from 1 and columns in characters from 0."""
        ends, expressions = (
            (line, column, end_line, end_column),
            (n for n in self.nodes(line) if isinstance(n, ast.expr)),
        )
        return next((node for node in expressions if ends_of(node, self.lines) == ends), None)

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that has this line; the first if there are several."""
        innermost: ast.stmt | None = None
        for node in nodes_of(self.tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                inner = innermost is None or node.lineno > innermost.lineno or innermost in [*self.around(node)]
                innermost = node if inner else innermost
        return innermost

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement around a node; the node itself if it is a statement."""
        return next(one for one in (node, *self.around(node)) if isinstance(one, ast.stmt))

    def function(self, node: ast.AST) -> ast.AST:
        """The function around a node, or the whole program."""
        return next((outer for outer in self.around(node) if isinstance(outer, Function)), self.tree)

    def loop(self, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
        """The innermost loop around a node in its function; None if there is none."""
        for outer in self.around(node):
            if isinstance(outer, LOOPS):
                return outer
            if isinstance(outer, Function):
                return None
        return None

    def calls(self, *methods: str, within: ast.AST | None = None) -> list[ast.Call]:
        """The calls of methods with these names, in the order of the text."""
        matching = [
            node
            for node in ast.walk(within or self.tree)
            if isinstance(node, ast.Call) and called(node) in methods and isinstance(node.func, ast.Attribute)
        ]
        return sorted(matching, key=self.span)

    def siblings(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the block that a statement stands in."""
        return blocks_of(self.tree)[statement]

    def behind(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements behind a statement in its block."""
        block = self.siblings(statement)
        return block[block.index(statement) + 1 :]

    def replaced(self, node: ast.AST, new: str) -> Edit:
        """Other text for a node."""
        return Edit(*self.span(node), new)

    def before(self, statement: ast.stmt, code: str) -> Edit:
        """A statement put before another one."""
        start, _ = self.span(statement)
        if decorators := getattr(statement, "decorator_list", []):
            start = self.text.rindex("@", 0, self.span(decorators[0])[0])
        indent = self._indent(start)
        return Edit(start, start, f"{code}; " if indent is None else f"{code}\n{indent}")

    def after(self, statement: ast.stmt, code: str) -> Edit:
        """A statement put behind another one."""
        start, end = self.span(statement)
        indent = self._indent(start)
        line_end = self._line_end(end)
        alone = not self.text[end:line_end].partition("#")[0].strip()
        if indent is None or not alone:
            return Edit(end, end, f"; {code}")
        return Edit(line_end, line_end, f"\n{indent}{code}")

    def removed(self, statement: ast.stmt) -> Edit:
        """A statement taken out: `pass` in its place where the block would be empty."""
        start, end = self.span(statement)
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self._line_end(end)
        alone = not self.text[line_start:start].strip()
        alone = alone and not self.text[end:line_end].partition("#")[0].strip()
        if len(self.siblings(statement)) == 1 or not alone:
            return Edit(start, end, "pass")
        return Edit(line_start, min(line_end + 1, len(self.text)), "")

    def without_header(self, block: ast.With) -> list[Edit]:
        """A `with` block without its first line, its statements moved out by one level."""
        start, _ = self.span(block)
        first, _ = self.span(block.body[0])
        _, end = self.span(block.body[-1])
        if self._indent(first) is None:
            return [Edit(start, first, "")]
        line_start = self.text.rfind("\n", 0, first) + 1
        more = (first - line_start) - (start - self.text.rfind("\n", 0, start) - 1)
        edits = [Edit(start, first, "")]
        at = self._line_end(first) + 1
        while at < end:
            if not self.text[at : at + more].strip(" \t"):
                edits.append(Edit(at, at + more, ""))
            at = self._line_end(at) + 1
        return edits

    def _line_end(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return len(self.text) if end < 0 else end

    def _indent(self, start: int) -> str | None:
        """The space before a statement on its line; None if there is more than space."""
        before = self.text[self.text.rfind("\n", 0, start) + 1 : start]
        return before if not before.strip() else None

    def edited(self, edits: Iterable[Edit]) -> str:
        """The text with edits that do not overlap."""
        return edited(self.text, edits)


def edited(text: str, edits: Iterable[Edit]) -> str:
    """A text with edits that do not overlap."""
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends. Only a newline ends a line, as in Python: no form feed does."""
    return io.StringIO(text).readlines()


@dataclass(frozen=True)
class Patch:
    """The edits of a cure in the text of a file, as the trace has it."""

    file: str
    before: str = field(repr=False)
    edits: tuple[Edit, ...]

    @cached_property
    def after(self) -> str:
        """The text with the edits."""
        return edited(self.before, self.edits)

    @cached_property
    def stored(self) -> "Stored | None":
        """The file and what the edits make of it, with its own encoding and line ends; None if it cannot be read, or
        has another text than the trace."""
        read = stored_text(self.file)
        if read is None or recorded_form(read[1]) != self.before:
            return None
        encoding, text = read
        is_marked = text.startswith("\ufeff")  # which the edits do not count
        at = [match.start() for match in re.finditer(r"\r\n|.", text, re.DOTALL)][is_marked:]
        at += [len(text)] * 2  # the trace has a newline at the end also if the file has none
        edits = []
        for edit in self.edits:
            end = _LINE_END.search(text, at[edit.start]) or _LINE_END.search(text)
            edits.append(Edit(at[edit.start], at[edit.end], edit.new.replace("\n", end[0] if end else "\n")))
        return Stored(Path(self.file).resolve(), encoding, text, edited(text, edits))

    @property
    def diff(self) -> str:
        """The edits as a unified diff for `git apply`: of the file as it is stored, or, if it has another text by now,
        of the text that the trace has. The path is relative to the current folder, if the file is below it."""
        path, here = self.stored.path if self.stored else None, Path.cwd()
        is_below = path is not None and path.is_relative_to(here)
        name = path.relative_to(here).as_posix() if path and is_below else clean(file_name(self.file))
        end = "\t" if " " in name else ""  # as git ends a path with a space
        texts = self.stored or self
        before, after = lines_of(texts.before), lines_of(texts.after)
        lines = difflib.unified_diff(before, after, f"a/{name}{end}", f"b/{name}{end}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def line_after(self, line: int) -> int:
        """The line in the text after of a line in the text before; the nearest line if that line was changed."""
        before, after = lines_of(self.before), lines_of(self.after)
        for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if a0 < line <= a1:
                return min(b0 + line - a0, max(b1, b0 + 1))
        return line

    @property
    def replacements(self) -> Iterator[tuple[int, int, int, int, str]]:
        """For each edit, in order: the line and the column of its start and of its end, from 1 and in characters, and
        the new text."""
        for edit in sorted(self.edits, key=lambda edit: edit.start):
            yield *self._position(edit.start), *self._position(edit.end), edit.new

    def _position(self, offset: int) -> tuple[int, int]:
        line_start = self.before.rfind("\n", 0, offset) + 1
        return self.before.count("\n", 0, offset) + 1, offset - line_start + 1


_LINE_END = re.compile(r"\r\n|\r|\n")


class Stored(NamedTuple):
    """A file that a patch changes: its path without links, its encoding, and its text before and after the edits, each
    with the line ends and the byte order mark of the file."""

    path: Path
    encoding: str
    before: str
    after: str

    @property
    def content(self) -> bytes:
        """The bytes of the file with the edits."""
        return self.after.encode(self.encoding)

    def write(self) -> None:
        """Put the text with the edits into the file, whole or not at all, with the permissions that it has. Raises
        OSError if that is impossible."""
        descriptor, new = mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with open(descriptor, "wb") as file:
                file.write(self.content)
            shutil.copymode(self.path, new)
            os.replace(new, self.path)
        except OSError:
            os.unlink(new)
            raise


def stored_text(file: str) -> tuple[str, str] | None:
    """The encoding of a Python file and its text, with its line ends and its byte order mark; None if it cannot be
    read, or is no file: a trace may name a pipe or a device."""
    try:
        if not Path(file).is_file():
            return None
        content = Path(file).read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        return encoding, content.decode(encoding)
    except (OSError, SyntaxError, ValueError):
        return None


def recorded_form(text: str) -> str:
    """The text of a file as a trace has it: without a byte order mark, with newlines alone, and one at the end."""
    lines = _LINE_END.sub("\n", text.removeprefix("\ufeff"))
    return lines if lines.endswith("\n") else lines + "\n"


# --- a cure at the place of a finding

OPTIMIZER = re.compile(r"(SGD|Ada\w*|[NR]Adam|RMSprop|Rprop|LBFGS|ASGD)$")


@dataclass(frozen=True)
class Spot:
    """The place of a finding in the text of its file: its expression, None if that is not known, and the innermost
    statement around it; the tensors that it is about, and the look-ups of its trace."""

    source: SourceText
    site: Site
    expression: ast.expr | None
    statement: ast.stmt
    tensors: tuple[int, ...]
    query: Query

    @property
    def area(self) -> ast.AST:
        """The expression of the finding; the statement if the expression is not known."""
        return self.expression if self.expression is not None else self.statement

    def calls_here(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these names in the expression; if there are none, in the statement."""
        for area in (self.area, self.statement):
            if calls := [n for n in ast.walk(area) if isinstance(n, ast.Call) and called(n) in names]:
                return sorted(calls, key=self.source.span)
        return []

    def optimizers(self) -> Iterator[tuple[ast.Assign, ast.Call, str]]:
        """For each assignment that makes an optimizer: the assignment, the call, and the variable."""
        for node in ast.walk(self.source.tree):
            call = node.value if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(call, ast.Call) and OPTIMIZER.search(called(call)):
                yield node, call, self.source.code(node.targets[0])

    def backward_before(self, node: ast.AST) -> ast.Call | None:
        """The last call of backward() before a node in its function; if there is none, the last call in the
        function."""
        passes = list(self.source.calls("backward", within=self.source.function(node)))
        start = self.source.span(node)[0]
        earlier = [call for call in passes if self.source.span(call)[0] < start]
        chosen = earlier or passes
        return chosen[-1] if chosen else None

    def receiver(self, call: ast.Call) -> str:
        """The expression whose method is called: `x.y` in `x.y.z()`; empty for a plain function."""
        return self.source.code(call.func.value) if isinstance(call.func, ast.Attribute) else ""


Edits = Callable[[Spot], list[Edit]]
"""Makes the edits of a cure at the place of a finding; none if the cure cannot be typed there."""

_P = ParamSpec("_P")


def makes_edits(at_spot: Callable[Concatenate[Spot, _P], list[Edit]]) -> Callable[_P, Edits]:
    """The function without its first argument, the place of a finding: it returns the edits of a cure."""
    return lambda *args, **kwargs: lambda spot: at_spot(spot, *args, **kwargs)


class Fix(NamedTuple):
    """A cure: its text, and the function that makes its edits; None if the cure is advice. `without` is the call or the
    block that the cure takes out, or the number that it replaces by a tensor; empty for other cures."""

    text: str
    edits: Edits | None = None
    without: str = ""


def patch_of(query: Query, site: Site, tensors: tuple[int, ...], edits: Edits) -> Patch | None:
    """The patch of a cure at a place; None if it cannot be typed there, or if the trace does not have the source."""
    place, lines = site.place, query.trace.source(site.place.file)
    if not lines or parsed(query.trace, place.file) is None:
        return None
    source = SourceText("\n".join([*lines, ""]))
    expression = source.expression(place.line, place.col, place.end_line, place.end_col)
    statement = source.statement_at(place.line) if expression is None else source.statement(expression)
    made = tuple(edits(Spot(source, site, expression, statement, tensors, query))) if statement is not None else ()
    if not made:
        return None
    patch = Patch(place.file, source.text, made)
    after = tree_of(patch.after)
    if after is None or patch.after == patch.before:
        return None
    line = next(patch.replacements)[0]
    assigned = (node for node in ast.walk(after) if isinstance(node, ast.Assign) and node.lineno == line)
    if any([*map(ast.unparse, node.targets)] == [ast.unparse(node.value)] for node in assigned):
        statement = source.statement_at(line)
        return replace(patch, edits=(source.removed(statement),)) if statement is not None else None
    return patch


# --- edits that several rules share


def typed_as(code: str) -> Edits:
    """Puts a statement in the place of the finding's statement."""
    return lambda spot: [spot.source.replaced(spot.statement, code)]


@makes_edits
def typed_for(spot: Spot, old: str, new: str, line: int = 0) -> list[Edit]:
    """Makes an expression the expression `new`: the expression `old`, as `ast.unparse` writes it, that begins on the
    line of the finding, or on another line."""
    for node in spot.source.nodes(line or spot.site.place.line):
        if isinstance(node, ast.expr) and ast.unparse(node) == old:
            return rewritten(spot.source, node, new)
    return []


def rewritten(source: SourceText, node: ast.expr, new: str) -> list[Edit]:
    """The fewest edits that make an expression the expression `new`. Parts that it keeps stay as they are written, with
    their comments and line ends."""
    sure = [source.replaced(node, f"({new})")]
    meaning = _meaning(source, sure)
    wanted = ast.parse(new, mode="eval").body
    for edits in [*_changes(source, node, wanted)], [source.replaced(node, new)]:
        if _meaning(source, edits) == meaning:
            return edits
    return sure


def _meaning(source: SourceText, edits: list[Edit]) -> str:
    """A program with edits as its tree, however it is written; empty if that is no Python."""
    tree = tree_of(source.edited(edits))
    return "" if tree is None else ast.dump(tree)


def _changes(source: SourceText, old: ast.AST, new: ast.AST) -> Iterator[Edit]:
    """Edits that make the code of `old` say `new`, in the parts that differ."""
    start, end = source.span(old)
    if ast.dump(old) == ast.dump(new):
        return
    if kept := [part for part in ast.walk(old) if ast.dump(part) == ast.dump(new)]:
        first, last = source.span(kept[0])
        yield from (Edit(start, first, ""), Edit(last, end, ""))
    elif (around := code_of(new).partition(ast.unparse(old)))[1]:
        before, _, after = around
        is_inside = isinstance(source.parent(old), _WITHOUT_BRACKETS) and source.text[start - 1] != "("
        if is_inside and isinstance(new, _WITHOUT_BRACKETS):
            before, after = f"({before}", f"{after})"
        yield from (Edit(start, start, before), Edit(end, end, after))
    elif isinstance(old, ast.Call) and len(getattr(new, "keywords", ())) == len(old.keywords) + 1:
        yield with_keyword(source, old, ast.unparse(new.keywords[-1]))  # type: ignore[attr-defined]
    elif _form(old) == _form(new):
        for one, other in zip(_parts(old), _parts(new), strict=False):
            yield from _changes(source, one, other)
    else:
        yield source.replaced(old, code_of(new))


def code_of(node: ast.AST) -> str:
    """The code of a node, with 1e-6 and not 1e-06."""
    return re.sub(r"(?<=\de-)0(?=\d)", "", ast.unparse(node))


def _parts(node: ast.AST) -> list[ast.AST]:
    return [child for child in ast.iter_child_nodes(node) if hasattr(child, "lineno")]


def _form(node: ast.AST) -> str:
    """A node as text, with a sign in the place of each part."""
    text = ast.dump(node)
    for part in _parts(node):
        text = text.replace(ast.dump(part), "_", 1)
    return text


def removed(spot: Spot) -> list[Edit]:
    """Takes the statement out."""
    return [spot.source.removed(spot.statement)]


def moved_behind_backward(spot: Spot) -> list[Edit]:
    """The statement moved behind the next call of backward() in its block."""
    source, statement = spot.source, spot.statement
    passes = [other for other in source.behind(statement) if source.calls("backward", within=other)]
    return [source.removed(statement), source.after(passes[0], source.code(statement))] if passes else []


def with_keyword(source: SourceText, call: ast.Call, keyword: str) -> Edit:
    """A call with one more keyword argument, or with a new value of this argument."""
    name = keyword.partition("=")[0]
    for known in call.keywords:
        if known.arg == name:
            return source.replaced(known, keyword)
    end = source.span(call)[1] - 1
    given = [*call.args, *call.keywords]
    last = max(source.span(one)[1] for one in given) if given else end
    at = end if ")" in source.text[last:end] else last  # not behind a comma at the end
    return Edit(at, at, f", {keyword}" if given else keyword)


@makes_edits
def keyword_added(spot: Spot, function: str, keyword: str) -> list[Edit]:
    """Adds a keyword to the first call of a function."""
    return [with_keyword(spot.source, call, keyword) for call in spot.calls_here(function)[:1]]


def argument_of(call: ast.Call) -> ast.expr | None:
    """The expression that an op is applied to: `x` in `x.sqrt()` and in `torch.sqrt(x)`."""
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def bracketed(source: SourceText, value: ast.expr) -> str:
    """The text of an expression, in brackets if a dot behind it needs them."""
    code = source.code(value)
    return f"({code})" if isinstance(value, _WITHOUT_BRACKETS) else code


_WITHOUT_BRACKETS = ast.BinOp | ast.UnaryOp | ast.IfExp | ast.BoolOp | ast.Compare | ast.Lambda


@makes_edits
def as_leaf(spot: Spot, name: str) -> list[Edit]:
    """Puts `x.requires_grad_()` behind the only assignment of a name."""
    made = [
        node
        for node in ast.walk(spot.source.tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]
    return [spot.source.after(made[0], f"{name}.requires_grad_()")] if len(made) == 1 else []


def updated_in_place(spot: Spot) -> list[Edit]:
    """An update in place under no_grad in place of `p = p - rate * p.grad`."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        value = statement.value
        if isinstance(value.op, ast.Sub | ast.Add):
            sign = "-" if isinstance(value.op, ast.Sub) else "+"
            left, right = source.code(value.left), source.code(value.right)
            clears = re.search(r"zero_grad|\.grad = None|\.grad\.zero_", source.text)
            more = "" if clears else f"; {left}.grad = None"
            return [source.replaced(statement, f"with torch.no_grad(): {left} {sign}= {right}{more}")]
    if isinstance(statement, ast.AugAssign):
        return under_no_grad(spot)
    return []


def under_no_grad(spot: Spot) -> list[Edit]:
    """Puts the statement under no_grad."""
    return typed_as(f"with torch.no_grad(): {spot.source.code(spot.statement)}")(spot)


def other_function(spot: Spot, old: str, new: str) -> list[Edit]:
    """The function `new` in place of the first call of `old` at the spot, with its argument alone."""
    calls = ((call, argument_of(call)) for call in spot.calls_here(old))
    each = (
        spot.source.replaced(call, f"{new}({spot.source.code(value)})") for call, value in calls if value is not None
    )
    return list(each)[:1]


def leaky(spot: Spot) -> list[Edit]:
    """A leaky rectifier in place of a rectifier, at its call or at the line that makes its module."""
    source = spot.source
    if edits := other_function(spot, "relu", "torch.nn.functional.leaky_relu"):
        return edits
    made = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == "ReLU"]
    return [source.replaced(made[0].func, source.code(made[0].func)[:-4] + "LeakyReLU")] if made else []


@makes_edits
def detached(spot: Spot, name: str) -> list[Edit]:
    """Detaches a tensor that should be a constant: on the value of the line, or where its name is used behind it, if
    one of the other uses may train it. `name` may be an expression of the line."""
    source, statement = spot.source, spot.statement
    if not re.fullmatch(r"[\w.]+", name):
        return _detached_expression(spot, name)
    is_assigned = isinstance(statement, ast.Assign) and source.code(statement.targets[0]) == name
    later = [n for n in _reads(spot, source.function(statement), name) if n.lineno > statement.lineno]
    if is_assigned and len(later) > 1:
        return [source.replaced(min(later, key=source.span), f"{name}.detach()")]
    if is_assigned and isinstance(statement, ast.Assign):
        return [source.replaced(statement.value, f"({source.code(statement.value)}).detach()")]
    return _detached_where_used(spot, name)


@makes_edits
def detached_in_each_round(spot: Spot, name: str) -> list[Edit]:
    """Detaches a tensor at the end of each round of the outermost loop with a pass that is around the line: before the
    first round it may be None."""
    if not re.fullmatch(r"[\w.]+", name):
        return _detached_expression(spot, name)
    around = (spot.statement, *spot.source.around(spot.statement))
    loops = [node for node in around if isinstance(node, ast.For | ast.While)]
    passes = [loop for loop in loops if spot.source.calls("backward", within=loop)]
    if not passes:  # a function that is called for each round
        return _detached_where_used(spot, name)
    return [spot.source.after(passes[0].body[-1], f"{name} = {name}.detach()")]


@makes_edits
def detached_before(spot: Spot, name: str, line: int) -> list[Edit]:
    """Puts `hidden = hidden.detach()` before the statement of a line."""
    at = spot.source.statement_at(line)
    return [spot.source.before(at, f"{name} = {name}.detach()")] if at is not None else []


def _detached_expression(spot: Spot, code: str) -> list[Edit]:
    found = [node for node in ast.walk(spot.statement) if isinstance(node, ast.expr) and spot.source.code(node) == code]
    return [spot.source.replaced(node, f"{bracketed(spot.source, node)}.detach()") for node in found[:1]]


def _detached_where_used(spot: Spot, name: str) -> list[Edit]:
    return [spot.source.replaced(node, f"{name}.detach()") for node in _reads(spot, spot.statement, name)[:1]]


def _reads(spot: Spot, area: ast.AST, name: str) -> list[ast.Name | ast.Attribute]:
    """The places in a part of the program that read a name."""
    return [
        node
        for node in ast.walk(area)
        if isinstance(node, ast.Name | ast.Attribute)
        and spot.source.code(node) == name
        and isinstance(node.ctx, ast.Load)
    ]
