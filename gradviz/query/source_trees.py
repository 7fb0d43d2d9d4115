"""The syntax trees of a program, as far as its source was kept."""

from __future__ import annotations

import ast

from gradviz.query.query import Query


def trees(query: Query) -> dict[str, ast.Module]:
    """The syntax tree of each file of the program. Use `query.of(trees)`."""
    found: dict[str, ast.Module] = {}
    trace = query.trace
    files = {site.place.file for site in trace.sites.values() if trace.source(site.place.file)}
    for file in files:
        try:
            found[file] = ast.parse("\n".join(trace.source(file)))
        except (SyntaxError, ValueError):
            continue
    return found
