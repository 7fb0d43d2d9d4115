"""The statements of the source that ran: how often, which was the last, and which one returned from the backward of a
custom Function."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from gradviz.query.failures import Failure, failures
from gradviz.query.functions_of_source import Function, blocks_of, called, function_around, nodes_of, parents_of
from gradviz.query.query import Query
from gradviz.query.scopes import FUNCTION
from gradviz.query.source_trees import loops_of_line, statement_at, trees
from gradviz.sets import grouped
from gradviz.tracefile import Site


def function_of(query: Query, node: int) -> str:
    """The custom Function that a node belongs to; empty for any other node."""
    event = query.nodes.op(node)
    if event is None:
        return ""
    op = query.tensors.op(event)
    around = query.scopes.around(max(event - 2, 0), op.thread)
    return op.op if any(scope.kind == FUNCTION and scope.name == op.op for scope in around) else ""


def returned_at(query: Query, function: str) -> Site | None:
    """The line at which the backward of a Function returns, the last of its outermost ones; None if its source was not
    kept, or if several classes have its name."""
    returns = [(file, line) for file, tree in query.of(trees).items() for line in _returns(tree, function)]
    return query.places.of_line(*returns[0]) if len(returns) == 1 else None


def _returns(tree: ast.Module, function: str) -> Iterator[int]:
    """The line of the last outermost `return` in the backward of each class with this name."""
    for own in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef) and node.name == function):
        for method in own.body:
            if isinstance(method, Function) and method.name == "backward":
                ends = [(-one.col_offset, one.lineno) for one in ast.walk(method) if isinstance(one, ast.Return)]
                yield from (line for _, line in sorted(ends)[-1:])


def variables_of(query: Query, number: int) -> list[tuple[Site, str]]:
    """The variables that get the value made at a site, with their lines: its own first, then those of the callers that
    a function returns it to, alone or as one of several. Empty if the value has no name."""
    callers = query.places.callers(query.places.named_at(number))
    found = [(one, one.names[0]) for one in callers[:1] if len(one.names) == 1]
    for site, caller in pairwise(callers if found else ()):
        target = _target(query, site, caller, found[-1][1])
        if not target:
            break
        found.append((caller, target))
    return found


def _target(query: Query, site: Site, caller: Site, name: str) -> str:
    """The variable of a caller that gets the value of a variable of the function around a site; empty if none does."""
    function = function_around(query.of(trees).get(site.place.file), site.place.line)
    statement = statement_at(query, caller)
    if function is None or not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ""
    returned = [one.value for one in ast.walk(function) if isinstance(one, ast.Return)]
    value, target = returned[-1] if returned else None, statement.targets[0]
    values, targets = ([*one.elts] if isinstance(one, ast.Tuple) else [one] for one in (value, target))
    pairs = zip(values, targets, strict=True) if len(values) == len(targets) else ()
    own = [there for one, there in pairs if isinstance(one, ast.Name) and one.id == name]
    return own[0].id if len(own) == 1 and isinstance(own[0], ast.Name) else ""


def copied_in_loop(query: Query, site: Site, name: str) -> tuple[Site | None, ast.Assign] | None:
    """The only statement in a loop that gives another variable the value of a variable, in the same function, or of an
    attribute, of any object; and its line. None if there is none, or several."""
    attribute = name.rpartition(".")[2]
    found = []
    for file, tree in query.of(trees).items():
        is_here = file == site.place.file and attribute == name
        nodes = ast.walk(function_around(tree, site.place.line) or tree) if is_here else nodes_of(tree)
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value
                is_copy = isinstance(value, ast.Name) and value.id == name and is_here
                is_copy |= isinstance(value, ast.Attribute) and value.attr == attribute != name
                if is_copy and loops_of_line(query, file, node.lineno):
                    found.append((query.places.of_line(file, node.lineno), node))
    return found[0] if len(found) == 1 else None


_PARAMETERS = ("parameters", "named_parameters")
_MODULES, _CHILDREN = ("modules", "named_modules"), ("children", "named_children")
_JUMPS = ast.Continue | ast.Break | ast.Return | ast.Raise
_ITEM = re.compile(r"\[(\d+)\]")  # of `net[0]`, whose parameters are called `net.0.weight`
_DEEPEST = 8  # functions that call one another


class StatementsRun:
    """The statements of a program that are sure to have run. Use `query.of(StatementsRun)`."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.lines: dict[str, set[int]] = {}
        for site in query.trace.sites.values():
            self.lines.setdefault(site.place.file, set()).add(site.place.line)

    def has_run(self, file: str, statement: ast.stmt, depth: int = _DEEPEST) -> bool:
        """Whether a statement has run: something was recorded in it or in a later statement of its block; or the
        statement around it has run, and leads to it: a `with`, a loop over parameters, a function that was called."""
        tree = self.query.of(trees)[file]
        around, block = parents_of(tree)[statement], blocks_of(tree)[statement]
        at = block.index(statement)
        if any(self._is_seen(file, own) for own in block[at:]):
            return True
        if any(isinstance(node, _JUMPS) for own in block[:at] for node in ast.walk(own)):
            return False
        if isinstance(around, ast.With) or (
            isinstance(around, ast.For)
            and (self._modules_of_method(file, around, _PARAMETERS) or self._modules_of_loop(file, around))
        ):
            return statement in around.body and self.has_run(file, around, depth)
        return isinstance(around, Function) and depth > 0 and self._is_called(around, depth - 1)

    def _is_seen(self, file: str, statement: ast.stmt) -> bool:
        last = statement.end_lineno or statement.lineno
        return not self.lines.get(file, set()).isdisjoint(range(statement.lineno, last + 1))

    def _is_called(self, function: Function, depth: int) -> bool:
        """Whether a statement has run that does nothing but call a function, the only one of its name."""
        return len(self._functions.get(function.name, [])) == 1 and any(
            self.has_run(file, statement, depth) for file, statement, _ in self._calls.get(function.name, [])
        )

    def _modules_of_method(self, file: str, loop: ast.For, methods: tuple[str, ...]) -> set[str]:
        """The modules with parameters whose method of PyTorch a loop goes over; none if the program defines it."""
        call = loop.iter
        is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if not isinstance(call, ast.Call) or not is_method or called(call) not in methods:
            return set()
        assert isinstance(call.func, ast.Attribute)
        is_of_program = not self._functions.keys().isdisjoint(methods)
        return set() if is_of_program else self.modules(file, call.func.value, loop.lineno)

    def _modules_of_loop(self, file: str, loop: ast.For) -> set[str]:
        """The paths of the modules with parameters that a loop goes over: `for layer in net.children()`, `for layer in
        net.layers`."""
        if around := self._modules_of_method(file, loop, _MODULES):
            return around
        below = self._modules_of_method(file, loop, _CHILDREN)
        if not below and not isinstance(loop.iter, ast.Call):
            below = self.modules(file, loop.iter, loop.lineno)
            return {path for path in self._children(below) if path.rpartition(".")[2].isdigit()}
        return self._children(below)

    def _children(self, paths: set[str]) -> set[str]:
        names = self.query.trace.parameters.values()
        below = [(path, name[len(path) + 1 :]) for path in paths for name in names if name.startswith(f"{path}.")]
        return {f"{path}.{name.partition('.')[0]}" for path, name in below if "." in name}

    def modules(self, file: str, module: ast.expr, line: int, depth: int = _DEEPEST) -> set[str]:
        """The paths that a module with parameters may have, which an expression at a line is; none if it is no such
        module. An argument of a function is what the call that has run passes, if it is the only call. The variable of
        a loop is each of the modules that the loop goes over."""
        root, _, path = _ITEM.sub(r".\1", ast.unparse(module)).partition(".")
        function = function_around(self.query.of(trees)[file], line)
        loop = self._loop_of(file, root, line) if not path else None
        if loop is not None:
            return self._modules_of_loop(file, loop)
        if function is not None and root in (arguments := [own.arg for own in function.args.args]):
            if root == "self" and path:
                return self._called(rf"(?:.*\.)?{re.escape(path)}(?=\.)")
            calls = self._calls.get(function.name, [])
            if path or depth == 0 or len(calls) != 1 or len(self._functions[function.name]) != 1:
                return set()
            (caller, _, call), at = calls[0], arguments.index(root)
            passed = call.args[at : at + 1]
            return self.modules(caller, passed[0], call.lineno, depth - 1) if passed else set()
        return self._called(re.escape(f"{root}.{path}" if path else root) + r"(?=\.)")

    def _called(self, beginning: str) -> set[str]:
        """The paths that match a pattern at the beginning of names of parameters."""
        matches = (re.match(beginning, name) for name in self.query.trace.parameters.values())
        return {match[0] for match in matches if match is not None}

    def _loop_of(self, file: str, name: str, line: int) -> ast.For | None:
        """The innermost loop around a line whose variable has this name; of two variables it is the second."""
        loops = [
            loop
            for loop in loops_of_line(self.query, file, line)
            if isinstance(loop, ast.For) and name == ast.unparse(loop.target).strip("()").rpartition(", ")[2]
        ]
        return max(loops, key=lambda loop: loop.lineno, default=None)

    @cached_property
    def _functions(self) -> dict[str, list[Function]]:
        return grouped((node.name, node) for _, node in self._nodes() if isinstance(node, Function))

    @cached_property
    def _calls(self) -> dict[str, list[tuple[str, ast.Expr | ast.Assign, ast.Call]]]:
        """The statements that are a call, or assign what a call gives, by the name of the called function."""
        return grouped(
            (called(node.value), (file, node, node.value))
            for file, node in self._nodes()
            if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call)
        )

    def _nodes(self) -> Iterator[tuple[str, ast.AST]]:
        yield from ((file, node) for file, tree in self.query.of(trees).items() for node in nodes_of(tree))


_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
_OPERANDS = re.compile(r"unsupported operand type\(s\) for (\S+): '([\w.]+)' and '([\w.]+)'")
_SEQUENCE = re.compile(r"can't multiply sequence by non-int of type|unsupported operand \(")  # of a tuple
_FORMAT = re.compile(r"unsupported format string passed to (\w+)\.__format__")
_SUBSCRIPT = re.compile(r"'(\w+)' object is not subscriptable")
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "** or pow()",
}  # fmt: skip


class WrongValue(NamedTuple):
    """An expression of the line that ended a program. By the exception, its type has no such operation. `type` is that
    type, `attribute` the attribute that it lacks (empty for an operator). `origin` is the expression that gave the
    value: `x.grad` for `g` after `g = x.grad`; it is the expression itself unless that is a name that was assigned
    once. `origin_line` is its line."""

    failure: Failure
    type: str
    attribute: str
    expression: ast.expr
    origin: ast.expr
    origin_line: int


def wrong_values(query: Query) -> list[WrongValue]:
    """The expressions that the exception that ended a program may be about; empty if the program ended well, or if its
    source was not kept. Use `query.of(wrong_values)`."""
    failure = next((one for one in failures(query) if not one.handled), None)
    tree = query.of(trees).get(failure.site.place.file) if failure is not None and failure.site else None
    if failure is None or failure.site is None or tree is None:
        return []
    statement = _statement(tree, failure.site.place.line)
    if statement is None:
        return []
    scope = function_around(tree, failure.site.place.line) or tree
    return [
        WrongValue(failure, kind, attribute, expression, origin := _origin(scope, expression), origin.lineno)
        for kind, attribute, expression in _meant(statement, failure.message)
    ]


def _meant(statement: ast.stmt, message: str) -> Iterator[tuple[str, str, ast.expr]]:
    """The expressions of a statement that an exception may be about, with the type and the attribute in its message."""
    nodes = list(ast.walk(statement))
    lacks, operands, formatted = (pattern.search(message) for pattern in (_ATTRIBUTE, _OPERANDS, _FORMAT))
    subscript = _SUBSCRIPT.search(message)
    if lacks is not None:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == lacks[2]:
                yield lacks[1], lacks[2], node.value
    elif operands is not None:
        for left, operator, right in filter(None, map(_operation, nodes)):
            if operands[1].removesuffix("=") == _SIGNS.get(type(operator)):
                yield operands[2], "", left
                yield operands[3], "", right
    elif _SEQUENCE.search(message) is not None:
        for left, _, right in filter(None, map(_operation, nodes)):
            yield "tuple", "", left
            yield "tuple", "", right
    elif formatted is not None:
        for node in nodes:
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                yield formatted[1], "", node.value
    elif subscript is not None:
        for node in nodes:
            if isinstance(node, ast.Subscript):
                yield subscript[1], "", node.value


def _operation(node: ast.AST) -> tuple[ast.expr, ast.operator, ast.expr] | None:
    if isinstance(node, ast.BinOp):
        return node.left, node.op, node.right
    return (node.target, node.op, node.value) if isinstance(node, ast.AugAssign) else None


def _statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """The innermost statement that a line belongs to; None if that is a compound statement."""
    statements = (node for node in nodes_of(tree) if isinstance(node, ast.stmt))
    around = [one for one in statements if one.lineno <= line <= (one.end_lineno or 0)]  # the innermost comes last
    return around[-1] if around and not hasattr(around[-1], "body") else None


def _origin(scope: ast.AST, expression: ast.expr) -> ast.expr:
    """The value that was assigned to a name, if it was assigned once; else the expression itself."""
    if not isinstance(expression, ast.Name):
        return expression
    stores = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == expression.id and isinstance(node.ctx, ast.Store)
    ]
    values = [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] in stores
    ]
    return values[0] if len(stores) == len(values) == 1 else expression
