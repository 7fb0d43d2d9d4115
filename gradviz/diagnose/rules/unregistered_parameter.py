"""`unregistered-parameter`: a leaf that requires grad takes part in the forward of a module whose other parameters
are trained, gets gradients, and is not among the module's parameters(), so that no step changes it: it is in a
plain list or dict, or was made by an op on a Parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, TensorMade
from gradviz.query.upstream import Downstream
from gradviz.sets import contained


def homeless(case: Case) -> list[int]:
    """The leaves that get gradients in two passes or more and are never changed, while others are trained."""
    came = case.trace.table(Kind.ACCUMULATED)
    pairs = np.unique(np.stack([came["tensor"], came["in_pass"]], axis=1), axis=0)
    leaves, counts = np.unique(pairs[:, 0], return_counts=True)
    _, written = case.query.tensors.all_writes
    still = ~contained(leaves, written) & ~contained(leaves, sorted(case.training.trained))
    return leaves[still & (counts > 1)].tolist()


def _search(case: Case) -> Iterator[Found]:
    below = case.downstream
    modules = {
        case.trace.parameters.get(tensor, "").partition(".")[0] for tensor in case.training.trained
    } - {""}
    found: dict[int, list[int]] = {}
    for leaf in case.of(homeless):
        made = case.query.tensors.made(leaf)
        module = _module_around(case, below, leaf)
        name = case.trace.parameters.get(leaf, "")
        if module in modules and not name.startswith(f"{module}.") and isinstance(made, TensorMade):
            found.setdefault(made.site, []).append(leaf)
    for site, leaves in found.items():
        module = _module_around(case, below, leaves[0])
        yield Found(
            f"{case.called(leaves)} get{'s' * (len(leaves) == 1)} gradients in the forward of {module}, but "
            f"{'is' if len(leaves) == 1 else 'are'} not among its parameters(): no step changes "
            f"{'it' if len(leaves) == 1 else 'them'}",
            "use nn.ModuleList, nn.ModuleDict or nn.Parameter(...) as an attribute of the module",
            tuple(event for leaf in leaves[:4] if (event := case.query.tensors.maker(leaf)) is not None),
            site=site,
            tensors=tuple(leaves),
        )


def _module_around(case: Case, below: Downstream, leaf: int) -> str:
    """The outermost module in whose forward a leaf is read first; empty if there is none."""
    for op in below.readers(leaf)[:1]:
        scopes = case.query.scopes.around(op, case.query.tensors.op(op).thread)
        if scopes and case.query.tensors.flags(leaf, op) & (LEAF | REQUIRES_GRAD) == LEAF | REQUIRES_GRAD:
            return scopes[0].name.partition(".")[0]
    return ""


RULE = Rule(
    "unregistered-parameter",
    ERROR,
    "a leaf in the forward of a module that is not among its parameters()",
    _search,
    needs=(Need.TRAINING, Need.PASSES, Need.DETAILS),
)
