"""The parts of the samples, as text for a terminal and as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from gradviz.replay.changed_pass_text import table
from gradviz.replay.samples import MOST, Samples, Term
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import number, plural
from gradviz.words.words import Words

_SHOWN = 10


def samples_text(words: Words, found: Samples) -> Group:
    """The worst samples of a batch."""
    count = plural(found.count, "part")
    head = (
        f"pass {found.plan.number}: the loss is a sum of {count}, one for each index of the first dimension"
    )
    terms = table("index", "part of the loss", "norm of its gradients", "most of it in")
    for term in found.terms[:_SHOWN]:
        norm = number(term.norm, 4) if term.norms else "not computed"
        terms.add_row(str(term.index), number(term.loss, 6), norm, Text(_largest(words, term)))
    parts: list[RenderableType] = [Text(head, "bold"), Text(), terms]
    if found.count > _SHOWN:
        parts += [Text(), Text(f"and {found.count - _SHOWN:,} more")]
    if found.count > MOST:
        parts.append(Text(f"gradients were computed of the {MOST} terms with the largest part of the loss"))
    if found.mixing is not None:
        where = words.at_line(found.mixing.site)
        parts.append(
            Text(
                f"samples depend on one another, by {clean(found.mixing.function)}{where}: a part is that of a term"
            )
        )
    return Group(*parts)


def _largest(words: Words, term: Term) -> str:
    """The leaf whose gradient has the largest part, or a NaN."""
    if not term.norms:
        return ""
    leaf = max(term.norms, key=lambda leaf: np.inf if not np.isfinite(term.norms[leaf]) else term.norms[leaf])
    return clean(words.called(leaf))


def samples_json(words: Words, found: Samples) -> dict[str, Any]:
    """The terms as plain data, all of them."""
    return {
        "pass": found.plan.number,
        "samples": [
            {
                "index": term.index,
                "loss": json_number(term.loss),
                "norm": json_number(term.norm) if term.norms else None,
                "norms": {words.called(leaf): json_number(norm) for leaf, norm in term.norms.items()},
            }
            for term in found.terms
        ],
        "mixing": None if found.mixing is None else found.mixing.function,
    }
