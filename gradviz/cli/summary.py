"""The summary that `gradviz trace` and `gradviz debug` print at the end."""

from __future__ import annotations

import os
from collections import Counter

from rich.console import Group
from rich.text import Text

from gradviz.cli.common import line_of_error
from gradviz.query import Query
from gradviz.query.overview import LeafInfo, Overview, overview
from gradviz.sources.child_processes import SETTINGS
from gradviz.sources.ranks_here import rank_meta
from gradviz.sources.script import Outcome
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, if_long
from gradviz.tracefile.rank_files import rank_in
from gradviz.words.escape import clean
from gradviz.words.numbers import of_passes, plural

_NAMED = 6  # the most leaves that are listed by name


def summary(trace: Trace, outcome: Outcome) -> Group:
    """A summary of the recording, and commands to continue with."""
    trace = if_long(trace)
    known = overview(Query(trace))
    lines = [_counts(trace, known), *_leaves(known), *_other_ranks(trace)]
    if outcome.error is not None:
        lines.append(_error(known, trace))
    return Group(*lines, _next(trace, known))


def _other_ranks(trace: Trace) -> list[Text]:
    """A note that the other ranks are not recorded, if this process has started them itself."""
    meta = trace.meta
    are_recorded = SETTINGS in os.environ or rank_meta() or rank_in(trace.path) >= 0
    if are_recorded or "rank" not in meta or not trace.passes_begun:
        return []
    note = f"this process is rank {meta['rank']} of {meta.get('world', '?')}, and the others are not recorded"
    return [_line("ranks", f"{note}: gradviz trace --ranks SCRIPT records each", "yellow")]


def _line(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"gradviz: {label} ", "dim"), (clean(text), style))


def _counts(trace: Trace, found: Overview) -> Text:
    if not found.ops and not found.passes:
        return _line("recorded", f"no operation on a tensor → {trace.path}", "bold")
    passes = plural(found.passes, "backward pass", "backward passes")
    if found.kept:
        passes += f" of {trace.passes_begun:,} kept ({found.kept})"
    passes += of_passes(found.passes, found.detailed, found.shapes)
    counts = f"{plural(found.ops, 'operation')}, {passes}, {plural(found.events, 'event')}"
    return _line("recorded", f"{counts} → {trace.path}", "bold")


def _leaves(found: Overview) -> list[Text]:
    wanting = found.wanting
    if not found.ops and not wanting and not found.of_others:
        return []
    if not wanting and found.of_others:
        return [
            _line(
                "leaves",
                "no leaf requires grad in this process; those that it started are not recorded",
                "yellow",
            ),
            _line(
                "ranks", "gradviz trace --ranks SCRIPT records each; so does torchrun -m gradviz trace SCRIPT"
            ),
        ]
    if not wanting:
        when = " at the end" if found.passes else ", so nothing was differentiated"
        return [_line("leaves", f"no leaf requires grad{when}")]
    kinds = {
        "with a gradient": ([leaf for leaf in wanting if leaf.has_grad], "green"),
        "with a gradient that was cleared": ([leaf for leaf in wanting if leaf.is_cleared], "green"),
        "without a gradient": (
            [leaf for leaf in wanting if not (leaf.has_grad or leaf.is_cleared)],
            "yellow",
        ),
    }
    return [
        _line("leaves", f"{len(own)} {what}: {_names(own)}", style)
        for what, (own, style) in kinds.items()
        if own
    ]


def _names(leaves: list[LeafInfo]) -> str:
    counts = Counter(leaf.name for leaf in leaves)
    named = [f"{name} ×{count}" if count > 1 else name for name, count in counts.items()]
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _error(found: Overview, trace: Trace) -> Text:
    if found.error is None:
        return _line("error", "the script failed", "red")
    line = line_of_error(found.error, trace)
    place = f" at {line}" if line else ""
    node = ""
    if found.error.get("node_line"):
        node = f"; the node at fault was made at line {found.error['node_line']}"
    return _line("error", f"{found.error['type']}{place}{node}", "red")


def _next(trace: Trace, found: Overview) -> Text:
    name = as_argument(trace.path)
    if not found.ops:
        return _line("next", f"gradviz info {name}")
    return _line("next", f"gradviz graph {name}  ·  gradviz step {name}  ·  gradviz info {name}")
