"""Writes docs/api.md from the docstrings: `python -m tests.api_reference`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import gradviz
from gradviz.compare.difference import Difference
from gradviz.diagnose.finding import Finding, Report
from gradviz.explain.by_norms import Reason
from gradviz.pictures.picture import Page, Picture
from gradviz.recorded_run import RecordedRun, Rows

PAGE = Path(__file__).parent.parent / "docs/api.md"
FUNCTIONS = [name for name in gradviz.__all__ if not name.startswith("_")]
RETURNED = (RecordedRun, Rows, Report, Finding, Reason, Difference, Picture, Page)
_OF_A_TRACE = (
    "close",
    "count",
    "event",
    "passes",
    "find_pass",
    "snapshot",
    "source",
    "table",
    "sql",
    "to_pandas",
    "save_tables",
)
_BEGINNING = """\
# The API

What `import gradviz` gives, with types that a type checker sees. This page is made from the docstrings
(`python -m tests.api_reference`).
"""


def page() -> str:
    """The text of docs/api.md."""
    parts = [_BEGINNING, "## Functions\n"]
    parts += [_entry(f"gradviz.{name}", getattr(gradviz, name)) for name in FUNCTIONS]
    parts.append("## What they return\n")
    parts += [_class_entry(kind) for kind in RETURNED]
    return "\n".join(parts)


def _entry(title: str, thing: Callable[..., Any]) -> str:
    return f"### `{title}`\n\n```text\n{_call(title, thing)}\n```\n\n{_docstring(thing)}\n"


def _call(title: str, thing: Callable[..., Any]) -> str:
    """How it is called, one argument a line where they do not fit in one."""
    signature = inspect.signature(thing)
    parameters = list(_parameters(signature))
    back = signature.return_annotation
    after = "" if back is inspect.Signature.empty or inspect.isclass(thing) else f" -> {back}"
    line = f"{title}({', '.join(parameters)}){after}"
    if len(line) <= 100:
        return line
    return f"{title}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){after}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    """Its parameters as they stand in the source, with the star before those that need their names."""
    named = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        yield re.sub(r": '([^']*)'", r": \1", str(one))


def _class_entry(kind: type) -> str:
    members = "".join(f"- `{name}`: {told}\n" for name, told in _members(kind))
    return f"### `{kind.__name__}`\n\n{_docstring(kind)}\n" + (f"\n{members}" if members else "")


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties that have a docstring of their own, each with its first sentence."""
    for owner in reversed(kind.__mro__):
        for name, member in vars(owner).items() if owner.__module__.startswith("gradviz") else ():
            if name.startswith("_") or (kind is RecordedRun and name not in _OF_A_TRACE):
                continue
            if isinstance(member, (property, cached_property)) or inspect.isfunction(member):
                text = inspect.getdoc(member)
                if text:
                    shown = f"{name}()" if inspect.isfunction(member) else name
                    yield shown, re.split(r"(?<=\.)\s", " ".join(text.split()))[0]


def _docstring(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(part, 118, break_on_hyphens=False) for part in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
