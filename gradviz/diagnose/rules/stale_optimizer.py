"""`stale-optimizer`: an optimizer steps, or clears, without any parameter that gets gradients: those that do get them
are in no optimizer, from the first or from some step on; or the newest parameters are in none, and as many older ones
are not used any more. The optimizer was made before the parameters were replaced, or from others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.homeless import homeless
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.lack import PARAMETER
from gradviz.sets import contained, distinct, without
from gradviz.words.escape import clean

_LEAST = 2  # steps without a gradient


def _search(case: Case) -> Iterator[Found]:
    stepped = case.training.stepped
    leaves = [leaf for leaf in case.of(homeless) if _is_parameter(case, leaf)]
    idle = _idle_steps(case, leaves) if leaves else stepped.events[:0]
    if not leaves or not (len(idle) or _took_the_place(case, leaves)):
        return
    step = int(idle[0]) if len(idle) else int(stepped.events[0])
    lacks = (
        "holds no tensor that gets a gradient"
        if len(idle)
        else "holds the parameters from before a replacement"
    )
    made = case.query.tensors.maker(leaves[0])
    optimizer = int(stepped["optimizer"][stepped.events == step][0])
    yield Found(
        f"the optimizer that steps at {case.at(step)} {lacks}; {case.called(leaves)} "
        f"get{'s' * (len(leaves) == 1)} gradients and {'is' if len(leaves) == 1 else 'are'} in no optimizer",
        f"make the optimizer after the last change of the model: "
        f"{clean(case.training.optimizer_class(optimizer))}(model.parameters(), ...)",
        (step,) if made is None else (made, step),
        site=0 if made is None else _replacing(case, made),
        tensors=(*leaves, *_left_behind(case)),
    )


def _left_behind(case: Case) -> list[int]:
    """The tensors that an optimizer holds and that never got a gradient."""
    got = distinct(case.trace.table(Kind.ACCUMULATED)["tensor"])
    held = np.fromiter(case.training.holders, np.int64)
    return held[~contained(held, got)].tolist()


def _replacing(case: Case, made: int) -> int:
    """The line that made a parameter, and none of those that an optimizer holds: the call, if the same function made
    both."""
    site = case.site(made)
    held = {
        (caller.place.file, caller.place.line)
        for tensor in case.training.holders
        if (maker := case.query.tensors.maker(tensor)) is not None
        for caller in case.query.places.callers(case.site(maker))
    }
    for caller in case.query.places.callers(site):
        if (caller.place.file, caller.place.line) not in held:
            return caller.number
    return site


def _idle_steps(case: Case, leaves: list[int]) -> np.ndarray:
    """The steps of optimizers whose parameters get no gradient, or get none any more since these leaves do."""
    stepped, came = case.training.stepped, case.trace.table(Kind.ACCUMULATED)
    since = int(came.events[contained(came["tensor"], leaves)].min())
    found = [stepped.events[:0]]
    for optimizer in distinct(stepped["optimizer"]).tolist():
        held = [tensor for tensor, owners in case.training.holders.items() if optimizer in owners]
        got = came.events[contained(came["tensor"], held)]
        steps = stepped.events[stepped["optimizer"] == optimizer]
        late = steps[steps > since]
        if not len(got) or (got.max() < since and len(late) >= _LEAST):
            found.append(late if len(got) else steps)
    return np.sort(np.concatenate(found))


def _took_the_place(case: Case, leaves: list[int]) -> bool:
    """Whether the leaves are the newest parameters, and as many older ones are read by no op."""
    made = case.trace.table(Kind.TENSOR)
    parameters = made["tensor"][case.trace.named(made["how"], (PARAMETER,))]
    others = without(parameters, leaves)
    read = case.trace.table(Kind.OP).lists("inputs").values
    unread = others[~contained(others, read)]
    return len(unread) >= len(leaves) and min(leaves) > others.max(initial=0)


def _is_parameter(case: Case, leaf: int) -> bool:
    made = case.query.tensors.made(leaf)
    return leaf in case.trace.parameters or getattr(made, "how", "") == PARAMETER


RULE = Rule(
    "stale-optimizer",
    ERROR,
    "an optimizer none of whose parameters get gradients, while others do",
    _search,
    needs=(Need.STEP, Need.PASSES),
)
