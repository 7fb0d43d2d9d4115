"""The syntax trees of a program, as far as its source was kept."""

import ast
from collections.abc import Iterator, Sequence

from gradviz.query.functions_of_source import blocks_of, function_around, nodes_of, parsed
from gradviz.query.query import Query
from gradviz.sets import grouped
from gradviz.tracefile import Site

_PASSES = ("backward", "grad")


def trees(query: Query) -> dict[str, ast.Module]:
    """The syntax tree of each file of the program. Use `query.of(trees)`."""
    trace = query.trace
    files = {site.place.file for site in trace.sites.values() if trace.source(site.place.file)}
    return {file: tree for file in files if (tree := parsed(trace, file)) is not None}


def statement_at(query: Query, site: Site | None) -> ast.stmt | None:
    """The innermost statement that begins on the line of a site, and not behind it; None if its source was not kept."""
    if site is None:
        return None
    begun = query.of(_statements).get((site.place.file, site.place.line), [])
    before = [statement for statement in begun if statement.col_offset <= site.place.col]
    return next(reversed(before or begun), None)


def _statements(query: Query) -> dict[tuple[str, int], list[ast.stmt]]:
    """The statements that begin on each line of each file, the outer and the earlier ones first."""
    nodes = ((file, node) for file, tree in query.of(trees).items() for node in nodes_of(tree))
    return grouped(((file, node.lineno), node) for file, node in nodes if isinstance(node, ast.stmt))


def assigned_to(statement: ast.stmt | None) -> str:
    """The target of an assignment; empty for another statement, or for several targets."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return ast.unparse(statement.targets[0])
    return ast.unparse(statement.target) if isinstance(statement, ast.AugAssign) else ""


def follow_each_other(query: Query, sites: Sequence[Site | None]) -> bool:
    """Whether the statements at some sites are in one block, in this order."""
    files = {site.place.file for site in sites if site is not None}
    lines = [site.place.line for site in sites if site is not None]
    tree = query.of(trees).get(min(files)) if len(files) == 1 and len(lines) == len(sites) else None
    blocks = (block for statement, block in blocks_of(tree).items() if statement.lineno == lines[0])
    return lines == sorted(set(lines)) and any({*lines} <= {one.lineno for one in block} for block in blocks)


def following(query: Query, site: Site | None) -> list[ast.stmt]:
    """The statements behind that of a site in its block."""
    statement = statement_at(query, site)
    if site is None or statement is None:
        return []
    block = blocks_of(query.of(trees)[site.place.file])[statement]
    return block[block.index(statement) + 1 :]


def loops_of_line(query: Query, file: str, line: int) -> list[ast.For | ast.While]:
    """The loops whose bodies a line of a file is in, the outer ones first."""
    return [
        node
        for node in nodes_of(query.of(trees).get(file))
        if isinstance(node, ast.For | ast.While) and node.lineno < line <= (node.end_lineno or 0)
    ]


def names_read(node: ast.AST) -> set[str]:
    """The variables that a part of a program reads."""
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return {one.id for one in names}


def assigned_before(query: Query, site: Site | None, name: str) -> ast.Assign | None:
    """The last assignment to a name above the line of a site, in the same function, or outside of all functions if the
    site is."""
    assignments = [
        node
        for node in _above(query, site)
        if isinstance(node, ast.Assign)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]
    return max(assignments, key=lambda node: node.lineno, default=None)


def appended_before(query: Query, site: Site | None, name: str) -> ast.Call | None:
    """The only call of `append` on a list of this name above the line of a site, in the same function; None if there is
    none, or several."""
    above = (node for node in _above(query, site) if isinstance(node, ast.Call) and len(node.args) == 1)
    calls = [call for call in above if ast.unparse(call.func) == f"{name}.append"]
    return calls[0] if len(calls) == 1 else None


def _above(query: Query, site: Site | None) -> Iterator[ast.AST]:
    """The nodes of the source above the line of a site, in the same function, or outside of all functions if the site
    is."""
    tree = query.of(trees).get(site.place.file) if site is not None else None
    if tree is None or site is None:
        return
    for node in _of_scope(function_around(tree, site.place.line) or tree):
        if getattr(node, "lineno", site.place.line) < site.place.line:
            yield node


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or a module, without the nodes of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _of_scope(child)


def backward_call(query: Query, site: Site | None) -> ast.Call | None:
    """The call of `backward` or `grad` in the statement at a site; None if there is none, or more than one."""
    statement = statement_at(query, site)
    passes = [call for method in _PASSES for call, _ in method_calls(statement, method)]
    return passes[0] if len(passes) == 1 else None


def method_calls(tree: ast.AST | None, name: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of an attribute of this name in a tree, each with the object: `loss` for `loss.backward()`. Empty
    without a tree."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node, node.func.value


def in_place(statement: ast.stmt | None, name: str) -> str:
    """The in-place form of a statement that makes a new tensor of a leaf: `w -= lr * w.grad` for
    `w = w - lr * w.grad`. Empty for any other statement."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(statement, ast.Assign) or not isinstance(value, ast.BinOp):
        return ""
    if ast.unparse(value.left) != name or ast.unparse(statement.targets[0]) != name:
        return ""
    target = ast.Name(name, ast.Store())
    return ast.unparse(ast.AugAssign(target, value.op, value.right))
