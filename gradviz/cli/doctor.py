"""`gradviz doctor`: checks what is installed, and which layout engine is used."""

import os
import platform
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version

import click
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import show_all_on_stdout, wide_console
from gradviz.version import __version__

_DISTRIBUTION = "gradviz-recorder"
_PACKAGES = ("numpy", "graphviz", "rich", "click", "graphviz-pure", "resvg-py")
OPTIONAL = {
    "torch": "only to record programs that use it; 0.9 GB for the CPU alone, 5.5 GB with CUDA, as on Linux by default",
    "scipy": "only for special functions of the NumPy engine; 110 MB",
    "fpdf2": "only to draw a .pdf; 50 MB with what it needs",
}


@click.command()
def doctor() -> None:
    """Show what is installed and which layout engine is used, and check that pictures can be drawn."""
    show_all_on_stdout()
    console = wide_console()
    table = Table.grid(padding=(0, 2))
    ok = [_add_versions(table), _add_owners(table), _add_layout(table), _add_picture(table)]
    console.print(table)
    if not all(ok):
        raise SystemExit(1)


def _row(table: Table, good: bool | None, label: str, text: str) -> None:
    mark = {True: Text("✓", "green"), False: Text("✗", "red"), None: Text("–", "dim")}[good]
    table.add_row(mark, Text(label), Text(text, "" if good else "dim" if good is None else "red"))


def _add_versions(table: Table) -> bool:
    _row(table, True, "gradviz", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    complete = True
    for package in (*_PACKAGES, *OPTIONAL):
        try:
            _row(table, True, package, version(package))
        except PackageNotFoundError:
            if package in OPTIONAL:
                _row(table, None, package, f"not installed (optional: {OPTIONAL[package]})")
            else:
                complete = False
                _row(table, False, package, f"missing: pip install {package}")
    return complete


def _add_owners(table: Table) -> bool:
    """Check that no other project has overwritten our files: another project on the package index also installs a
    package `gradviz`."""
    names = {*packages_distributions().get("gradviz", ())} - {_DISTRIBUTION}
    others = [distribution(name) for name in sorted(names)]
    installed = [other for other in others if other.read_text("INSTALLER")]  # leaves out leftovers of builds
    for other in installed:
        cure = f"pip uninstall {other.name}, and in the checkout pip install --force-reinstall ."
        owner = f"{other.name} {other.version}, another project, owns files of gradviz/, too"
        _row(table, False, "files", f"{owner}: {cure}")
    return not installed


def _add_layout(table: Table) -> bool:
    from gradviz.pictures.layout import LayoutError, engines

    if os.environ.get("GRADVIZ_LAYOUT") == "rows":
        _row(table, True, "layout", "rows, without Graphviz (GRADVIZ_LAYOUT)")
        return True
    try:
        known = engines()
    except LayoutError as error:
        _row(table, False, "layout", str(error))
        return False
    works = any(engine.serves for engine in known)
    for engine in known:
        serves = "in use" if engine.serves else "not in use"
        if engine.version is None:
            reason, _, _cure = engine.where.partition(":") if works else (engine.where, "", "")
            _row(table, None if works else False, f"layout: {engine.name}", reason)
        else:
            _row(table, True, f"layout: {engine.name}", f"{engine.version}, {serves} ({engine.where})")
    return works


def _add_picture(table: Table) -> bool:
    from gradviz.pictures.layout import LayoutError, laid_out
    from gradviz.pictures.render import legend, to_png

    try:
        picture = to_png(laid_out(legend()))
    except (ImportError, LayoutError, ValueError) as error:
        _row(table, False, "picture", str(error))
        return False
    _row(table, True, "picture", f"SVG and PNG work ({len(picture):,} bytes)")
    return True
