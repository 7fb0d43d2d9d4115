"""Spot: the place where a cure is applied, with the finding, its trace, and the statement and expression of its
line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gradviz.cures.source_text import Edit, SourceText
from gradviz.diagnose import Finding
from gradviz.query.functions_of_source import called
from gradviz.query.query import Query

OPTIMIZER = re.compile(r"(SGD|Ada\w*|[NR]Adam|RMSprop|Rprop|LBFGS|ASGD)$")


@dataclass(frozen=True)
class Spot:
    """A finding in the text of its file, and the look-ups of its trace."""

    source: SourceText
    finding: Finding
    query: Query

    @cached_property
    def statement(self) -> ast.stmt | None:
        """The statement of the finding's line: the innermost one around its expression."""
        if self.expression is not None:
            return self.source.statement(self.expression)
        return self.source.statement_at(self.finding.line)

    @cached_property
    def expression(self) -> ast.expr | None:
        """The expression of the finding; None if it is not known."""
        site = self.finding.site
        if site is None:
            return None
        place = site.place
        return self.source.expression(place.line, place.col, place.end_line, place.end_col)

    @property
    def area(self) -> ast.AST | None:
        """The expression of the finding; the statement if the expression is not known."""
        return self.expression if self.expression is not None else self.statement

    def calls_here(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these names in the expression; if there are none, in the statement."""
        for area in (self.expression, self.statement):
            if area is not None:
                calls = [n for n in ast.walk(area) if isinstance(n, ast.Call) and called(n) in names]
                if calls:
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


Apply = Callable[[Spot], list[Edit]]
"""The edits of a cure; none if it cannot be applied here."""
