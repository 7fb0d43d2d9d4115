"""`silent-write`: a tensor that a node saved is changed between forward and backward in a way that autograd does
not see, so that the gradient is wrong and nothing raises.

Why it is bad: a write through `.data` counts no version, nor does that of a batch norm to its running statistics, so
PyTorch cannot notice it: backward multiplies with numbers that forward did not use.

Example:

    w = torch.tensor([1.0, 5.0], requires_grad=True)
    y = w.exp()
    y.data.mul_(2)  # <- silent-write
    y.sum().backward()

Cure: make the change before the forward or after the backward. Under `torch.no_grad()` PyTorch at least notices the
change.

Not reported: a write under `torch.no_grad()`, which counts a version, so that backward raises (`inplace-modified`); a
change after backward, by an optimizer or by hand, which is an update; a change that is undone before backward, as
when weights are sharded or perturbed for a moment: the rule compares the values.
"""

from collections.abc import Iterator

from gradviz.diagnose.fix import moved_behind_backward
from gradviz.diagnose.rule import ERROR, Case, Fix, Found, Need, Rule
from gradviz.query.ops import RUNNING
from gradviz.query.writes import SilentWrite, silent_writes
from gradviz.words.numbers import value


@Rule(
    "silent-write",
    ERROR,
    "a saved tensor that is changed unseen by autograd, so that its gradient is wrong",
    needs=(Need.PASS, Need.VALUES, Need.DETAILS),
    at_once=True,
)
def silent_write(case: Case) -> Iterator[Found]:
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
    where, is_own = case.at(write.made), case.query.tensors.writer(write.event) not in RUNNING
    return Found(
        f"{how} changes {name} unseen by autograd: it was {value(write.before)} in the forward that made {saver}"
        f"{f' ({where})' * bool(where)}, and its backward computes with {value(write.after)}; "
        "the gradient is wrong, and nothing raises",
        Fix(
            f"change {name} before the forward or after backward()"
            + "; under torch.no_grad(), without .data, backward() raises in place of a wrong gradient" * is_own,
            moved_behind_backward,
        ),
        (write.event, write.ran, write.made),
        node=write.node,
        tensors=(write.tensor,),
    )
