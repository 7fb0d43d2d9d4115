"""From a packed row to an event: the inverse of recorder.py, kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.events import kinds as k
from gradviz.events.kinds import Kind


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    if len(flat) == 2:  # the usual number
        return (tuple(flat),)  # type: ignore[return-value]
    return tuple(zip(flat[::2], flat[1::2], strict=True)) if flat else ()


def _op(row: Any, flags: int, text: Any, links: tuple[int, ...], **place: int) -> k.OpRan:
    n_inputs, n_outputs, n_edges = links[:3]
    inputs_end = 3 + n_inputs
    outputs_end = inputs_end + n_outputs
    edges_end = outputs_end + n_edges
    return k.OpRan(
        op=text(row["name"]),
        inputs=links[3:inputs_end],
        outputs=links[inputs_end:outputs_end],
        args=text(row["note"]),
        flags=flags,
        node=int(row["subject"]),
        grad_fn=text(row["object"]),
        edges=_pairs(links[outputs_end:edges_end]),
        saved=_pairs(links[edges_end:]),
        **place,
    )


def decode_ops(
    indices: np.ndarray, rows: np.ndarray, links: np.ndarray, counts: np.ndarray, text: Callable[[int], str]
) -> list[k.OpRan]:
    """The OP events of many rows, whose links come one after another; `text` looks a string up."""
    texts: dict[int, str] = {}
    flat = links.tolist()
    columns = (rows[name].tolist() for name in ("head", "site", "subject", "object", "name", "note"))
    found = []
    start = 0
    for index, count, head, site, node, grad_fn, name, note in zip(
        indices.tolist(), counts.tolist(), *columns, strict=True
    ):
        for number in (grad_fn, name, note):
            if number not in texts:
                texts[number] = text(number)
        n_inputs, n_outputs, n_edges = flat[start : start + 3]
        outputs = start + 3 + n_inputs
        edges = outputs + n_outputs
        saved, end = edges + n_edges, start + count
        found.append(
            k.OpRan(
                index=index,
                thread=head >> 16,
                site=site,
                op=texts[name],
                inputs=tuple(flat[start + 3 : outputs]),
                outputs=tuple(flat[outputs:edges]),
                args=texts[note],
                flags=head >> 8 & 0xFF,
                node=node,
                grad_fn=texts[grad_fn],
                edges=_pairs(flat[edges:saved]),
                saved=_pairs(flat[saved:end]),
            )
        )
        start = end
    return found


def _pass_began(row: Any, flags: int, text: Any, links: tuple[int, ...], **place: int) -> k.PassBegan:
    n_roots, n_inputs = links[:2]
    parts = [links[2 + i * n_roots : 2 + (i + 1) * n_roots] for i in range(3)]
    return k.PassBegan(
        number=int(row["subject"]),
        how=text(row["name"]),
        roots=parts[0],
        root_tensors=parts[1],
        gradients=parts[2],
        inputs=links[len(links) - n_inputs :],
        retain_graph=bool(flags & 1),
        create_graph=bool(flags & 2),
        **place,
    )


def _produced(row: Any, flags: int, text: Any, links: tuple[int, ...], **place: int) -> k.Produced:
    half = len(links) // 2
    return k.Produced(node=int(row["subject"]), targets=links[:half], gradients=links[half:], **place)


DECODERS: dict[int, Callable[..., k.Event]] = {
    Kind.TENSOR: lambda row, flags, text, links, **place: k.TensorMade(
        tensor=int(row["subject"]), how=text(row["name"]), flags=flags, base=int(row["object"]), **place
    ),
    Kind.OP: _op,
    Kind.MUTATED: lambda row, flags, text, links, **place: k.Mutated(
        tensor=int(row["subject"]),
        how=text(row["name"]),
        version=int(row["object"]),
        source=links[0],
        flags=flags,
        **place,
    ),
    Kind.REQUIRES_GRAD_CHANGED: lambda row, flags, text, links, **place: k.RequiresGradChanged(
        tensor=int(row["subject"]), flags=flags, **place
    ),
    Kind.GRAD_ASSIGNED: lambda row, flags, text, links, **place: k.GradAssigned(
        tensor=int(row["subject"]), grad=int(row["object"]), **place
    ),
    Kind.NAMED: lambda row, flags, text, links, **place: k.Named(
        tensor=int(row["subject"]), name=text(row["name"]), **place
    ),
    Kind.SCOPE_ENTERED: lambda row, flags, text, links, **place: k.ScopeEntered(
        scope=int(row["subject"]), kind=text(row["note"]), name=text(row["name"]), **place
    ),
    Kind.SCOPE_LEFT: lambda row, flags, text, links, **place: k.ScopeLeft(scope=int(row["subject"]), **place),
    Kind.PASS_BEGAN: _pass_began,
    Kind.RECEIVED: lambda row, flags, text, links, **place: k.Received(
        node=int(row["subject"]), grad_fn=text(row["name"]), gradients=links, **place
    ),
    Kind.PRODUCED: _produced,
    Kind.ACCUMULATED: lambda row, flags, text, links, **place: k.Accumulated(
        tensor=int(row["subject"]),
        node=links[0],
        gradient=links[1],
        grad=int(row["object"]),
        version=int(row["note"]),
        **place,
    ),
    Kind.RETAINED: lambda row, flags, text, links, **place: k.Retained(
        tensor=int(row["subject"]), node=links[0], grad=int(row["object"]), **place
    ),
    Kind.HOOKED: lambda row, flags, text, links, **place: k.Hooked(
        tensor=int(row["subject"]),
        node=int(row["object"]),
        hook=text(row["name"]),
        before=links[0],
        after=links[1],
        **place,
    ),
    Kind.PASS_ENDED: lambda row, flags, text, links, **place: k.PassEnded(
        number=int(row["subject"]), **place
    ),
    Kind.TANGENT: lambda row, flags, text, links, **place: k.TangentPushed(
        tensor=int(row["subject"]), tangent=int(row["object"]), how=text(row["name"]), **place
    ),
    Kind.STEPPED: lambda row, flags, text, links, **place: k.Stepped(
        optimizer=text(row["name"]), args=text(row["note"]), parameters=links, **place
    ),
    Kind.ERROR: lambda row, flags, text, links, **place: k.ErrorRaised(
        type=text(row["name"]), message=text(row["note"]), node=int(row["subject"]), **place
    ),
}


def decode(index: int, row: Any, links: tuple[int, ...], text: Callable[[int], str]) -> k.Event:
    """The event that a row of `schema.EVENT` and its links stand for; `text` looks a string up.

    Raises KeyError for a kind that this version does not know."""
    head = int(row["head"])
    place = {"index": index, "thread": head >> 16, "site": int(row["site"])}
    return DECODERS[head & 0xFF](row, head >> 8 & 0xFF, text, links, **place)
