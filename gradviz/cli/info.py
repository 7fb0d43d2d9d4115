"""`gradviz info`: shows what a trace contains."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import all_opened, fail, line_of_error, traces_argument, wide_console
from gradviz.events.kinds import Kind
from gradviz.explain.account import ledger_table, lines
from gradviz.query import Query
from gradviz.query.collective_calls import collectives
from gradviz.query.curves import losses, pass_summaries, reasons
from gradviz.query.overview import Holdings, LeafInfo, Overview, holdings, overview, saved_storages
from gradviz.query.passes import each_left_out
from gradviz.query.ranks import label_of, ranked_traces
from gradviz.query.replicas import Replicas
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace, if_long
from gradviz.tracefile.opening import are_of_one_run
from gradviz.tracefile.part import Part
from gradviz.words.escape import clean, json_text, shortened_left
from gradviz.words.html_table import text_table
from gradviz.words.numbers import brief, number, of_passes, plural, profile_line
from gradviz.words.saved_storages import saved_told

_MOST_LEAVES = 50
_MOST_WHOLES = 12  # parameters
_MOST_RANKS = 64  # the most ranks that are listed
_OF_LEAVES = "shape", "dtype", "requires_grad", ".grad", "made at"
_WHERE_KNOWN = "recorded", "loss", "profile"  # facts that are shown where a run has them
_FEWEST = 12  # the fewest characters of a name


@click.command()
@traces_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs; of several traces, a list.")
@click.option("--ledger", is_flag=True, help="Print which parameters learn, and why the others do not.")
@click.option("--saved", is_flag=True, help="Print what graphs saved for backward, of a run under trace --profile.")
def info(traces: tuple[Path, ...], as_json: bool, ledger: bool, saved: bool) -> None:
    """Show what TRACE contains: its run, operations, passes and leaves. Default: the newest *.gradviz here.

    Several traces are shown side by side. Of the ranks of one run, given as a folder or a pattern, each has a line,
    with the first thing that differs between them."""
    with all_opened(traces) as recorded:
        if ledger or saved:
            (_print_ledgers if ledger else _print_saved)(recorded, as_json)
            return
        queries = [Query(if_long(trace) if len(recorded) == 1 else trace) for trace in recorded]
        if as_json:
            overviews = [as_dict(trace, overview(query)) for trace, query in zip(recorded, queries, strict=True)]
            click.echo(json_text(overviews if len(overviews) > 1 else overviews[0]))
        elif are_of_one_run(recorded):
            _print_ranks({rank: Query(trace) for rank, trace in ranked_traces(recorded).items()})
        else:
            _print(queries)
            _print_differences(recorded, queries)


def _print_ledgers(traces: list[Trace], as_json: bool) -> None:
    if as_json:
        ledgers = [[line._asdict() for line in lines(Query(trace))] for trace in traces]
        click.echo(json_text(ledgers if len(ledgers) > 1 else ledgers[0]))
        return
    for trace in traces:
        if len(traces) > 1:
            wide_console().print(Text(f"\n{clean(label_of(trace))}", "bold"))
        wide_console().print(ledger_table(Query(trace)))


def _print_saved(traces: list[Trace], as_json: bool) -> None:
    found = [(query, *query.of(saved_storages)) for query in map(Query, traces)]
    if as_json:
        of_each = [{"pass": number, "storages": [one._asdict() for one in storages]} for _, number, storages in found]
        click.echo(json_text(of_each if len(of_each) > 1 else of_each[0]))
        return
    for query, _, storages in found:
        if not storages:
            fail(f"{query.trace.path.name} does not have what graphs saved: trace --profile records it, of PyTorch")
        for about, heads, rows in saved_told(query):
            wide_console().print(Text(about))
            click.echo(f"\n{text_table(heads, rows)}\n")


def as_dict(trace: Trace, found: Overview) -> dict[str, Any]:
    """The overview as plain data, for `--json`."""
    return {
        "engine": trace.meta.get("engine", ""),
        "script": trace.meta.get("script", ""),
        "events": found.events,
        "ops": found.ops,
        "nodes": found.nodes,
        "passes": found.passes,
        "leaves": [
            {
                "name": leaf.name,
                "shape": list(leaf.shape),
                "dtype": leaf.dtype,
                "requires_grad": leaf.requires_grad,
                "grad": leaf.has_grad,
                "file": leaf.file,
                "line": leaf.line,
            }
            for leaf in found.leaves
        ],
        "error": found.error,
        "stopped": found.stopped or None,
    }


def _print(queries: list[Query]) -> None:
    console = wide_console()
    facts = Table.grid(padding=(0, 2))
    traces, found = [query.trace for query in queries], [overview(query) for query in queries]
    columns = [
        {
            **_facts(query.trace, known),
            "recorded": ", ".join(f"{count:,} {why}" for why, count in Counter(reasons(numbers).values()).items()),
            "loss": _course(numbers),
            "profile": profile_line(query),
            "holds": _held(holdings(query), query.trace),
        }
        for query, known, numbers in zip(queries, found, map(_of_all_passes, queries), strict=True)
    ]
    if len(traces) > 1:
        columns = [{"": label_of(trace), **facts_of_run} for trace, facts_of_run in zip(traces, columns, strict=True)]
    for label in columns[0]:
        if label in _WHERE_KNOWN and not any(facts_of_run[label] for facts_of_run in columns):
            continue
        facts.add_row(Text(label, "dim"), *(Text(clean(facts_of_run[label])) for facts_of_run in columns))
    console.print(facts)
    for trace, known in zip(traces, found, strict=True):
        if known.leaves:
            if len(traces) > 1:
                console.print(Text(f"\n{clean(label_of(trace))}", "bold"))
            console.print(_leaf_table(known, console.width))


def _print_ranks(ranks: Mapping[int, Query]) -> None:
    """Print the ranks of one run, a line each, the leaves of the first rank, and the first difference between the
    ranks."""
    from gradviz.diagnose.between_ranks import BETWEEN_RANKS, findings_of  # this import loads all rules

    console = wide_console()
    (first, query), *_ = ranks.items()
    known = overview(query)
    table = Table("rank", *_of_rank(query), box=None, padding=(0, 2, 0, 0), header_style="dim")
    for rank, own in [*ranks.items()][:_MOST_RANKS]:
        table.add_row(Text(str(rank), "bold"), *(Text(clean(text)) for text in _of_rank(own).values()))
    console.print(Text(clean(_program(query.trace))), table)
    if len(ranks) > _MOST_RANKS:
        console.print(Text(f"… and {len(ranks) - _MOST_RANKS} more ranks", "dim"))
    if known.leaves:
        console.print(Text(f"\nrank {first}", "bold"))
        console.print(_leaf_table(known, console.width))
    replicas = Replicas(ranks)
    for line in _wholes(replicas):
        console.print(line)
    finding = next(findings_of(replicas, BETWEEN_RANKS), None)
    difference = "in nothing that check compares" if finding is None else f"{finding.rule}: {finding.message}"
    console.print(Text("\nthe ranks differ ", "dim" if finding is None else "yellow").append(difference, "default"))


def _wholes(ranks: Replicas) -> Iterator[Text]:
    """Lines about the whole values of parameters that lie on the ranks in parts."""
    for place, (name, (whole, gradient)) in enumerate(ranks.wholes.items()):
        if place == _MOST_WHOLES:
            yield Text(f"… and {len(ranks.wholes) - place} more", "dim")
            return
        grad = "None" if gradient is None else f"rms {number(gradient.rms, 4)}"
        text = f"rms {number(whole.rms, 4)}, .grad {grad} over all {len(ranks.ranks)} ranks"
        yield Text.assemble(("whole ", "dim") if place else ("\nwhole ", "dim"), (clean(name), "bold"), f" {text}")


def _of_rank(query: Query) -> dict[str, str]:
    """The columns of the line of a rank."""
    trace, known = query.trace, overview(query)
    return {
        "host": trace.meta.get("host", ""),
        "ended": _ending(known, trace),
        "passes": f"{known.passes:,}",
        "steps": f"{len(trace.table(Kind.STEPPED)):,}",
        "collectives": f"{len(query.of(collectives)):,}",
        "events": f"{known.events:,}",
        "trace": trace.path.name,
    }


def _print_differences(traces: list[Trace], queries: list[Query]) -> None:
    """Print the gradients that differ between ranks although some ranks all-reduce them."""
    for found in Replicas(dict(enumerate(queries))).differences if len(queries) > 1 else ():
        console = Console(highlight=False)
        values = [
            f"{label_of(trace)} {brief(gradient)}" + ("" if reduced else ", not all-reduced")
            for trace, gradient, reduced in zip(traces, found.gradients, found.averaged, strict=True)
        ]
        text = f"the gradient of {found.name} is not the same on all ranks at step {found.step}: {'; '.join(values)}"
        console.print(Text("\ndiffers ", "yellow").append(clean(text), "default"))


def _facts(trace: Trace, found: Overview) -> dict[str, str]:
    meta = trace.meta
    passes = f"{found.passes:,}"
    if found.kept:
        passes += f" of {trace.passes_begun:,}: {found.kept}"
    passes += of_passes(found.passes, found.detailed, found.shapes)
    left_out = clean(meta.get("left_out", ""))
    return {
        "run": (f"{meta['run']}: " if "run" in meta else "") + _program(trace),
        "ended": _ending(found, trace),
        **({"stopped": f"the recording, before the run: {found.stopped}"} if found.stopped else {}),
        "events": f"{found.events:,}",
        "operations": f"{found.ops:,}",
        "nodes": f"{found.nodes:,}",
        "passes": passes,
        **({"left out": f"{clean(how)}; --passes all records each"} if (how := each_left_out(trace)) else {}),
        "values": meta.get("values", "?")
        + (f" (at least {left_out} missing for lack of device memory)" if left_out else ""),
    }


def _of_all_passes(query: Query) -> Query:
    """A query over the whole trace, if it has numbers of every pass: they are few, and they are everywhere in it."""
    trace = query.trace
    return Query(trace.whole) if isinstance(trace, Part) and "passes" in trace.meta else query


def _course(query: Query) -> str:
    """The first and the last loss of a run that kept a few numbers of every pass, and the largest norm."""
    found = query.of(pass_summaries)
    if not found.has_loss.any() or not (curves := losses(query)):
        return ""
    curve = max(curves, key=lambda curve: len(curve.at))
    first, last = (f"{number(curve.values[at])} in pass {curve.at[at]}" for at in (0, -1))
    text = f"{first}, {last}"
    norms = np.where(found.has_norm & np.isfinite(found.norms), found.norms, -1)
    if norms.max() < 0:
        return text
    at = int(norms.argmax())
    read = "" if found.has_norm.all() else f", of {int(found.has_norm.sum()):,} read,"
    return f"{text}; largest norm of all gradients{read} {number(norms[at])} in pass {found.passes[at]}"


def _program(trace: Trace) -> str:
    """The program that ran, its engine, and the versions."""
    meta = trace.meta
    programs = {"gradviz": "gradviz", "Python": "python", "NumPy": "numpy", "PyTorch": "torch"}
    versions = ", ".join(f"{name} {meta[key]}" for name, key in programs.items() if key in meta)
    return f"{meta.get('script', '?')} on the {meta.get('engine', '?')} engine ({versions})"


def _held(found: Holdings, trace: Trace) -> str:
    """The private contents of a trace, for a user who wants to share it: `source of 2 files, elements of 14 tensors,
    1 message`."""
    parts = [f"source of {plural(found.files, 'file')}" if found.files else "no source"]
    if found.tensors is None:
        parts.append("elements of small tensors")
    elif found.tensors:
        parts.append(f"elements of {plural(found.tensors, 'tensor')}")
    if found.messages:
        parts.append(plural(found.messages, "message"))
    if found.printed:
        parts.append(plural(found.printed, "printed line"))
    return ", ".join(parts) + (" (redacted)" if trace.meta.get("redacted") else "")


def _ending(found: Overview, trace: Trace) -> str:
    if found.error is None:
        return trace.meta.get("ended", "") or "not yet: it is being recorded"
    line = line_of_error(found.error, trace)
    kind, message = found.error["type"], found.error["message"]
    said = f": {message}" if message != kind else ""  # an error without a message has its kind there
    used = f"; it used {found.error['operands']}" if found.error.get("operands") else ""
    return f"{kind}{f' ({line})' if line else ''}{said}{used}"


def _grad(leaf: LeafInfo) -> tuple[str, str]:
    """The state of `.grad` at the end, and its style."""
    if leaf.has_grad:
        return "yes", "green"
    if leaf.is_cleared:
        return "cleared", "green"
    return "None", "yellow" if leaf.requires_grad else "dim"


def _leaf_table(found: Overview, width: int) -> Table:
    """The table of leaves. If the table is wider than `width`, long names are cut at the left."""
    table = Table("leaf", *_OF_LEAVES, box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown = found.leaves[:_MOST_LEAVES]
    rows = [_of_leaf(leaf) for leaf in shown]
    columns = zip(_OF_LEAVES, *([text.plain for text in row] for row in rows), strict=True)
    room = width - 2 - sum(2 + max(map(len, column)) for column in columns)
    for leaf, row in zip(shown, rows, strict=True):
        name = shortened_left(clean(leaf.name), max(room, _FEWEST))
        table.add_row(Text(name, "bold" if leaf.requires_grad else ""), *row)
    if len(found.leaves) > len(shown):
        table.add_row(Text(f"… and {len(found.leaves) - len(shown)} more", "dim"))
    return table


def _of_leaf(leaf: LeafInfo) -> list[Text]:
    """The columns of a leaf after its name."""
    place = clean(f"{file_name(leaf.file)}:{leaf.line}") if leaf.file else "before the recording"
    return [
        Text(str(leaf.shape)),
        Text(leaf.dtype),
        Text(str(leaf.requires_grad)),
        Text(*_grad(leaf)),
        Text(place, "dim"),
    ]
