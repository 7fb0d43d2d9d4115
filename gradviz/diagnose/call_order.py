"""The cure for calls in the wrong order, in the program's own words."""

from __future__ import annotations

from gradviz.diagnose.case import Case

_LONGEST = 80


def in_order(case: Case, *sites: int) -> str:
    """The calls at some sites, in the order in which they should be made: as one line that can be typed, if one
    function makes them all, otherwise each with its line."""
    texts = [case.words.expression(site, _LONGEST) for site in sites]
    places = [case.query.places.site(site) for site in sites]
    functions = {(known.place.file, known.place.function) for known in places if known is not None}
    if all(texts) and len(functions) == 1:
        return f"{'; '.join(texts)}  # in this order"
    calls = (
        f"{text or 'the call'}{case.words.at_line(site)}" for text, site in zip(texts, sites, strict=True)
    )
    return f"make these calls in this order: {'; '.join(calls)}"
