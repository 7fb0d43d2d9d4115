"""Loops around a line of the source, and the lines that keep a tensor."""

import ast
from collections.abc import Collection, Iterator

from gradviz.diagnose.case import Case
from gradviz.query.functions_of_source import called, nodes_of
from gradviz.query.source_trees import loops_of_line, trees
from gradviz.tracefile import Site

_STORING = {"append", "appendleft", "extend", "add", "insert", "put", "push", "setdefault", "update"}
# functions and attributes whose result has no graph
_FREE = {"item", "detach", "tolist", "numpy", "float", "int", "data", "shape", "detach_"}

_PASSING = {"print", "backward"}  # functions that keep nothing


def loops_around(case: Case, site: int) -> int:
    """The number of loops around the line of a site and around the lines of its callers."""
    return sum(len(loops_at(case, caller)) for caller in case.query.places.callers(site))


def loops_at(case: Case, site: Site) -> list[ast.For | ast.While]:
    """The loops around the line of a place, in its file."""
    return loops_of_line(case.query, site.place.file, site.place.line)


def keeping_lines(case: Case, file: str, names: Collection[str], made_by: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that store a tensor with one of these names, or a result of the function `made_by`, in a
    container or add it to a variable. Each line comes with the name."""
    tree = case.query.of(trees).get(file)
    for node in nodes_of(tree):
        for value in _stored(node, names):
            if name := _kept(value, names, made_by):
                yield getattr(node, "lineno", 0), name


def given_away(case: Case, file: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file that pass a tensor with one of these names to a function and drop the result:
    `logger.log(loss=loss)`. Each line comes with the name."""
    tree = case.query.of(trees).get(file)
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call, named = node.value, called(node.value)
            for value in (*call.args, *(keyword.value for keyword in call.keywords)):
                name = ast.unparse(value)
                if name in names and named not in _PASSING:
                    yield node.lineno, name


def _stored(node: ast.AST, names: Collection[str]) -> list[ast.expr]:
    """The expressions that a statement or a call stores. `log.all = log.all + [loss]` and `total = total + loss` store,
    if `log.all` and `total` are none of the names."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STORING:
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.AugAssign):
        return [node.value]
    if isinstance(node, ast.Assign):
        is_element = any(isinstance(target, ast.Subscript) for target in node.targets)
        is_list = any(isinstance(part, ast.List) for part in ast.walk(node.value))
        growing = (target for target in node.targets if isinstance(target, ast.Attribute) or not is_list)
        kept = {ast.unparse(target) for target in growing}.difference(names)
        grows = any(ast.unparse(part) in kept for part in ast.walk(node.value) if isinstance(part, ast.expr))
        return [node.value] if is_element or grows else []
    return []


def _kept(value: ast.expr, names: Collection[str], made_by: str) -> str:
    """The name, one of `names`, of a tensor that an expression keeps with its graph; or a call of `made_by`; or
    empty."""
    if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in names:
        return ast.unparse(value)
    if isinstance(value, ast.Call):
        function = called(value)
        if function in _FREE:
            return ""
        if made_by and function == made_by:
            return f"{function}(...)"
        inner = value.func.value if isinstance(value.func, ast.Attribute) else None
        return _kept(inner, names, made_by) if inner is not None else ""
    if isinstance(value, ast.Attribute):
        return "" if value.attr in _FREE else _kept(value.value, names, made_by)
    parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
    return next((name for part in parts if (name := _kept(part, names, made_by))), "")
