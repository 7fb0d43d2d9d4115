"""Converts SVG text to PDF bytes with an installed program: gradviz has no PDF writer."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess

_CONVERTERS = {
    "rsvg-convert": ("--format=pdf",),
    "inkscape": ("--pipe", "--export-type=pdf", "--export-filename=-"),
}
_PATIENCE = 120.0
_INSTALL = "install one (Debian: librsvg2-bin, macOS: librsvg, any: pip install cairosvg), or use .svg"


class NoPdf(ValueError):
    """No PDF converter is installed, or the converter failed. The message is one line that says what to do."""


def check_pdf() -> None:
    """Raise NoPdf if no converter is installed."""
    if _command() is None and not _has_cairosvg() and shutil.which("dot") is None:
        raise NoPdf(
            f"a .pdf needs rsvg-convert, inkscape, cairosvg or dot, and none is installed: {_INSTALL}"
        )


def to_pdf(svg: str, dot_source: str) -> bytes:
    """Make a PDF from `svg` with the best installed converter, or from `dot_source` if only `dot` is
    installed. Raises NoPdf."""
    check_pdf()
    command = _command()
    if command is not None:
        return _by_command(command, svg)
    if not _has_cairosvg():
        return _by_command([shutil.which("dot") or "dot", "-Tpdf"], dot_source)
    import cairosvg  # type: ignore[import-not-found, unused-ignore]

    return cairosvg.svg2pdf(bytestring=svg.encode())


def _has_cairosvg() -> bool:
    return importlib.util.find_spec("cairosvg") is not None


def _command() -> list[str] | None:
    for name, options in _CONVERTERS.items():
        program = shutil.which(name)
        if program is not None:
            return [program, *options]
    return None


def _by_command(command: list[str], source: str) -> bytes:
    try:
        run = subprocess.run(command, input=source.encode(), capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPdf(f"{command[0]} could not make a PDF ({error}): {_INSTALL}") from error
    if run.returncode or not run.stdout.startswith(b"%PDF"):
        said = run.stderr.decode(errors="replace").strip().splitlines()[:1] or [
            f"exit status {run.returncode}"
        ]
        raise NoPdf(f"{command[0]} could not make a PDF ({said[0]}): {_INSTALL}")
    return run.stdout
