"""`hook-changed-gradient`: a hook of the program wipes out the gradient of a tensor in every pass: it receives a
gradient other than 0 and returns only zeros. Or it receives numbers and returns a NaN, or an infinity that reaches a
leaf.

Why it is bad: all leaves behind the tensor get a gradient of 0, NaN or infinity, and learn nothing.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        out = model(torch.randn(5, 4))
        out.register_hook(lambda grad: grad * 0)  # <- hook-changed-gradient
        loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: return the gradient that is meant (scaled, clipped, masked in part), or leave the hook out.

Not reported: a hook that masks, scales or clips, an infinity whose step a gradient scaler leaves out.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.blocked import HOOKED_CALL, blocks
from gradviz.diagnose.nonfinite import Source, first_bad
from gradviz.diagnose.rule import ERROR, WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.events.values import Stat
from gradviz.query.functions_of_source import Function

_NAMELESS = "hook"  # the recorded name of hooks on nodes: PyTorch does not give their own names


@Rule(
    "hook-changed-gradient",
    WARNING,
    "a hook that wipes out a gradient, or makes NaN or an infinity of it",
    needs=(Need.VALUES, Need.DETAILS, Need.PASS),
)
def hook_changed_gradient(case: Case) -> Iterator[Found]:
    yield from _of_modules(case)
    table = case.trace.table(Kind.HOOKED)
    if not len(table):
        return
    states = case.trace.states
    before = states.rows_of(table["before"], table.events)
    after = states.rows_of(table["after"], table.events)
    known = (before >= 0) & (after >= 0)
    wiped = known & (states.stats[before, Stat.RMS] > 0) & states.are_zero(after)
    spoilt = known & (states.stats[before, Stat.NAN] == 0) & (states.stats[after, Stat.NAN] > 0)
    origin = case.of(first_bad)  # an overflow under a scaler, which leaves the step out, does no harm
    number = origin.number if origin is not None and origin.source is Source.RECEIVED else 0
    is_infinite = ~states.are_bad(before) & (states.stats[after, Stat.INF] > 0)
    spoilt |= known & (table["in_pass"] == number) & is_infinite
    groups: dict[tuple[int, int], list[int]] = {}
    for row in range(len(table)):
        groups.setdefault((_hook_site(case, int(table["after"][row])), int(table["hook"][row])), []).append(row)
    for (site, hook), rows in groups.items():
        if not (wiped[rows].all() or spoilt[rows].any()):
            continue
        event = int(table.events[rows[0]])
        own = ((int(table["tensor"][row]), *case.query.nodes.tensors(int(table["node"][row]))) for row in rows)
        tensors = tuple(dict.fromkeys(tensor for of_row in own if (tensor := next(filter(None, of_row), 0))))
        made = case.query.tensors.maker(tensors[0]) if tensors else None
        name = case.trace.text(hook)
        which = "a hook" if name == _NAMELESS else f"the hook {name}"
        whose = f"of {case.called(tensors)}" if tensors else "that flows here"
        is_spoilt = spoilt[rows].any()
        bad = "NaN" if (states.stats[after[rows], Stat.NAN] > 0).any() else "an infinity"
        yield Found(
            f"{which} {f'makes {bad} of' if is_spoilt else 'wipes out'} the gradient {whose}",
            Fix(
                "return the gradient that the hook is to pass on, or None to leave it as it is; or remove the hook",
                _passed_on,
            ),
            (event,),
            site=site or (0 if made is None else case.site(made)),  # else the line that made what the hook is on
            number=int(table["in_pass"][rows[0]]),
            tensors=(*tensors, *case.query.nodes.leaves_behind([int(table["node"][rows[0]])])),
            severity=ERROR if is_spoilt else "",
        )


def _of_modules(case: Case) -> Iterator[Found]:
    """Hooks on modules: they change the gradients that the node around the module's call produces."""
    produced = case.trace.table(Kind.PRODUCED)
    for block in case.of(blocks):
        op = case.query.nodes.op(block.node)
        if op is None or case.query.tensors.op(op).op != HOOKED_CALL:
            continue
        gradients = [flow.gradient for flow in produced.object(block.event).flows if flow.gradient]
        site = next((site for gradient in gradients if (site := _hook_site(case, gradient))), 0)
        yield Found(
            f"a backward hook of a module wipes out the gradient of {case.called(block.leaves)}",
            Fix("return None from the hook to leave grad_input as it is; or remove the hook", _passed_on),
            (block.event, op),
            site=site or block.site,
            node=block.node,
            number=block.number,
            tensors=block.leaves,
        )


def _hook_site(case: Case, after: int) -> int:
    """The line in the hook that computed what it returned; 0 if that is unknown."""
    made = case.query.tensors.maker(after)
    return 0 if made is None else int(case.trace.events["site"][made])


def _passed_on(spot: Spot) -> list[Edit]:
    """A hook that returns the gradient as it is; or the removal of a line that registers a hook."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Return) and statement.value is not None:
        function = source.function(statement)
        if isinstance(function, Function) and function.args.args:
            return [source.replaced(statement.value, function.args.args[-1].arg)]
    if isinstance(statement, ast.Expr) and spot.calls_here("register_hook", "register_full_backward_hook"):
        return [source.removed(statement)]
    return []
