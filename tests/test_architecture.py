"""No circles of imports among the files of gradviz.

grimp sees every import: those inside functions and those under TYPE_CHECKING too. import-linter's contract
`acyclic_siblings` compares packages with their siblings, so it does not see a package that imports a file of its own
which imports the package."""

from __future__ import annotations

import pytest

grimp = pytest.importorskip("grimp", reason="pip install -e .[lint]")

# Circles that are being taken apart.
KNOWN = [
    {"gradviz.graph.flow", "gradviz.graph.moment"},
    {"gradviz.step.plain", "gradviz.step.tells", "gradviz.step.verbs"},
]


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one file (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for imported in imports[module]:
            if imported not in order:
                visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            component = set(path[path.index(module) :])
            del path[path.index(module) :]
            if len(component) > 1:
                found.append(component)

    for module in imports:
        if module not in order:
            visit(module)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = grimp.build_graph("gradviz", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert [circle for circle in circles(imports) if circle not in KNOWN] == []
