"""The steps of a path in words: the place, the expression, the local derivative, the gradient that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradviz.events.kinds import Kind, NodeMade, PassBegan, Produced
from gradviz.query.chain_step import chain_step
from gradviz.query.gradient_paths import Arrival, Step
from gradviz.query.passes import Deliveries
from gradviz.system.paths import file_name, is_cell
from gradviz.tracefile import Site
from gradviz.words.chain import formula_of, local, over
from gradviz.words.numbers import brief
from gradviz.words.words import Words

_LONGEST = 32  # characters of an expression


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a path. `expression` at `site` made `node` (0: the gradient of the root, from outside). `local` is the
    local derivative for this edge, as text; `gradient` is the gradient that goes on. It meets `others` more gradients.
    `exact` is True if the share of each is known, `hooked` if a hook changed their sum."""

    node: int
    grad_fn: str
    site: Site | None
    expression: str
    local: str
    gradient: str
    others: int
    exact: bool
    hooked: bool


def place_told(site: Site | None, with_file: bool) -> str:
    """The line of a place, and its file if there are several."""
    if site is None:
        return "?"
    return f"{file_name(site.place.file)}:{site.place.line}" if with_file else f"line {site.place.line}"


def files_are_told(sites: Iterable[Site | None]) -> bool:
    """Whether places are told with their files: there are several, or cells of a notebook."""
    files = {site.place.file for site in sites if site is not None}
    return len(files) > 1 or any(map(is_cell, files))


class Hops:
    """The steps of one pass in words."""

    def __init__(self, words: Words, flow: Deliveries) -> None:
        self.words, self.query, self.flow = words, words.query, flow
        self.of = lru_cache(maxsize=None)(self._of)
        self._ran = dict(zip(*(column.tolist() for column in flow.received), strict=True))

    def _of(self, step: Step) -> Hop:
        arrival = step.arrival
        value = self.query.memory.value(arrival.gradient, arrival.event)
        made = self.query.nodes.event(arrival.source)
        site, expression = self.place_of(arrival.source)
        return Hop(
            arrival.source,
            self.words.node_name(arrival.source) if arrival.source else "",
            site,
            expression,
            "" if made is None else self._local(made, arrival),
            brief(value),
            step.others,
            step.exact,
            step.hooked,
        )

    def place_of(self, node: int) -> tuple[Site | None, str]:
        """The site and the expression of the operation of a node; for node 0, those of the call that began the pass."""
        made = self.query.nodes.event(node)
        return self._root() if made is None and not node else self._made(made)

    def _root(self) -> tuple[Site | None, str]:
        """The site and the text of the call that began the pass, from which the gradient of a root comes."""
        began = self.query.trace.event(self.flow.backward_pass.first)
        assert isinstance(began, PassBegan)
        return self.query.places.site(began.site), f"{began.how}()"

    def _made(self, made: NodeMade | None) -> tuple[Site | None, str]:
        site = None if made is None else self.query.places.site(made.site)
        return site, "" if made is None else self.words.expression_of(made, _LONGEST)

    def _local(self, made: NodeMade, arrival: Arrival) -> str:
        """The text of a local derivative: its formula, its number if the gradients determine it, and the sum over
        broadcast dimensions."""
        if arrival.position >= len(made.edges):
            return ""
        trace, ran = self.query.trace, self._ran.get(made.node)
        received = None if ran is None else trace.table(Kind.RECEIVED).object(ran)
        produced = trace.event(arrival.event)
        if not isinstance(produced, Produced):
            return ""
        step = chain_step(self.query, made, arrival.position, received, produced)
        derivative = formula_of(self.words, step) if step.is_whole else local(self.words, step)
        return ", ".join(part for part in (derivative, over(self.words, step)) if part)
