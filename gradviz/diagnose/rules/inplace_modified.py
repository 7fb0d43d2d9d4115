"""`inplace-modified`: a tensor that a node had saved was changed in place before the node ran, or a leaf that
requires grad was changed in place with grad mode on."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Rule
from gradviz.query.changes import value_changes
from gradviz.query.failures import Failure
from gradviz.sets import distinct

_SAVED = "modified by an inplace operation"
_LEAF = ("a leaf Variable that requires grad", "a view of a leaf Variable that requires grad")


def _search(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if _SAVED in error.message:
            yield _of_saved(case, error)
        elif any(text in error.message for text in _LEAF):
            yield Found(
                "a leaf that requires grad is changed in place while grad mode is on: the leaf would lose its history",
                "with torch.no_grad(): ...  # around the update; or make a new tensor: y = x + 1",
                (error.event,),
                site=error.site,
                severity=case.severity_of(error),
            )


def _of_saved(case: Case, error: Failure) -> Found:
    """The first write to a saved tensor of the node, after the node was made."""
    made = case.query.nodes.event(error.node)
    for tensor, version in () if made is None else dict.fromkeys(made.saved):
        changes = value_changes(case.query, tensor).tolist()
        for event in (*changes, *_through_others(case, tensor)):
            if made is not None and made.index < event < error.event:
                name, saver = case.words.called(tensor), case.words.node_name(error.node)
                writer = _writer(case, event)
                return Found(
                    f"{writer} changes {name} in place, but {saver} ({case.at(made.index)}) saved version {version} "
                    "of it for its backward",
                    f"make a new tensor in place of changing {name}; or call backward() before it is changed",
                    (event, error.event, made.index),
                    node=error.node,
                    number=error.number,
                    tensors=tuple(dict.fromkeys((tensor, _base(case, tensor)))),
                    severity=case.severity_of(error),
                )
    return Found(
        f"a tensor that {case.words.node_name(error.node)} saved was changed in place before its backward",
        "make a new tensor in place of changing a saved one",
        (error.event,),
        site=error.site,
        severity=case.severity_of(error),
        node=error.node,
        number=error.number,
    )


def _through_others(case: Case, tensor: int) -> list[int]:
    """The writes to the base of a tensor, and to other views of it: all of them count one version."""
    states, base = case.trace.states, _base(case, tensor)
    sharing = {base, *distinct(states.tensors[states.bases == base]).tolist()} - {tensor}
    return sorted(event for other in sharing for event in case.query.tensors.writes(other))


def _base(case: Case, tensor: int) -> int:
    """The tensor whose memory a tensor shares; itself, if it shares none."""
    states = case.trace.states
    row = states.first(tensor)
    return (int(states.bases[row]) if row >= 0 else 0) or tensor


def _writer(case: Case, event: int) -> str:
    text = case.words.expression(case.site(event), 40)
    return text or case.query.tensors.writer(event)


RULE = Rule(
    "inplace-modified",
    ERROR,
    "a saved tensor, or a leaf, changed in place",
    _search,
    follows=("missing-detach", "stale-graph"),  # without that graph, nothing would have been saved
)
