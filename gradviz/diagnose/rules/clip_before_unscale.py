"""`clip-before-unscale`: gradients are clipped while they still carry the scale of the loss. A gradient scaler, or a
division by the scale, takes the scale away only afterwards, before the step.

Why it is bad: the limit is compared with gradients that are thousands of times too large: nearly each step is
clipped to nearly nothing.

Example:

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = 1024.0
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).pow(2).mean()
        (loss * scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- clip-before-unscale
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        optimizer.step()

Cure: call `scaler.unscale_(optimizer)` before `clip_grad_norm_`, or divide the gradients by the scale first.

Not reported: clipping without a scale, or after the scale was taken away.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.loss_factors import constant_of, loss_scale
from gradviz.query.pass_owners import scaler_name
from gradviz.query.training import ACCUMULATED, CHANGED, STEPPED
from gradviz.sets import contained, distinct

_UNSCALING = "_amp_foreach_non_finite_check_and_unscale_"
_CLIPPING = {"clip_grad_norm_", "clip_grad_value_", "clamp_", "clip_", "clamp_min_", "clamp_max_"}
_LEAST = 2.0  # the smallest factor that counts as a scale


@Rule(
    "clip-before-unscale",
    ERROR,
    "gradients that are clipped while they carry the scale of the loss",
    needs=(Need.TRAINING, Need.DETAILS),
)
def clip_before_unscale(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    changed = lives.whats == CHANGED
    waiting = changed & (lives.before(lives.whats == ACCUMULATED) > 0)
    waiting &= (lives.before(lives.whats == STEPPED) == 0) & (lives.after(lives.whats == STEPPED) > 0)
    events = distinct(lives.events[waiting])
    unscaling = [own for own in case.by_site(events).values() if _unscales(case, int(own[0]))]
    if not unscaling:
        return
    last = contained(lives.events, np.concatenate(unscaling))
    early = waiting & ~last & (lives.after(last) > 0)
    for own in case.by_site(distinct(lives.events[early])).values():
        clipped = case.trace.table(Kind.CLIPPED)  # by an op, or by a function that the line called
        is_of_line = contained(case.trace.events["site"][own[:1]], clipped.sites[clipped.events < own[0]]).any()
        if _writer(case, int(own[0])) not in _CLIPPING and not is_of_line:
            continue
        leaves = tuple(distinct(lives.leaves[contained(lives.events, own)]).tolist())
        after = int(min(event for events in unscaling for event in events if event > own[0]))
        yield Found(
            f"the gradients of {case.called(leaves)} are clipped while they still carry the loss scale, which "
            f"{case.at(after)} takes away",
            Fix("scaler.unscale_(optimizer)  # before the gradients are clipped", _unscaled)
            if scaler_name(case.query)
            else "clip the gradients after they are divided by the scale of the loss",
            (int(own[0]), after),
            tensors=leaves,
        )


def _writer(case: Case, event: int) -> str:
    """The name of the op that changed a gradient in place at an event; empty for an assignment."""
    return "" if case.trace.kinds[event] == Kind.GRAD_ASSIGNED else case.query.tensors.writer(event)


def _unscales(case: Case, event: int) -> bool:
    """Whether an event takes the scale of the loss out of gradients: the op of a gradient scaler, or a division by the
    factor that the root of the pass before it was multiplied with."""
    name = _writer(case, event)
    if name == _UNSCALING:
        return True
    if name not in ("div_", "mul_", "__itruediv__") or not case.query.tensors.is_op(event):
        return False
    factor = constant_of(case.query, case.query.tensors.op(event))
    scale = loss_scale(case.query, event)
    if not factor or not scale or scale < _LEAST:
        return False
    return bool(np.isclose(1 / factor if name == "mul_" else factor, scale, rtol=1e-3))


def _unscaled(spot: Spot) -> list[Edit]:
    """`scaler.unscale_(optimizer)` before the clipping."""
    source, statement = spot.source, spot.statement
    steps = [call for call in source.calls("step") if "scaler" in spot.receiver(call).lower() and call.args]
    if not steps:
        return []
    held = source.code(steps[0].args[0])
    return [source.before(statement, f"{spot.receiver(steps[0])}.unscale_({held})")]
