"""Sites in the source, and the source text at them."""

import ast
from collections import Counter
from functools import cached_property
from itertools import pairwise

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.site import Place
from gradviz.query.sorted_tables import Lookup
from gradviz.tracefile import Site
from gradviz.tracefile.chunks import SCOPE


class Places(Lookup):
    """Look-ups about the sites of one trace."""

    def site(self, number: int) -> Site | None:
        """The site with this number, or its nearest caller whose source was kept. The site itself if the trace was
        recorded without source."""
        site = self.trace.sites.get(number)
        if not self.trace.has_sources:
            return site
        while site is not None and not self.trace.source(site.place.file):
            parent = self.trace.sites.get(site.parent)
            if parent is None or parent.number >= site.number:
                break
            site = parent
        return site

    def at(self, event: int) -> Site | None:
        """The site of an event, as `site` gives it."""
        return self.site(int(self.trace.events["site"][event]))

    def line(self, number: int) -> tuple[str, int]:
        """The file and the line of a site; ("", 0) if there is no site."""
        site = self.site(number)
        return ("", 0) if site is None else (site.place.file, site.place.line)

    def is_in_library(self, event: int) -> bool:
        """Whether an event happened in a library's own code."""
        site = self.at(event)
        return site is not None and site.library is not None

    def callers(self, number: int) -> list[Site]:
        """A site and its callers, innermost first."""
        callers = []
        site = self.trace.sites.get(number)
        while site is not None:
            callers.append(site)
            site = self.trace.sites.get(site.parent) if site.parent < site.number else None
        return callers

    def named_at(self, number: int) -> int:
        """The site at which a value gets its name. If a `return` passes the value to a caller that assigns it to a
        variable, alone or as one of several, it is the site of the call."""
        callers = self.callers(number)
        for site, caller in pairwise(callers):
            is_given = site.names and set(caller.names).issuperset(site.names)
            if not is_given or not self.line_text(site.number).startswith("return "):
                return site.number
        return callers[-1].number if callers else number

    def line_text(self, number: int) -> str:
        """The source line of a site, stripped; empty if it was not kept."""
        site = self.trace.sites.get(number)
        if site is None:
            return ""
        lines = self.trace.source(site.place.file)
        return lines[site.place.line - 1].strip() if 0 < site.place.line <= len(lines) else ""

    def expression(self, number: int) -> str:
        """The source of the expression at a site; empty if it is unknown or spans several lines."""
        site = self.trace.sites.get(number)
        place = site.place if site is not None else None
        if place is None or place.col < 0 or place.line != place.end_line:
            return ""
        lines = self.trace.source(place.file)
        return lines[place.line - 1][place.col : place.end_col] if 0 < place.line <= len(lines) else ""

    def whole_expression(self, number: int) -> str:
        """The source of the expression at a site, on one line even if it spans several; empty if it is unknown."""
        site = self.trace.sites.get(number)
        place = site.place if site is not None else None
        if place is None or place.col < 0 or place.line == place.end_line:
            return self.expression(number)
        lines = list(self.trace.source(place.file)[place.line - 1 : place.end_line])
        if len(lines) != place.end_line - place.line + 1:
            return ""
        lines[-1] = lines[-1][: place.end_col]
        lines[0] = lines[0][place.col :]
        try:
            return ast.unparse(ast.parse("(" + "\n".join(lines) + "\n)", mode="eval"))
        except SyntaxError:
            return ""

    def tree(self, number: int, whole: bool = False) -> ast.expr | None:
        """The expression at a site, the `whole` if it spans several lines; None if it is unknown, or is no Python."""
        try:
            text = self.whole_expression(number) if whole else self.expression(number)
            return ast.parse(text, mode="eval").body
        except SyntaxError:
            return None

    def of_line(self, file: str, line: int, end: int = 0) -> Site | None:
        """A line of a file at which nothing was recorded, as a site, or the lines up to `end`; None if its source was
        not kept, although the source of other files was."""
        lines = self.trace.source(file)
        if file and line > 0 and not self.trace.has_sources:
            return Site(0, 0, Place(file, line, -1, line, -1, "", (), False), (), None)
        if not 0 < line <= len(lines):
            return None
        text, end = lines[line - 1].split("#")[0].rstrip(), max(line, min(end, len(lines)))
        last = lines[end - 1].split("#")[0].rstrip()
        place = Place(file, line, len(text) - len(text.lstrip()), end, len(last), "", (), False)
        return Site(0, 0, place, (), None)

    @cached_property
    def with_names(self) -> set[int]:
        """The sites whose value is assigned to a name."""
        return {number for number, site in self.trace.sites.items() if site.names}

    @cached_property
    def of_one_op(self) -> set[int]:
        """The sites at which only one op runs; without sites of an expression that runs several lines of a library."""
        pairs = self.trace.site_ops.pairs
        sites, first, counts = np.unique(pairs >> 32, return_index=True, return_counts=True)
        of_one = (counts == 1) & (pairs[first] & SCOPE != SCOPE)
        through = {number: self._through_library(number) for number in sites.tolist()}
        lines = Counter(through.values())
        return {number for number in sites[of_one].tolist() if through[number] is None or lines[through[number]] == 1}

    def _through_library(self, number: int) -> tuple[int, Place] | None:
        """The caller and the expression of a site on a library's line; None for any other site."""
        site = self.trace.sites.get(number)
        return (site.parent, site.place) if site is not None and site.library is not None else None

    def ops_at(self, number: int) -> set[str]:
        """The names of the ops that ran at a site; an empty text if a scope was entered there, too."""
        pairs = self.trace.site_ops.pairs
        ops = pairs[pairs >> 32 == number] & 0xFFFFFFFF
        return {"" if op == SCOPE else self.trace.text(op) for op in ops.tolist()}

    @cached_property
    def of_events(self) -> np.ndarray:
        """The site of each event; for a node, the site where the node was made."""
        sites = self.trace.events["site"].astype(np.int32)
        made = self.trace.table(Kind.NODE)
        order = np.argsort(made["node"], kind="stable")
        nodes, places = made["node"][order], made.sites[order]
        if not len(nodes):
            return sites
        for kind in (Kind.RECEIVED, Kind.PRODUCED):
            table = self.trace.table(kind)
            at = np.minimum(np.searchsorted(nodes, table["node"]), len(nodes) - 1)
            known = nodes[at] == table["node"]
            sites[table.events[known]] = places[at[known]]
        return sites
