"""Options of gradviz's that are typed after the script: the script gets them."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import click

from gradviz.system.paths import as_argument
from gradviz.tracefile.sites import is_users
from gradviz.words.numbers import listed


def has_option(option: str, module: str | None, script: str | None) -> bool:
    """Whether the source of the script or module has the option in quotes, the sign of an option of its own."""
    return re.search(rf"""["']{re.escape(option)}["'=]""", _source_of(module, script)) is not None


def options_behind(module: str | None, script: str | None, arguments: tuple[str, ...]) -> str:
    """A message that names the options of the command that stand behind the script, and gives the command line with
    them before it. Empty if there are none, or if the script has options of these names itself, as a module of a
    library that is run by `-m` may have."""
    if module is not None and not is_users(str(_file_of(module))):
        return ""
    known = {name: option for option in click.get_current_context().command.params for name in option.opts}
    moved, rest, named = [], [], []
    words = list(takewhile(lambda word: word != "--", arguments))
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        option = known.get(name) if word.startswith("-") else None
        if not isinstance(option, click.Option) or has_option(name, module, script):
            rest.append(word)
            continue
        named.append(name)
        moved.append(word)
        if not option.is_flag and name == word and words:
            moved.append(words.pop(0))
    if not named:
        return ""
    rest += arguments[len(moved) + len(rest) :]
    target = module if module is not None else Path(script or "").name
    message = (
        f"{listed(dict.fromkeys(named))} after {target} {'goes' if len(named) == 1 else 'go'} to {target}"
    )
    return f"{message}; for gradviz: {_command(moved, script, arguments, rest)}"


def _command(moved: list[str], script: str | None, arguments: tuple[str, ...], rest: list[str]) -> str:
    """The command line that was typed, with some words moved to before the script."""
    name = click.get_current_context().info_name or ""
    behind = [*([] if script is None else [script]), *arguments]
    before = sys.argv[2 : len(sys.argv) - len(behind)] if sys.argv[-len(behind) :] == behind else []
    script_words = [] if script is None else [script]
    return " ".join(map(as_argument, ["gradviz", name, *moved, *before, *script_words, *rest]))


def _source_of(module: str | None, script: str | None) -> str:
    """The source text of the script or module; empty if it cannot be read."""
    path = _file_of(module) if module is not None else Path(script or "")
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path is not None else ""
    except (OSError, ValueError):
        return ""


def _file_of(module: str) -> Path | None:
    """The file that `-m` runs. It is looked up without an import of the packages around it."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None if spec is None or inner or spec.origin is None else Path(spec.origin)
    place = Path(spec.submodule_search_locations[0], *inner)
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
