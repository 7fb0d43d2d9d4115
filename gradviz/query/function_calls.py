"""The calls of the program's own plain functions around each event."""

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gradviz.query.functions_of_source import called, function_around
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.tracefile import Site

_LEAVING = ast.Return | ast.Raise | ast.Yield | ast.YieldFrom | ast.Await
_PERHAPS = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.IfExp | ast.BoolOp
_OPERATORS = ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Compare
_REPEATING = {"math", "functools", "itertools", "operator"}  # modules whose functions call an operator often
_REPEATING_NAMES = {"sum", "max", "min", "sorted", "map", "pow", "divmod", "prod", "reduce", "accumulate"}


class FunctionCall(NamedTuple):
    """A call of a function: its name, the site of the call and its place, and the number of scopes around the call.
    `runs_once` says that the caller surely makes this call exactly once."""

    name: str
    function: tuple[str, str]  # the file and the qualified name
    site: int
    line: int
    col: int
    depth: int
    runs_once: bool


class FunctionCalls:
    """Look-ups about the calls of functions in one trace. Use `query.of(FunctionCalls)`."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._known: dict[tuple[int, tuple[int, ...]], tuple[FunctionCall, ...]] = {}
        self._once: dict[int, bool] = {}

    def around(self, event: int, site: int) -> tuple[FunctionCall, ...]:
        """The calls around an event at a site, outermost first. The `forward` of a module is none of them."""
        key = site, self._query.scopes.entered_at(event)
        if key not in self._known:
            self._known[key] = tuple(self._of(*key))
        return self._known[key]

    def runs_once(self, site: int) -> bool:
        """Whether each call of the function around a site surely comes to the site exactly once: it is in no loop, no
        branch, and nothing before it leaves the function."""
        if site not in self._once:
            self._once[site] = self._surely_once(self._query.trace.sites.get(site))
        return self._once[site]

    def runs_op_once(self, site: int, op: str) -> bool:
        """Whether each call of the function around a site surely runs an op there exactly once: the expression is an
        operator, or a call of a function with the name of the op."""
        if not self.runs_once(site):
            return False
        expression = self._query.places.tree(site)
        if not isinstance(expression, ast.Call):
            return isinstance(expression, _OPERATORS)
        return called(expression) == op

    def _of(self, site: int, entered: Sequence[int]) -> Iterator[FunctionCall]:
        frames = self._query.places.callers(site)[::-1]
        depth = 0
        for caller, frame in pairwise(frames):
            at_entry = depth
            while depth < len(entered) and entered[depth] == caller.number:
                depth += 1
            name = _name(frame.place.function)
            if depth == at_entry and name:
                place = caller.place
                function = frame.place.file, frame.place.function
                once = self.runs_once(caller.number)
                yield FunctionCall(name, function, caller.number, place.line, place.col, depth, once)

    def _surely_once(self, site: Site | None) -> bool:
        if site is None or site.place.col < 0:
            return False
        place = site.place
        tree = self._query.of(trees).get(place.file)
        function = function_around(tree, place.line, place.function.rpartition(".")[2])
        return function is not None and _comes_once(function.body, (place.line, place.col))


def _name(function: str) -> str:
    """The name of a function as a reader knows it, from its qualified name; empty for code that is no function of its
    own, as a comprehension, and for the `forward` of a module."""
    *outer, name = function.split(".")
    if name == "__call__" and outer:
        return outer[-1]
    return "" if name.startswith("<") or name == "forward" else name


def _has_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _comes_once(body: Sequence[ast.stmt], at: tuple[int, int]) -> bool:
    """Whether running some statements in order surely comes exactly once to the expression that begins at a line and a
    column."""
    for statement in body:
        if _has_line(statement, at[0]):
            if isinstance(statement, ast.With | ast.AsyncWith) and any(
                _has_line(inner, at[0]) for inner in statement.body
            ):
                return _comes_once(statement.body, at)
            is_plain = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
            return is_plain and _is_one_call(statement, at)
        if any(isinstance(node, _LEAVING) for node in ast.walk(statement)):
            return False
    return False


def _is_one_call(statement: ast.stmt, at: tuple[int, int]) -> bool:
    """Whether a statement runs the expression that begins at a line and a column once, and the expression is no call
    that may run an operator many times, as that of `sum`."""
    if any(isinstance(node, _PERHAPS) for node in ast.walk(statement)):
        return False
    calls = (
        node for node in ast.walk(statement) if isinstance(node, ast.Call) and (node.lineno, node.col_offset) == at
    )
    return not any(_may_repeat(call.func) for call in calls)


def _may_repeat(function: ast.expr) -> bool:
    """Whether a function of Python may run an operator many times."""
    if isinstance(function, ast.Name):
        return function.id in _REPEATING_NAMES
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in _REPEATING
