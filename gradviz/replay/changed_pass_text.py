"""The results of a pass with changes, as text for a terminal and as plain data."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.events.kinds import CallMade
from gradviz.events.values import stats_of
from gradviz.query.at_points import version_of
from gradviz.query.copies import largest_change, same_bits
from gradviz.replay.changed_pass import BadOrigin, Changed, ScaledStep, Step, WhatIf
from gradviz.replay.micro_batches import COUNTS, MEAN, SIZES, SUM, TIMES, MicroBatches
from gradviz.replay.outcome import Check
from gradviz.replay.plan import Call
from gradviz.replay.samples import MOST, Samples, Term
from gradviz.words.defined_points import called
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import SHOWN, array_text, few_of, listed, number, plural
from gradviz.words.words import Words

_MOST = 6  # names in a line


def what_if_text(words: Words, found: WhatIf) -> Group:
    """The results of the replay, and its comparison with the recording."""
    calls, inputs = plural(len(found.plan.calls), "call"), plural(len(found.plan.inputs), "input")
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}: {calls}, {inputs}"
    parts: list[RenderableType] = [Text(head, "bold"), Text(check_text(words, found.check))]
    if found.added:
        names = _some([f"{name}.grad" for name in found.added])
        parts.append(Text(f"added to an earlier gradient in the run, here as of this pass alone: {names}"))
    if found.cut:
        why = f"what made {'it' if len(found.cut) == 1 else 'them'} cannot run again"
        parts.append(Text(f"no gradient goes on behind {_some(found.cut)}: {why}"))
    parts += [Text(line) for line in _bad(words, found)]
    if found.redefined:
        recorded, ops = called(version_of(words.trace)), _some(found.redefined)
        other = f"in another way than {recorded}, which recorded the pass"
        parts.append(Text(f"{clean(found.runner)} defines the gradient of {ops} {other}"))
    if found.has_hooks:
        parts.append(Text("hooks changed gradients of this pass: they do not run again"))
    parts += [Text(), _table(found)]
    if found.is_edited:
        parts += [Text(), Text(_first(words, found))]
    if found.held:
        names = _some([name for _, name in found.held])
        parts.append(Text(f"held as recorded, not computed again: {names}"))
    if found.is_edited:
        parts.append(Text("numbers and branches that the program worked out in Python stay as they were"))
    return Group(*parts)


def _bad(words: Words, found: WhatIf) -> Iterator[str]:
    """Lines about the origin of the NaN or infinities, before and after."""
    before, after = found.bad
    if before is not None:
        yield bad_text(words, before)
    if after is not None and after != before:
        yield f"as it would be, {bad_text(words, after)}"


def bad_text(words: Words, bad: BadOrigin) -> str:
    """`NaN comes first from F.softmax, line 20, at index 5 of the first dimension`"""
    called = "NaN" if bad.is_nan else "an infinity"
    few = few_of([str(index) for index in bad.indices], _MOST)
    at = f", at {'index' if len(bad.indices) == 1 else 'indices'} {few} of the first dimension"
    where = at if bad.indices else ""
    if bad.tensor:
        return f"{called} enters the pass with {clean(words.called(bad.tensor))}{where}"
    if bad.call:
        call = words.query.trace.event(bad.call)
        assert isinstance(call, CallMade)
        return f"{called} comes first from {clean(call.function)}{words.at_line(call.site)}{where}"
    made = words.query.nodes.event(bad.node)
    line = words.at_line(made.site) if made is not None else ""
    becomes = "NaN" if bad.is_nan else "infinite"
    return f"a finite gradient becomes {becomes} in {words.node_name(bad.node)}{line}{where}"


def _some(names: Sequence[str]) -> str:
    return few_of([clean(name) for name in names], _MOST)


def check_text(words: Words, check: Check) -> str:
    """The comparison of a replay with the recording."""
    compared = []
    if check.roots:
        is_equal = check.equal_roots == check.roots
        compared.append("the recorded loss to the last bit" if is_equal else "another loss than the recorded one")
    if check.gradients:
        by_statistics = check.equal_gradients - check.to_the_bit
        how = f", {by_statistics} of them by their statistics" if by_statistics else ""
        compared.append(f"{check.equal_gradients} of {plural(check.gradients, 'recorded gradient')}{how}")
    if not compared:
        return "nothing was recorded that the replay could be compared with"
    text = f"it gives {listed(compared)}"
    if check.differences:
        first = check.differences[0]
        size = "" if np.isnan(first.largest) else f" by up to {number(first.largest, 3)}"
        text += f"; it differs first in {words.called(first.tensor)} (event {first.event + 1}){size}"
        sizes = [one.largest for one in check.differences if not np.isnan(one.largest)]
        if len(sizes) > 1:
            text += f", and by at most {number(max(sizes), 3)} where elements were recorded"
    return text


def _table(found: WhatIf) -> Table:
    edited = ("after", "largest change") if found.is_edited else ()
    values = table("", "before", *edited)
    values.show_header = found.is_edited
    values.columns[0].no_wrap = True
    for change in found.changes:
        row = [Text(clean(change.called)), Text(array_text(change.before))]
        if found.is_edited:
            row += [Text(array_text(change.after)), Text(_size(change))]
        values.add_row(*row)
    return values


def table(*titles: str) -> Table:
    """A table without lines."""
    result = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        result.add_column(title, overflow="fold")
    return result


def _size(change: Changed) -> str:
    if change.before is None or change.after is None:
        return "" if change.before is change.after else "there is one now" if change.before is None else "gone"
    if change.before.shape != change.after.shape:
        return "another shape"
    if same_bits(change.before, change.after):
        return "none"
    return number(largest_change(change.before, change.after), 4)


def _first(words: Words, found: WhatIf) -> str:
    text = [] if found.sample is None else [f"index {found.sample} of the first dimension is left out of the loss"]
    if found.dtype:
        text.append(f"floating-point numbers are computed in {found.dtype}")
    elif found.first is None:
        text.append("no call gives anything else")
    else:
        text.append(f"differs first: {placed_call(words, found.first)}")
    return "; ".join(text)


def what_if_json(words: Words, found: WhatIf) -> dict[str, Any]:
    """The results of the replay as plain data."""
    check = found.check
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "calls": len(found.plan.calls),
        "inputs": len(found.plan.inputs),
        "replay": {
            "equal": check.is_equal,
            "roots": {"compared": check.roots, "equal": check.equal_roots},
            "gradients": {"compared": check.gradients, "equal": check.equal_gradients},
            "differences": [
                {"tensor": words.called(one.tensor), "event": one.event + 1, "largest": json_number(one.largest)}
                for one in check.differences
            ],
        },
        "changes": [_change_json(change, found.is_edited) for change in found.changes],
        "first": None if found.first is None else {"function": found.first.function, "event": found.first.event + 1},
        "redefined": list(found.redefined),
        "sample": found.sample,
        "held": [name for _, name in found.held],
        "cut": list(found.cut),
        "hooks": found.has_hooks,
        "bad": [None if bad is None else bad_text(words, bad) for bad in found.bad],
        "added": [f"{name}.grad" for name in found.added],
    }


def _change_json(change: Changed, is_edited: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"of": change.called, "before": _array_json(change.before)}
    if is_edited:
        data |= {"after": _array_json(change.after), "change": _size(change)}
    return data


def _array_json(array: np.ndarray | None) -> Any:
    if array is None:
        return None
    if array.size <= SHOWN and array.dtype.kind != "c":
        return json_number(array.tolist())
    stats = stats_of(array)
    return {"shape": list(array.shape), "rms": json_number(stats.rms), "nan": stats.nan, "inf": stats.inf}


# The parts of the samples, as text for a terminal and as plain data.

_SHOWN = 10


def samples_text(words: Words, found: Samples) -> Group:
    """The worst samples of a batch."""
    count = plural(found.count, "part")
    head = f"pass {found.plan.number}: the loss is a sum of {count}, one for each index of the first dimension"
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
        by = placed_call(words, found.mixing)
        parts.append(Text(f"samples depend on one another, by {by}: a part is that of a term"))
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


# A step with another learning rate, as text for a terminal and as plain data.


def scaled_step_text(words: Words, found: ScaledStep) -> Group:
    """The loss on the same data after either step, and the sizes of the steps."""
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}, and so with what its step made"
    rates = listed([number(rate, 4) for rate in found.rates])
    scaled = listed([number(rate * found.factor, 4) for rate in found.rates])
    where = words.at_line(found.stepped.site)
    text = f"{clean(found.stepped.type)} steps with lr {rates}{where}; beside it the same step with lr {scaled}"
    losses = table("", "before the step", "after it", f"with lr {scaled}")
    for root, *values in found.losses:
        losses.add_row(Text(clean(words.called(root))), *(number(_one(value)) for value in values))
    steps = table("change of", "rms", f"with lr {scaled}")
    for step in found.steps:
        steps.add_row(Text(clean(words.called(step.leaf))), *(number(size, 4) for size in _sizes(step)))
    return Group(Text(head, "bold"), Text(check_text(words, found.check)), Text(text), Text(), losses, Text(), steps)


def _one(value: np.ndarray) -> float:
    """A loss as a number; for a root with several elements their sum, with which a pass begins."""
    return float(value.sum())


def _sizes(step: Step) -> list[float]:
    """The root mean squares of the change that a step made, and of the scaled change."""
    wide = np.complex128 if step.before.dtype.kind == "c" else np.float64
    before = step.before.astype(wide)
    return [stats_of(np.abs(after.astype(wide) - before)).rms for after in (step.after, step.scaled)]


def scaled_step_json(words: Words, found: ScaledStep) -> dict[str, Any]:
    """The scaled step as plain data."""
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "equal": found.check.is_equal,
        "optimizer": found.stepped.type,
        "event": found.stepped.index + 1,
        "rates": [json_number(rate) for rate in found.rates],
        "factor": found.factor,
        "losses": [
            {
                "of": words.called(root),
                **{
                    key: json_number(_one(value))
                    for key, value in zip(("before", "after", "scaled"), values, strict=True)
                },
            }
            for root, *values in found.losses
        ],
        "changes": [
            {"of": words.called(step.leaf), "rms": json_number(one), "scaled": json_number(other)}
            for step in found.steps
            for one, other in [_sizes(step)]
        ],
    }


# One batch beside its micro-batches, as text for a terminal and as plain data.


def micro_batches_text(words: Words, found: MicroBatches) -> Group:
    """The gradients of one batch and of its micro-batches, and what makes them differ."""
    each = str(found.sizes[0]) if len({*found.sizes}) == 1 else listed(map(str, found.sizes))
    total, sizes = sum(found.sizes), f"{len(found.sizes)} micro-batches of {each}"
    if found.is_split:
        head = f"pass {found.passes[0]} runs again with {clean(found.runner)}: its batch of {total} as {sizes}"
        column = f"mean of {len(found.sizes)}"
    else:
        first, last = found.passes[0], found.passes[-1]
        head = f"passes {first} to {last} run again with {clean(found.runner)}: {sizes} as one batch of {total}"
        column = "accumulated"
    names = few_names(words, found.tensors)
    gradients = table("gradient of", "rms for one batch", column, "ratio", "largest difference")
    for one in found.leaves:
        rms = [number(stats_of(np.abs(each)).rms, 4) for each in (one.batch, one.accumulated)]
        ratio = "" if np.isnan(one.ratio) else number(one.ratio, 4)
        gradients.add_row(Text(clean(words.called(one.leaf))), *rms, ratio, number(one.largest, 3))
    said = [Text(line) for line in _relation(words, found)]
    parted = Text(f"{'split' if found.is_split else 'joined'}: {names}")
    return Group(Text(head, "bold"), Text(check_text(words, found.check)), parted, Text(), gradients, Text(), *said)


def _relation(words: Words, found: MicroBatches) -> Iterator[str]:
    """What the gradients of the micro-batches are to that of the batch, and what to do."""
    count = len(found.sizes)
    called = "the mean of the micro-batches' gradients" if found.is_split else "the accumulated gradient"
    if found.is_equal:
        yield f"{called} is the gradient of the batch, but for rounding"
    elif found.relation == SUM:
        yield "the sum of the micro-batches' gradients is the gradient of the batch: the loss adds up its samples"
        yield "cure  add the losses of the micro-batches without dividing them"
    elif found.relation in (SIZES, COUNTS):
        weights = found.sizes if found.relation == SIZES else found.counts
        each = listed([number(one, 6) for one in weights])
        where = "" if found.uneven is None else f", by {placed_call(words, found.uneven)}"
        yield f"each micro-batch is a mean of its own{where}: of {each}"
        yield "weighted by these counts, the micro-batches' gradients add up to the gradient of the batch"
        yield f"cure  sum the loss in each micro-batch, and divide it by the count of all, {number(sum(weights), 6)}"
    elif found.relation in (MEAN, TIMES):
        yield f"{called} is {number(found.times, 4)} times the gradient of the batch"
        if found.relation == MEAN:
            yield f"cure  divide the loss of each of these passes by {count}"
    else:
        yield f"{called} is not the gradient of the batch"
        if found.first is not None:
            yield f"differs first: {placed_call(words, found.first)}"


def few_names(words: Words, tensors: Iterable[int]) -> str:
    """The names of a few tensors of the program."""
    return _some([words.called(tensor) for tensor in tensors if tensor > 0])


def placed_call(words: Words, call: Call) -> str:
    """A call with its line: `F.batch_norm, line 8`."""
    return f"{clean(call.function)}{words.at_line(call.site)}"


def micro_batches_json(words: Words, found: MicroBatches) -> dict[str, Any]:
    """The comparison as plain data."""
    calls = {"uneven": found.uneven, "first": found.first}
    return {
        "passes": list(found.passes),
        "runner": found.runner,
        "sizes": list(found.sizes),
        "of": [words.called(tensor) for tensor in found.tensors if tensor > 0],
        "equal": found.is_equal,
        "relation": found.relation,
        "times": json_number(found.times),
        "counts": [json_number(one) for one in found.counts],
        **{
            key: None if call is None else {"function": call.function, "event": call.event + 1}
            for key, call in calls.items()
        },
        "gradients": [
            {
                "of": words.called(one.leaf),
                "ratio": json_number(one.ratio),
                "largest": json_number(one.largest),
                "batch": _array_json(one.batch),
                "accumulated": _array_json(one.accumulated),
            }
            for one in found.leaves
        ],
    }
