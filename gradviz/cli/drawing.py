"""Draws a trace as a picture or a page, for all commands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gradviz.cli.common import patience
from gradviz.cli.findings import findings_of
from gradviz.diagnose import Finding
from gradviz.diagnose.marked import faults_of, mark, pass_of_first
from gradviz.diagnose.rank_reports import check_ranks
from gradviz.diagnose.settings_file import settings_at
from gradviz.errors import GradvizError
from gradviz.graph import slices
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.joined import beside, of_first_rank, over_ranks, passes_beside
from gradviz.graph.model import LEAF, TENSOR, Graph, no_collection
from gradviz.page import Build, html
from gradviz.pictures.picture import counted
from gradviz.pictures.render import PAGE, check_path, save, write
from gradviz.pictures.textbook import textbook
from gradviz.query import Query
from gradviz.query.passes import left_out
from gradviz.query.ranks import label_of, ranked_traces, same_pass
from gradviz.replaying import MOST_EVENTS, fill_in_where_bad, mark_edits, with_cures
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, if_long
from gradviz.tracefile.opening import are_of_one_run
from gradviz.words.numbers import called_ranks, plural
from gradviz.words.words import Words

_UNCHECKED = "cuts were not checked: a gradient may be due at some (gradviz check)"
_PLAIN = (".json", ".mmd")  # formats without marks


class Choice(NamedTuple):
    """The options of `gradviz graph`: what to draw, and how."""

    number: int | None = None
    show: str = "both"
    whole: bool = False
    depth: int | None = None
    unfold: tuple[str, ...] = ()
    rolled: bool | None = None
    around: str | None = None
    hops: int = slices.HOPS
    start: str | None = None
    end: str | None = None
    only_grad: bool = False
    theme: str = "light"
    rankdir: str = ""  # "" for what suits the picture
    findings: bool = True
    style: str = "graph"
    names: tuple[str, ...] = ()
    beside: tuple[int, ...] = ()  # other passes that are drawn beside it
    edits: tuple[str, ...] = ()  # edits such as `x=4`: values before and after are drawn


def draw(traces: list[Trace], path: Path, choice: Choice) -> str:
    """Draw a trace, or several side by side, into a file, in the format of its ending. Returns one line for the user
    about its contents.

    Raises GradvizError if that is impossible."""
    check_path(path)
    if choice.beside:
        _check_passes(traces, path, choice)
    if choice.edits:
        _check_edits(traces, path, choice)
    is_rank_page = path.suffix.lower() == PAGE and are_of_one_run(traces)
    with no_collection(), patience(f"reading {traces[0].path.name}") as doing:
        findings = [
            findings_of(trace, settings_at(Path.cwd()))
            if choice.findings and path.suffix.lower() not in _PLAIN and not is_rank_page
            else None
            for trace in traces
        ]
        if path.suffix.lower() == PAGE:
            if choice.names:
                raise GradvizError("--names is for pictures: a page has the names of the program")
            doing(f"making {path.name}")
            if is_rank_page:
                return _rank_page(traces, path, choice)
            if len(traces) > 1:
                raise GradvizError(f"a page shows one run: draw several as .svg, .png, .pdf, not {path.suffix}")
            query = Query(traces[0])
            return write_page(
                traces[0],
                lambda number: _sliced(query, number, choice, True, findings[0]),
                choice.number,
                path,
                with_cures(findings[0] or [], traces[0]),
                query,
                lambda text: doing(f"making {path.name}: {text}"),
            )
        for asked in (choice.number, *choice.beside):
            if asked is not None and not choice.whole and (told := left_out(traces[0], asked)):
                raise GradvizError(told)
        if choice.style == "textbook":
            graph = build(Query(traces[0]), choice.number)
            note = save(textbook(Words(traces[0]), graph, choice.names, choice.rankdir), path, choice.theme)
            return f"wrote {path}: {graph.run()}, as in a textbook" + (note and f"; {note}")
        is_json = path.suffix.lower() == ".json"
        queries = [Query(_read(trace, choice)) for trace in traces]
        graph = _sliced(queries[0], choice.number, choice, not is_json, findings[0])
        if choice.edits:
            mark_edits(queries[0], graph, choice.edits)
        if are_of_one_run(traces):
            graph = _of_ranks(graph, dict(zip(ranked_traces(traces), queries, strict=True)), choice, findings)
        elif len(traces) > 1:  # the same pass of all
            number = graph.pass_number
            graphs = [
                _sliced(query, number, choice, not is_json, known)
                for query, known in zip(queries[1:], findings[1:], strict=True)
            ]
            graph = beside([graph, *graphs], [label_of(trace) for trace in traces])
        elif choice.beside:
            others = [_sliced(queries[0], n, choice, not is_json, findings[0]) for n in choice.beside]
            graph = passes_beside([graph, *others])
        _rename(graph, choice.names)
        is_folded = choice.depth is not None or choice.unfold or choice.rolled
        if is_folded or not (choice.whole or is_json):
            doing(f"folding {plural(len(graph.nodes), 'node')}")
            graph = folded(graph, choice.depth, choice.unfold, choice.rolled)
        doing(f"drawing {plural(len(graph.nodes), 'node')} into {path.name}")
        note = save(graph, path, choice.theme, choice.rankdir or "TB")
    return _told(graph, path) + (note and f"; {note}")


def _check_passes(traces: list[Trace], path: Path, choice: Choice) -> None:
    """Raise GradvizError if several passes cannot be drawn side by side."""
    if len(traces) > 1:
        raise GradvizError("several --pass are for one trace: give one --pass, which is drawn of each of these")
    if path.suffix.lower() == PAGE:
        raise GradvizError("a page has the other passes, too ([ and ] go to them): give one --pass")
    if choice.style == "textbook":
        raise GradvizError("--style textbook draws one pass: give one --pass")


def _check_edits(traces: list[Trace], path: Path, choice: Choice) -> None:
    """Raise GradvizError if values before and after cannot be drawn."""
    if len(traces) > 1 or choice.beside or choice.whole:
        raise GradvizError("--what-if draws one pass of one trace")
    if path.suffix.lower() in (PAGE, *_PLAIN) or choice.style == "textbook":
        raise GradvizError("--what-if is for pictures: draw it as .svg, .png, .pdf or .dot")


def _of_ranks(
    first: Graph, queries: dict[int, Query], choice: Choice, found: list[list[tuple[int, Finding]] | None]
) -> Graph:
    """The graph of the ranks of one run: the same pass on all ranks that have it. The first rank's graph is built
    again, since it has to show the pass alone, as the others do."""
    graphs, without = {}, []
    of_first = next(iter(queries.values())).trace
    for (rank, query), known in zip(queries.items(), found, strict=True):
        number = first.pass_number
        if number is not None and (number := same_pass(of_first, number, query.trace)) is None:
            without.append(rank)
            continue
        graphs[rank] = _sliced(query, number, choice, True, known)
    graph = over_ranks(graphs, {rank: queries[rank] for rank in graphs})
    graph.why = first.why
    if without:
        graph.notes.append(f"no pass {first.pass_number} on {called_ranks(without)}")
    return graph


def _rename(graph: Graph, names: tuple[str, ...]) -> None:
    """Give the tensors of a graph other names, in the order of their making."""
    tensors = sorted({node.number for node in graph.nodes.values() if node.kind in (LEAF, TENSOR)})
    called = dict(zip(tensors, names, strict=False))
    for node in graph.nodes.values():
        if node.kind in (LEAF, TENSOR) and node.number in called:
            node.name = node.called = called[node.number]


def _read(trace: Trace, choice: Choice) -> Trace:
    """The trace to draw: only a part of a long run, unless the whole is wanted."""
    part = trace if choice.whole else if_long(trace)
    return part if part.pass_numbers else trace


def _sliced(
    query: Query, number: int | None, choice: Choice, values: bool, found: list[tuple[int, Finding]] | None
) -> Graph:
    """The chosen part of one pass, or of the whole run, with its findings marked; they are None if the run was not
    checked."""
    found_in = pass_of_first(faults_of(found or []), query.trace)
    graph = build(query, number, choice.show, choice.whole, values=values, found_in=found_in)
    mark(graph, query.trace, found or [])
    if choice.only_grad:
        graph = slices.only_grad(graph)
    if choice.start is not None and choice.end is not None:
        graph = slices.between(graph, choice.start, choice.end)
    if choice.around is not None:
        graph = slices.around(graph, choice.around, choice.hops)
    if found is None and values and any(edge.cut for edge in graph.edges):
        graph.notes.append(_UNCHECKED)
    return graph


def _told(graph: Graph, path: Path) -> str:
    """One line about the written file and its contents."""
    if not graph.nodes:
        return f"wrote {path}, which is empty: {graph.run()} has nothing to draw"
    edges = plural(len(graph.edges), "edge")
    more = f"; {plural(graph.left_out, 'operation')} outside it (--all draws them)" if graph.left_out else ""
    notes = "".join(f"; {note}" for note in graph.notes)
    return f"wrote {path}: {graph.run()}, {counted(graph)}, {edges}{notes}{more}"


def write_page(
    trace: Trace,
    build: Build,
    number: int | None,
    path: Path,
    found: Sequence[tuple[int, Finding]] = (),
    query: Query | None = None,
    doing: Callable[[str], None] = lambda text: None,
) -> str:
    """Write the page of a trace, with its findings by their numbers; `query` is the query that `build` uses, if any;
    `doing` is told how far it is. Returns one line for the user. Raises DrawError."""
    write(path, html(trace, build, number, findings=found, query=query, doing=doing).encode())
    return f"wrote {path}"


_MOST_RANKS = 8  # the most ranks whose graphs are built for each pass of the page


def _rank_page(traces: list[Trace], path: Path, choice: Choice) -> str:
    """Write the page of the ranks of one run: of the rank with the first finding, otherwise of the first rank. Returns
    one line for the user."""
    ranks = ranked_traces(traces)
    found = _findings(ranks) if choice.findings else []
    shown = next((finding.ranks[0] for _, finding in faults_of(found) if finding.ranks), min(ranks))
    own = [one for one in found if one[1].ranks[:1] == (shown,)] if choice.findings else None
    named = [rank for _, finding in found if len(finding.ranks) < len(ranks) for rank in finding.ranks]
    queries = {rank: Query(ranks[rank]) for rank in [*dict.fromkeys([shown, *named, *ranks])][:_MOST_RANKS]}

    def graph_of(number: int | None) -> Graph:
        first = _sliced(queries[shown], number, choice, True, own)
        graph = of_first_rank(_of_ranks(first, queries, choice, [own, *([] for _ in [*queries][1:])]))
        values = f"values of rank {shown}"  # a page says it in its title, too
        graph.notes = [note for note in graph.notes if note != values] + [_about(shown, ranks, queries)]
        return graph

    listed = [(place, _on_page(finding, shown, len(ranks))) for place, finding in found]
    message = write_page(ranks[shown], graph_of, choice.number, path, listed, queries[shown])
    return f"{message}: {_about(shown, ranks, queries)}"


def _findings(ranks: Mapping[int, Trace]) -> list[tuple[int, Finding]]:
    """The findings of the ranks and between them, with their numbers; none of a run that is too long to be checked in
    passing."""
    settings = settings_at(Path.cwd())
    if sum(trace.count for trace in ranks.values()) > MOST_EVENTS:
        return []
    for trace in ranks.values():
        fill_in_where_bad(trace)
    return list(enumerate(check_ranks(ranks, settings=settings), 1))


def _on_page(finding: Finding, shown: int, count: int) -> Finding:
    """A finding as the page of a rank lists it. The events and tensors of another rank lead nowhere on it."""
    where = "" if len(finding.ranks) in (0, count) else f"on {called_ranks(finding.ranks)}: "
    finding = replace(finding, message=where + finding.message)
    return finding if finding.ranks[:1] == (shown,) else replace(finding, events=(), node=0, tensors=())


def _about(shown: int, ranks: Mapping[int, Trace], queries: Mapping[int, Query]) -> str:
    """A line that says which ranks a page is about, and how to see another."""
    other = next(rank for rank in ranks if rank != shown)
    command = f"gradviz graph {as_argument(ranks[other].path.name)} -o rank{other}.html"
    compared = "" if len(queries) == len(ranks) else f", compared with {called_ranks(sorted({*queries} - {shown}))}"
    return f"this is rank {shown}{compared}; another rank: {command}"
