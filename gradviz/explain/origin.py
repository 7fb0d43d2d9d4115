"""Why a gradient is what it is: the gradient of a tensor, or of one element, as a sum over paths from the root."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as File
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradviz.errors import GradvizError
from gradviz.events.kinds import Kind
from gradviz.explain import by_norms
from gradviz.query import gradient_paths
from gradviz.query.missing_gradients import Lacks
from gradviz.query.passes import left_out
from gradviz.query.query import Query
from gradviz.sets import contained, distinct
from gradviz.tracefile import Trace, open_trace
from gradviz.words.absence import no_grad_told
from gradviz.words.escape import clean, finite_number
from gradviz.words.numbers import listed, number
from gradviz.words.stop import Stop, UnknownName, element_of, subject
from gradviz.words.words import Words

PATHS = 5  # the most contributions that are shown
_ENDS = 40  # the most hops at each end of a path


# The gradients that some paths of a pass (by its number) would bring alone, or why these are unknown.
AloneOf = Callable[[int, Sequence[gradient_paths.Path]], list[np.ndarray] | str]


class NoAnswer(GradvizError):
    """The trace does not show where a gradient came from. The message is one line for the user."""


def why(
    trace: Trace | File | str,
    tensor: str,
    number: int | None = None,
    most: int = PATHS,
    alone_of: AloneOf | None = None,
) -> by_norms.Reason | by_norms.NormReason:
    """The origin of the gradient of a tensor in pass `number` (None: the last pass that gave it a gradient), as its
    `most` largest contributions. If its elements were not recorded: the strongest path, by norms. `tensor` is a name
    such as `w`, `net.0.weight[3, 0]` or `t12`. `alone_of` gives the exact contributions where the trace does not show
    them. Raises NoAnswer if the trace does not show the origin, UnknownName if no tensor has this name, TraceError for
    a file that cannot be read."""
    if not isinstance(trace, Trace):
        with open_trace(trace) as opened:
            return why(opened, tensor, number, most, alone_of)
    words = Words(trace)
    query = words.query
    named, called, index = _named(words, tensor)
    if number is not None and number not in query.passes.by_number:
        raise NoAnswer(f"there is no pass {number}: the trace has {len(query.trace.passes)}")
    node, nr, number, event, gradient = _came(words, named, called, number)
    region = _region(query, index, called, gradient, event)
    hops = by_norms.Hops(words, query.deliveries(number))
    roots = listed([words.called(root.tensor) for root in query.passes.began(number).roots])
    try:
        sum_over_paths = gradient_paths.Paths(query, number, node, nr, region).decomposed(gradient, event, most)
    except gradient_paths.Missing:
        way = [] if index else gradient_paths.strongest_way(query, number, node, nr)
        value = query.memory.value(gradient, event)
        if not way or value is None or value.stats is None:
            raise NoAnswer(
                f"the elements of the gradient of {called} were not recorded: record with gradviz trace --values full"
            ) from None
        stages = by_norms.stages_of(hops, way)
        size = value.shape, gradient_paths.norm_of(value), gradient_paths.odd_of(value)
        return by_norms.NormReason(named, called, number, event, roots, *size, stages)
    unknown = ""
    if alone_of is not None:
        sum_over_paths, unknown = _exact(sum_over_paths, number, region, alone_of)
    return by_norms.Reason(
        named,
        called,
        index,
        number,
        event,
        roots,
        sum_over_paths.gradient,
        tuple(_contribution(path, hops) for path in sum_over_paths.shown),
        sum_over_paths.rest,
        sum_over_paths.rest_share,
        sum_over_paths.hooks,
        sum_over_paths.paths,
        sum_over_paths.error,
        sum_over_paths.adds_up,
        unknown,
    )


def _exact(
    sum_over_paths: gradient_paths.Decomposition, number: int, region: gradient_paths.Region, alone_of: AloneOf
) -> tuple[gradient_paths.Decomposition, str]:
    """The sum with the exact contributions of its paths, where the trace does not show them, and why these are unknown
    if they are."""
    paths = sum_over_paths.shown
    if all(path.exact for path in paths) or any(path.cut for path in paths):
        return sum_over_paths, ""
    if not np.isfinite(sum_over_paths.gradient).all():
        return sum_over_paths, ""
    alone = alone_of(number, paths)
    if isinstance(alone, str):
        return sum_over_paths, alone
    return gradient_paths.with_contributions(sum_over_paths, alone, region), ""


def _contribution(path: gradient_paths.Path, hops: by_norms.Hops) -> by_norms.Contribution:
    left_out = max(len(path.steps) - 2 * _ENDS, 0)
    steps = (*path.steps[:_ENDS], *path.steps[_ENDS + left_out :])
    return by_norms.Contribution(
        path.contribution, path.share, path.exact, path.cut, tuple(map(hops.of, steps)), left_out
    )


def _named(words: Words, text: str) -> tuple[int, str, str]:
    """The tensor that the user named, its name, and the index of the element; empty for the whole tensor."""
    text = text.strip().removesuffix(".grad")
    last = words.trace.count - 1
    if last < 0:
        raise NoAnswer("the trace has no events")
    element = element_of(text)
    try:
        named = subject(words, text, last)
        return named.tensor, named.called, ""
    except UnknownName:
        if element is None:
            raise
    name, index = element
    named = subject(words, name.removesuffix(".grad"), last)
    return named.tensor, named.called, index.strip()


def _came(words: Words, tensor: int, called: str, number: int | None) -> tuple[int, int, int, int, int]:
    """The arrival of the gradient of a tensor: the node, its output, the pass, the event, the gradient."""
    query = words.query
    received = query.trace.table(Kind.RECEIVED)
    is_kept = received["in_pass"] > 0  # 0: the pass was removed from the file
    rows = np.flatnonzero(is_kept & contained(received["node"], _nodes(query, tensor)))
    if number is None and len(rows) and tensor in query.of(Lacks).never_got and query.of(Lacks).of(tensor):
        events = (received.object(int(event)) for event in received.events[rows[::-1]])
        returned = next((event.in_pass for event in events if any(event.gradients)), 0)
        reason = no_grad_told(Stop(words, query.trace.count - 1), tensor, called)
        hint = f" (pass {returned} returned a gradient: --pass {returned} explains it)"
        raise NoAnswer(reason + hint * bool(returned))
    if number is not None:
        rows = rows[received["in_pass"][rows] == number]
    for row in rows[::-1].tolist():
        event = received.object(int(received.events[row]))
        outputs = query.nodes.outputs(event.node)
        nr = outputs.index(tensor) if tensor in outputs else 0
        if nr < len(event.gradients) and event.gradients[nr]:
            return event.node, nr, event.in_pass, event.index, event.gradients[nr]
    unrecorded = [backward_pass.number for backward_pass in query.trace.passes if not backward_pass.recorded]
    if unrecorded and number in (None, *unrecorded):
        told = number is not None and left_out(query.trace, number)
        raise NoAnswer(told or f"no pass that reached {called} was recorded in detail: record it with --passes")
    if number is not None:
        raise NoAnswer(f"pass {number} gave {called} no gradient")
    reason = no_grad_told(Stop(words, query.trace.count - 1), tensor, called)
    raise NoAnswer(f"no pass gave {called} a gradient: {reason}")


def _nodes(query: Query, tensor: int) -> list[int]:
    """The nodes that receive the gradient of a tensor: each node that was its `grad_fn`, and AccumulateGrad."""
    made = distinct(query.nodes.of_tensors.of(tensor)[1]).tolist()
    return [*made, *(node for node, leaf in query.nodes.leaves.items() if leaf == tensor)]


def _region(query: Query, index: str, called: str, gradient: int, event: int) -> gradient_paths.Region:
    """The elements of a gradient that an index selects; None for all elements. Raises NoAnswer for a wrong index."""
    if not index:
        return None
    parts = [part.strip() for part in index.strip(",").split(",")]
    snapshot = query.memory.value(gradient, event)
    shape = snapshot.shape if snapshot is not None else ()
    try:
        asked = [None if part == ":" else int(part) for part in parts]
        whole = [*asked, *[None] * (len(shape) - len(asked))]
        pairs = list(zip(whole, shape, strict=True))
    except ValueError:
        pairs = []
    if not pairs or not all(at is None or -size <= at < size for at, size in pairs):
        raise NoAnswer(f"{called} has no element [{index}]: its shape is {shape}")
    return tuple(at if at is None else at % size for at, size in pairs)


# A reason as text for a terminal, and as plain data.

_HEAD, _TAIL = 6, 8  # the most hops that are shown at the ends of a path


def reason_text(reason: by_norms.Reason) -> Group:
    """The gradient, its largest contributions, and the check that they add up."""
    head = Text.assemble(
        "gradient of ",
        (by_norms.reason_called(reason), "bold"),
        f" = {by_norms.value_text(reason.gradient)}  in pass {reason.number} (event {reason.event + 1}): "
        f"{by_norms.paths_text(reason.paths)} from {clean(reason.roots)}",
    )
    parts: list[RenderableType] = [head, Text()]
    for position, contribution in enumerate(reason.contributions, 1):
        parts += [*_contribution_text(contribution, position), Text()]
    return Group(*parts, *_sum(reason))


def _contribution_text(contribution: by_norms.Contribution, position: int) -> Iterator[RenderableType]:
    share = "" if np.isnan(contribution.share) else f"{by_norms.percent(contribution.share)}  "
    about = "" if contribution.exact else f"{by_norms.ABOUT} "
    yield Text.assemble(f"{position}. ", (f"{about}{share}", "bold"), by_norms.value_text(contribution.value))
    yield Padding(_chain(contribution), (0, 0, 0, 3), expand=False)


def _chain(contribution: by_norms.Contribution) -> Table:
    """The hops of a path from the root on, one in each line."""
    hops = contribution.hops
    with_file = by_norms.files_are_told(hop.site for hop in hops)
    rows = [by_norms.hop_cells(hop, with_file) for hop in hops]
    if left_out := contribution.left_out + max(len(hops) - _HEAD - _TAIL, 0):
        rows[_HEAD:-_TAIL] = [("…", f"{left_out:,} more steps")]
    if contribution.cut:
        rows.insert(0, ("…", "gradients meet here whose elements were not recorded (--values full)"))
    styles = (("", 2), ("yellow", 3), ("green", 2))
    return by_norms.path_grid(rows, *({"overflow": "fold", "style": style, "ratio": ratio} for style, ratio in styles))


def _sum(reason: by_norms.Reason) -> Iterator[Text]:
    others = reason.paths - len(reason.contributions)
    if not np.isfinite(reason.gradient).all():
        yield Text("The gradient is not finite, so there is no sum. The paths are those that bring NaN or inf.")
        return
    if others:
        yield _line("others", f"{by_norms.paths_text(others)} together: {by_norms.value_text(reason.rest)}")
    if np.any(reason.hooks):
        yield _line("hooks", f"hooks on {clean(reason.called)} add {by_norms.value_text(reason.hooks)}")
    same = "it is the recorded gradient" if reason.adds_up else "NOT the recorded gradient"
    size = float(np.max(np.abs(reason.gradient), initial=0.0)) or 1.0
    off = f" (off by {number(reason.error / size, 2)} of it{', rounding' * reason.adds_up})" if reason.error else ""
    yield _line("sum", f"{_addition(reason)}: {same}{off}")
    hops = [hop for contribution in reason.contributions for hop in contribution.hops]
    if any(hop.others for hop in hops):
        yield _line("+", "more gradients meet here, and their sum goes on")
    if not all(contribution.exact for contribution in reason.contributions):
        alone = (
            f"is not known: {clean(reason.unknown)}"
            if reason.unknown
            else "is known of PyTorch's passes with gradviz trace --values full"
        )
        yield _line(
            by_norms.ABOUT,
            "ops below mix their elements: each of them has the share of its size in the sum; what each brings alone "
            + alone,
        )


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label:8}", "dim"), text)


def _addition(reason: by_norms.Reason) -> str:
    """The contributions as a sum of numbers, or of shares if the gradient has several elements. Of zeros there are no
    shares: the sum is that of the values."""
    terms = [contribution.value for contribution in reason.contributions]
    terms += [reason.rest] * (reason.paths > len(terms)) + [reason.hooks] * bool(np.any(reason.hooks))
    if reason.gradient.size == 1:
        texts = [number(term.reshape(-1)[0]) for term in terms]
        total = number(reason.gradient.reshape(-1)[0])
    else:
        shares = [contribution.share for contribution in reason.contributions]
        shares += [reason.rest_share] * (reason.paths > len(shares))
        total = by_norms.value_text(reason.gradient)
        if np.isnan(shares).any():
            texts = list(map(by_norms.value_text, terms))
        else:
            texts = [*map(by_norms.percent, shares), *(["hooks"] * bool(np.any(reason.hooks)))]
    return " + ".join(f"({one})" if one.startswith("-") else one for one in texts) + f" = {total}"


def reason_json(reason: by_norms.Reason) -> dict[str, Any]:
    """The reason as plain data."""
    return {
        "tensor": reason.called,
        "index": reason.index or None,
        "pass": reason.number,
        "event": reason.event + 1,
        "gradient": _plain(reason.gradient),
        "paths": reason.paths,
        "contributions": [
            {
                "value": _plain(contribution.value),
                "share": finite_number(contribution.share),
                "exact": contribution.exact,
                "cut": contribution.cut,
                "left_out": contribution.left_out,
                "steps": [_step(hop) for hop in contribution.hops],
            }
            for contribution in reason.contributions
        ],
        "rest": _plain(reason.rest),
        "hooks": _plain(reason.hooks),
        "error": finite_number(reason.error),
        "adds_up": reason.adds_up,
    }


def _step(hop: by_norms.Hop) -> dict[str, Any]:
    return {
        "node": hop.node or None,
        "grad_fn": hop.grad_fn or None,
        "file": hop.site.place.file if hop.site is not None else None,
        "line": hop.site.place.line if hop.site is not None else None,
        "expression": hop.expression,
        "local": hop.local,
        "gradient": hop.gradient,
        "meets": hop.others,
    }


def _plain(array: np.ndarray) -> Any:
    """The array as nested lists of numbers. Numbers that JSON lacks (NaN, infinities, complex numbers) are text."""
    if np.ndim(array):
        return [_plain(part) for part in array]
    one = array[()]
    return float(one.real) if np.isreal(one) and np.isfinite(one) else str(one)
