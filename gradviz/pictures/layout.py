"""Converts DOT text to SVG text with an available Graphviz.

There are two engines, both programs that read DOT and write SVG. `dot` is the Graphviz of the system. `embedded` is
`graphviz-pure`, a port of Graphviz that `pip` installs with gradviz. Both give the same picture. `dot` is used if it
is on PATH and works, otherwise `embedded`; GRADVIZ_LAYOUT selects an engine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from gradviz.pictures.dot import dot_of
from gradviz.pictures.scene import Scene
from gradviz.pictures.vector import svg_of

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_DRAW_LESS = "draw less of it (fold it, or slice around a node)"
_TOO_SLOW = f"Graphviz did not finish in {{:g}} s: {_DRAW_LESS}, or give it more time"
_MEND_DOT = "save it as .dot and look for an unclosed quote or bracket in it"
_PACKAGE = "graphviz-pure"  # also the name of its program


class LayoutError(RuntimeError):
    """The graph could not be laid out. The message is one line: the problem and a remedy."""


class GaveUp(LayoutError):
    """Graphviz was too slow, failed, or is not available. The graph has to be laid out in another way."""


class TooSlow(GaveUp):
    """Graphviz did not finish in time."""


@dataclass(frozen=True)
class Engine:
    """A layout engine, as shown by `gradviz doctor`. `version` is None if the engine cannot run; `serves` is
    whether `to_svg` uses it."""

    name: str
    version: str | None
    where: str
    serves: bool


def to_svg(dot_source: str, engine: str | None = None, timeout: float = 60.0) -> str:
    """Lay out `dot_source` and return an SVG document.

    `engine` is "dot" or "embedded". None means the value of GRADVIZ_LAYOUT; without it, `dot` if it is on PATH, and
    `embedded` if there is no `dot` or it fails. Raises LayoutError if the DOT text is malformed, and GaveUp if the
    layout takes more than `timeout` seconds, or if no engine works."""
    clean_source = _NOT_IN_XML.sub("\ufffd", dot_source)
    *others, last = _engines_to_try(engine)
    for other in others:
        try:
            return other.svg(clean_source, timeout)
        except TooSlow:
            raise
        except GaveUp:
            continue  # the next engine may work
    return last.svg(clean_source, timeout)


def engines() -> list[Engine]:
    """Both engines, with whether `to_svg` uses them. Raises LayoutError if GRADVIZ_LAYOUT names an engine that is not
    available."""
    to_try = _engines_to_try(None)
    states = [(engine, *engine.state()) for engine in _ENGINES]
    serving = next(
        (engine for engine, version, _ in states if engine in to_try and version is not None), None
    )
    return [Engine(engine.name, version, where, engine is serving) for engine, version, where in states]


def _engines_to_try(asked: str | None) -> list[_Engine]:
    name = asked or os.environ.get("GRADVIZ_LAYOUT")
    if not name:
        return [_DOT, _EMBEDDED] if _DOT.find() else [_EMBEDDED]
    engine = next((engine for engine in _ENGINES if engine.name == name), None)
    if engine is None:
        raise LayoutError(
            f"there is no layout engine {name!r}: use dot or embedded (GRADVIZ_LAYOUT also accepts rows)"
        )
    if engine.find() is None:
        raise LayoutError(engine.missing)
    return [engine]


# ---- The programs


@dataclass(frozen=True)
class _Engine:
    """An engine: its name, its title in a message, a function that finds its program, the message if there is no
    program, and advice on how to do without it."""

    name: str
    title: str
    find: Callable[[], str | None]
    missing: str
    without_it: str

    def svg(self, dot_source: str, timeout: float) -> str:
        """Lay out and draw. Raises as `to_svg` does."""
        program = self.find()
        if program is None:
            raise GaveUp(self.missing)
        try:
            status, svg, complaint = _run([program, "-Tsvg"], dot_source.encode(), timeout)
        except subprocess.TimeoutExpired:
            raise TooSlow(_TOO_SLOW.format(timeout)) from None
        except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is being finalized
            cause = getattr(error, "strerror", None) or error
            raise GaveUp(f"{program} does not start ({cause}): {self.without_it}") from error
        if status:
            raise self._failure(status, complaint.decode(errors="replace"))
        if b"<svg" not in svg:
            raise LayoutError("this DOT text has no graph: it needs `digraph { ... }`")
        return svg.decode()

    def _failure(self, status: int, complaint: str) -> LayoutError:
        if status < 0:
            ended = f"{self.title} was ended by {signal.Signals(-status).name}"
            return GaveUp(f"{ended}: {_DRAW_LESS}, or {self.without_it}")
        errors = [line for line in complaint.splitlines() if line.startswith("Error: ")]
        error = (
            errors[0].removeprefix("Error: ").removeprefix("<stdin>: ") if errors else f"exit status {status}"
        )
        failed = f"{self.title} failed ({error.strip()})"
        if "syntax error" in error:
            return LayoutError(f"{failed}: {_MEND_DOT}")
        return GaveUp(f"{failed}: {self.without_it}")

    def state(self) -> tuple[str | None, str]:
        """The engine's version and the path of its program; or None and the reason why it does not work."""
        try:
            svg = self.svg("digraph { a }", timeout=10)
        except LayoutError as error:
            return None, str(error)
        version = re.search(r"Generated by graphviz version (\S+)", svg)
        return (version[1] if version else "of unknown version"), self.find() or self.missing


def _run(command: list[str], source: bytes, timeout: float) -> tuple[int, bytes, bytes]:
    """Run a program on `source`. Returns its status, its stdout and its stderr.

    Files are used instead of pipes: with several pipes and a timeout, `subprocess` starts threads on Windows, which
    is impossible while the interpreter ends."""
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(source)
        stdin.seek(0)
        status = subprocess.run(
            command, stdin=stdin, stdout=stdout, stderr=stderr, timeout=timeout
        ).returncode
        stdout.seek(0)
        stderr.seek(0)
        return status, stdout.read(), stderr.read()


def _embedded_program() -> str | None:
    """The path of graphviz-pure's program; None if there is none. Its package lists the path; if it was installed
    with `pip --target`, the program is in a folder beside the packages."""
    return next((str(path) for path in _embedded_places() if path.is_file()), shutil.which(_PACKAGE))


def _embedded_places() -> Iterator[Path]:
    names = (_PACKAGE, f"{_PACKAGE}.exe")
    try:
        files = metadata.files(_PACKAGE)
    except metadata.PackageNotFoundError:
        files = None
    yield from (Path(os.path.normpath(str(file.locate()))) for file in files or () if file.name in names)
    packages = Path(__file__).parents[2]
    folders = (
        packages / "bin",
        packages / "Scripts",
        sysconfig.get_path("scripts"),
        Path(sys.executable).parent,
    )
    yield from (Path(folder, name) for folder in folders for name in names)


_DOT = _Engine(
    "dot",
    "dot",
    lambda: shutil.which("dot"),
    "there is no `dot` on PATH: install Graphviz, or set GRADVIZ_LAYOUT=embedded to do without it",
    "set GRADVIZ_LAYOUT=embedded to do without it",
)
_EMBEDDED = _Engine(
    "embedded",
    "the embedded Graphviz",
    _embedded_program,
    f"{_PACKAGE} is not installed: pip install {_PACKAGE}, or install Graphviz, so that there is a `dot` on PATH",
    "install Graphviz, so that there is a `dot` on PATH",
)
_ENGINES = (_DOT, _EMBEDDED)


# Lays out a scene as SVG, with the best method that is fast enough.
#
# Up to FULL things, Graphviz uses its full quality, and up to FAST its faster settings. For larger scenes, or if
# Graphviz does not finish, things are placed in rows by `vector.py`; the caption mentions this.

# Limits for the number of things, or a third of the number of links if that is larger
FULL, FAST = 2_000, 5_000
PATIENCE = 20.0  # seconds for Graphviz


def laid_out(scene: Scene, patience: float = PATIENCE) -> str:
    """The scene as an SVG document. Raises layout.LayoutError if GRADVIZ_LAYOUT names an engine that is not
    available."""
    if os.environ.get("GRADVIZ_LAYOUT") == "rows":
        return svg_of(scene)
    size = max(len(scene.things), len(scene.links) // 3)
    if size > FAST:
        return svg_of(
            _noted(scene, f"placed in rows: {len(scene.things):,} things are too many for Graphviz")
        )
    try:
        return to_svg(dot_of(scene, fast=size > FULL), timeout=patience)
    except GaveUp as error:
        return svg_of(_noted(scene, f"placed in rows: {str(error).partition(':')[0]}"))


def _noted(scene: Scene, note: str) -> Scene:
    return replace(scene, caption=[*scene.caption[:1], note, *scene.caption[1:]])
