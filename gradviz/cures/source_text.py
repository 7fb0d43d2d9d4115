"""The text of a program with its syntax tree: the places of nodes, and edits that leave the rest as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from gradviz.query.functions_of_source import Function, called

LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class Edit:
    """Other text for the characters from `start` to `end` of a program."""

    start: int
    end: int
    new: str


class SourceText:
    """A program: its text and its tree. Raises SyntaxError if it is no Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self.lines))]
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

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
        while node in self._parents:
            node = self._parents[node]
            yield node

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node; None for the whole program."""
        return self._parents.get(node)

    def nodes(self, line: int, end_line: int | None = None) -> Iterator[ast.AST]:
        """The nodes that begin on a line, or on the lines from `line` to `end_line`."""
        last = end_line or line
        return (node for node in ast.walk(self.tree) if line <= getattr(node, "lineno", 0) <= last)

    def expression(self, line: int, column: int, end_line: int, end_column: int) -> ast.expr | None:
        """The expression with exactly these ends, lines from 1 and columns in characters from 0."""
        if column < 0 or not 0 < end_line <= len(self.lines):
            return None
        span = self._starts[line - 1] + column, self._starts[end_line - 1] + end_column
        expressions = (node for node in self.nodes(line) if isinstance(node, ast.expr))
        return next((node for node in expressions if self.span(node) == span), None)

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that has this line; the first if there are several."""
        innermost = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                inner = innermost is None or node.lineno > innermost.lineno
                innermost = node if inner or node in self._below(innermost) else innermost
        return innermost

    def _below(self, node: ast.AST | None) -> set[ast.AST]:
        return set(ast.walk(node)) - {node} if node is not None else set()

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement around a node; the node itself if it is a statement."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

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
        outer = self._parents[statement]
        blocks = [getattr(outer, name, []) for name in ("body", "orelse", "finalbody")]
        return next(block for block in blocks if statement in block)

    def replaced(self, node: ast.AST, new: str) -> Edit:
        """Other text for a node."""
        return Edit(*self.span(node), new)

    def before(self, statement: ast.stmt, code: str) -> Edit:
        """A statement put before another one."""
        start, _ = self.span(statement)
        decorators = getattr(statement, "decorator_list", [])
        if decorators:
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
        text = self.text
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
            text = text[: edit.start] + edit.new + text[edit.end :]
        return text
