"""The functions that the source of a program defines and calls, and the expressions that callers give for an argument:
`images` of `model(images)` for the `x` that its `forward` reads."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

from gradviz.events.kinds import Kind
from gradviz.query.places import Places
from gradviz.query.sorted_tables import Lookup
from gradviz.tracefile import Site, Trace
from gradviz.tracefile.sites import last_name

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_around(tree: ast.Module | None, line: int, name: str = "") -> Function | None:
    """The innermost function around a line, or the innermost of a name; None if there is none."""
    around = (one for one in _functions(tree) if one.lineno <= line <= (one.end_lineno or 0) and name in ("", one.name))
    return max(around, key=lambda node: node.lineno, default=None)


@lru_cache(maxsize=32)
def _functions(tree: ast.Module | None) -> tuple[Function, ...]:
    return tuple(node for node in nodes_of(tree) if isinstance(node, Function))


def parsed(trace: Trace, file: str) -> ast.Module | None:
    """The syntax tree of a file of a traced program; None if its source is no Python that can be read here."""
    return tree_of("\n".join([*trace.source(file), ""]))


@lru_cache(maxsize=32)  # all ranks of a run have the same files
def tree_of(text: str) -> ast.Module | None:
    """The syntax tree of a program; None if it is no Python that can be read here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an unknown escape: the program has shown it, by the name of its file
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=32)
def nodes_of(tree: ast.Module | None) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a file; none without a tree."""
    return tuple(ast.walk(tree)) if tree is not None else ()


@lru_cache(maxsize=32)
def parents_of(tree: ast.Module | None) -> dict[ast.AST, ast.AST]:
    """The node around each node of the syntax tree of a file."""
    return {child: node for node in nodes_of(tree) for child in ast.iter_child_nodes(node)}


@lru_cache(maxsize=32)
def blocks_of(tree: ast.Module | None) -> dict[ast.stmt, list[ast.stmt]]:
    """The block that each statement of a file stands in."""
    parts = (getattr(node, name, None) for node in nodes_of(tree) for name in ("body", "orelse", "finalbody"))
    return {statement: block for block in parts if isinstance(block, list) for statement in block}


def ends_of(node: ast.expr | ast.stmt, lines: Sequence[str]) -> tuple[int, int, int, int]:
    """The line and the column of both ends of a node. The tree counts the bytes of a line, this the characters."""
    end, end_col = node.end_lineno or node.lineno, node.end_col_offset or 0
    columns = (
        len(lines[line - 1].encode()[:column].decode(errors="ignore"))
        for line, column in ((node.lineno, node.col_offset), (end, end_col))
    )
    return node.lineno, next(columns), end, next(columns)


class Element(NamedTuple):
    """An element of a list, tuple or dict that is assigned to a variable: `w["bias"]`. A comprehension `counts` its
    elements: a number takes the place of `{}` in the path. Without a path, what a function returns."""

    path: str
    counts: bool
    line: int


@lru_cache(maxsize=32)
def elements_of(tree: ast.Module, lines: tuple[str, ...]) -> dict[tuple[int, int, int, int], Element]:
    """The elements of the collections that a file assigns to variables, by the places of their expressions: line and
    column of both ends, in characters. Comprehensions only where they run once, outside of functions and loops."""
    found = {}

    def add(one: ast.expr, path: str, counts: bool = False) -> None:
        found[ends_of(one, lines)] = Element(path, counts, one.lineno)

    for node in nodes_of(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            add(node.value, "")
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
            for one, path in _elements(node.value, target.id):
                add(one, path)
            if node in tree.body and isinstance(node.value, ast.ListComp) and len(node.value.generators) == 1:
                add(node.value.elt, f"{target.id}[{{}}]", True)
    return found


def _elements(value: ast.expr, path: str) -> Iterator[tuple[ast.expr, str]]:
    pairs: list[tuple[object, ast.expr]] = []
    if isinstance(value, ast.List | ast.Tuple):
        pairs = [*enumerate(value.elts)]
    elif isinstance(value, ast.Dict):
        keys = zip(value.keys, value.values, strict=True)
        pairs = [(key.value, one) for key, one in keys if isinstance(key, ast.Constant)]
    for key, one in pairs:
        if isinstance(one, ast.Starred):
            return  # the places behind it are not known
        text = f'"{key}"' if isinstance(key, str) else repr(key)
        yield one, f"{path}[{text}]"
        yield from _elements(one, f"{path}[{text}]")


def called(call: ast.Call) -> str:
    """The last name of the called function: `sqrt` for `torch.sqrt(x)` and for `x.sqrt()`; empty if it has none."""
    return last_name(call.func)


_READABLE = ast.Name | ast.Attribute | ast.Subscript
_MODULES_CALL = "forward"


class PassedArguments(Lookup):
    """Look-ups about the arguments of calls in one trace, by its source."""

    def __init__(self, places: Places) -> None:
        super().__init__(places.trace)
        self._places = places
        self._tree = lru_cache(maxsize=None)(partial(parsed, self.trace))

    def outward(self, site: int, operand: str) -> Iterator[str]:
        """The expressions that the callers of the function around a site give for an operand that is read there,
        innermost first. It ends where the source does not show that a caller hands on the value as it is."""
        for frame, caller in pairwise(self._places.callers(site)):
            operand = self._given(frame, caller, operand)
            if not operand:
                return
            yield operand

    def of_module(self, site: int) -> str:
        """The only argument of the call of a library's module at a site; empty if it is none, or has several."""
        known = self._places.site(site)
        call = self._call(site)
        if known is None or call is None or site not in self._entered or not self._is_object(known, call):
            return ""
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return readable(arguments[0]) if len(arguments) == 1 else ""

    @cached_property
    def _entered(self) -> set[int]:
        """The sites at which a module was called."""
        return set(self.trace.table(Kind.SCOPE_ENTERED).sites.tolist())

    def _given(self, frame: Site, caller: Site, operand: str) -> str:
        """The argument that a caller gives for a parameter of the function of a frame; empty if it is not known."""
        name = frame.place.function.rpartition(".")[2]
        function = function_around(self._tree(frame.place.file), frame.place.line, name)
        call = self._call(caller.number)
        if function is None or call is None or not self._is_called(caller, call, name):
            return ""
        if _is_assigned(function, operand, frame.place.line):
            return ""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] == ["self"]:
            del names[0]
        if any(keyword.arg == operand for keyword in call.keywords):
            return readable(next(keyword.value for keyword in call.keywords if keyword.arg == operand))
        at = names.index(operand) if operand in names else len(call.args)
        is_spread = any(isinstance(one, ast.Starred) for one in call.args[: at + 1])
        return readable(call.args[at]) if at < len(call.args) and not is_spread else ""

    def _is_called(self, caller: Site, call: ast.Call, name: str) -> bool:
        """Whether a call is that of a function of this name, or of the module whose `forward` it is."""
        if name == _MODULES_CALL:
            return caller.number in self._entered and self._is_object(caller, call)
        return called(call) == name

    def _is_object(self, site: Site, call: ast.Call) -> bool:
        """Whether a call is that of an object of the program, and not of a function that it imports or defines."""
        root = call.func
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return isinstance(root, ast.Name) and root.id not in self._no_objects(site.place.file)

    def _no_objects(self, file: str) -> set[str]:
        """The names that a file imports or defines as functions and classes."""
        tree = self._tree(file)
        return {
            *imported_names(tree),
            *(node.name for node in nodes_of(tree) if isinstance(node, Function | ast.ClassDef)),
        }

    def _call(self, site: int) -> ast.Call | None:
        expression = self._places.tree(site, whole=True)
        return expression if isinstance(expression, ast.Call) else None


def _is_assigned(function: Function, name: str, line: int) -> bool:
    """Whether a function may give a name another tensor from outside before it comes to a line. What a loop makes of
    the name itself, as `x = layer(x)`, was made inside."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While | ast.AsyncFor)]
    own = {
        id(node.targets[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.BinOp)
        if len(node.targets) == 1
        if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.value))
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            is_before = node.lineno < line
            comes_back = any(one.lineno <= node.lineno and line <= (one.end_lineno or 0) for one in loops)
            if is_before or (comes_back and id(node) not in own):
                return True
    return False


@lru_cache(maxsize=32)
def imported_names(tree: ast.Module | None) -> frozenset[str]:
    """The names that a file gets by its imports."""
    imports = [one for node in nodes_of(tree) if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names]
    return frozenset((one.asname or one.name).partition(".")[0] for one in imports)


def readable(expression: ast.expr | None) -> str:
    """An expression that is a name, an attribute or an element; else empty."""
    return ast.unparse(expression) if isinstance(expression, _READABLE) else ""
