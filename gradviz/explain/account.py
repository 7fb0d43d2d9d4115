"""The ledger in words: which parameters learn, and why the others do not, as a table and as a line for one tensor."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from gradviz.events.kinds import Kind
from gradviz.query.ledger import Account, Ledger, Link
from gradviz.query.missing_gradients import Lacks
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace
from gradviz.words.escape import clean, shortened_left
from gradviz.words.numbers import few_of, number, plural
from gradviz.words.words import Words

_MOST = 40  # rows of the table
_WIDEST = 40  # characters of a name
_COLUMNS = "parameter", "held by", "passes", "gradient", "change", "what became of it"
_NO_STEP = "no optimizer holds it", "its optimizer never steps"


class Line(NamedTuple):
    """A line of the ledger: a parameter, the optimizers that hold it, the number of passes that gave it a gradient, the
    norm of its gradient at the last step and of the change of that step (None: not known), and what became of it."""

    parameter: str
    optimizers: str
    passes: int
    gradient: float | None
    change: float | None
    learns: bool
    account: str


def lines(query: Query) -> Iterator[Line]:
    """The lines of the ledger, in the order in which the parameters were made."""
    words = Words(query.trace)
    return (line_of(words, leaf) for leaf in query.of(Ledger).leaves)


def line_of(words: Words, leaf: int) -> Line:
    """The line of one tensor."""
    ledger = words.query.of(Ledger)
    account = ledger.of(leaf)
    last = account.stretches[-1].last if account.stretches else None
    norms = () if last is None else (float(ledger.rows.norms[last]), float(ledger.rows.changes[last]))
    gradient, change = (norm if norm >= 0 else None for norm in norms or (-1.0, -1.0))
    classes = dict.fromkeys(ledger.training.optimizer_class(one) if one else "by hand" for one in account.optimizers)
    return Line(
        words.called(leaf),
        clean(", ".join(classes)),
        account.passes,
        gradient,
        change,
        account.link is Link.LEARNS,
        "; ".join(_told(words, account)),
    )


def account_text(trace: Trace, leaf: int) -> list[Text]:
    """The line of one tensor as a sentence, if it has one, and the other leaves of its name that got a gradient."""
    words = Words(trace)
    called = words.called(leaf)
    leaves = distinct(trace.table(Kind.ACCUMULATED)["tensor"]).tolist()
    namesakes = [f"t{one}" for one in leaves if one != leaf and words.called(one) == called]
    also = f"this is t{leaf}; {few_of(namesakes)} {'is' if len(namesakes) == 1 else 'are'} called {called}, too"
    same = [Text.assemble(("\nnames  ", "dim"), also)] if namesakes else []
    if leaf not in words.query.of(Ledger).leaves:
        return same
    line = line_of(words, leaf)
    held = f", held by {line.optimizers}" if line.optimizers else ""
    head = f"{line.parameter}{held}: {plural(line.passes, 'pass', 'passes')} gave it a gradient; "
    told = Text.assemble(("\nledger ", "dim"), head, (line.account, "green" if line.learns else "yellow"))
    return [told, *same]


def _told(words: Words, account: Account) -> Iterator[str]:
    """The history of a tensor: a part for each stretch of its steps, and why it has no gradient."""
    stretches = account.stretches
    steps = 1 + (stretches[-1].last - stretches[0].first if stretches else 0)
    for stretch in stretches[:2] + stretches[-1:] * (len(stretches) > 2):
        first, last = (place - stretches[0].first + 1 for place in (stretch.first, stretch.last))
        when = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        when = f"… {when}" if len(stretches) > 3 and stretch is stretches[-1] else when
        yield stretch.link.value if last - first + 1 == steps else f"{when}: {stretch.link.value}"
    if not stretches:
        yield _NO_STEP[bool(account.optimizers)]
    if account.lacking is not None:
        site = words.query.of(Lacks).place(account.lacking)
        where = f" ({file_name(site.place.file)}:{site.place.line})" if site is not None else ""
        yield f"{account.lacking.lack.value}{clean(where)}"


def ledger_table(query: Query) -> Table:
    """The ledger as a table: first the parameters that do not learn, then those that do."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in _COLUMNS:
        table.add_column(title, justify="right" if title in ("passes", "gradient", "change") else "left")
    ordered = sorted(lines(query), key=lambda line: line.learns)
    for line in ordered[:_MOST]:
        norms = ("" if norm is None else number(norm, 3) for norm in (line.gradient, line.change))
        table.add_row(
            Text(shortened_left(line.parameter, _WIDEST), "bold"),
            Text(line.optimizers),
            f"{line.passes:,}",
            *norms,
            Text(line.account, "green" if line.learns else "yellow"),
        )
    more = [line.learns for line in ordered[_MOST:]]
    if more:
        learning = f", {sum(more):,} of which learn" if any(more) else ""
        table.add_row(Text(f"… and {plural(len(more), 'more parameter')}{learning}", "dim"))
    return table
