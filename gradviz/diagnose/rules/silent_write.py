"""`silent-write`: a tensor that a node saved is changed between forward and backward in a way that autograd does not
see, so that the gradient is wrong and nothing raises.

    loss = (w * w).sum()
    w.data[0] = 100.0        # backward multiplies with 100, forward did not
    loss.backward()

Cured: the change comes before the forward or after the backward.

A write under `torch.no_grad()` counts a version, and backward raises (`inplace-modified`). A change behind backward, by
an optimizer or by hand, is an update. A change that is taken back before backward, as where weights are sharded or
perturbed for a moment, is no fault: the values are compared."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.query.silent_writes import SilentWrite, silent_writes
from gradviz.words.numbers import value


def _search(case: Case) -> Iterator[Found]:
    seen: set[tuple[int, int]] = set()
    for write in case.query.of(silent_writes):
        key = (case.site(write.event), write.tensor)
        if key not in seen:
            seen.add(key)
            yield _found(case, write)


def _found(case: Case, write: SilentWrite) -> Found:
    name = case.words.called(write.tensor)
    saver = case.words.node_name(write.node)
    how = case.words.expression(case.site(write.event), 40) or case.query.tensors.writer(write.event)
    where = case.at(write.made)
    return Found(
        f"{how} changes {name} unseen by autograd: it was {value(write.before)} in the forward that made {saver}"
        f"{f' ({where})' * bool(where)}, and its backward computes with {value(write.after)}; "
        "the gradient is wrong, and nothing raises",
        f"change {name} before the forward or after backward(); under torch.no_grad(), without .data, "
        "backward() raises in place of a wrong gradient",
        (write.event, write.ran, write.made),
        node=write.node,
        tensors=(write.tensor,),
    )


RULE = Rule(
    "silent-write",
    ERROR,
    "a saved tensor that is changed unseen by autograd, so that its gradient is wrong",
    _search,
    needs=(Need.PASS, Need.VALUES, Need.DETAILS),
)
