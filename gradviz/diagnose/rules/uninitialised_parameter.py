"""`uninitialised-parameter`: a parameter, or a leaf that requires grad, comes from `torch.empty` and is read by
an op before anything was written to it.

Why it is bad: `torch.empty` returns whatever is in memory: zeros today, huge numbers or NaN tomorrow. Runs differ
without a reason.

Example:

    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.empty(3, 2))  # <- uninitialised-parameter
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        (torch.randn(5, 3) @ w.clamp(-1, 1)).pow(2).mean().backward()
        optimizer.step()

Cure: fill the tensor after it was made, as `torch.nn.init.normal_(w, std=0.1)` does, or make it with `torch.randn` or
`torch.zeros`.

Not reported: a tensor that is filled, loaded or copied into before it is read; a tensor without elements; a tensor
that PyTorch makes for itself, as a pipeline does to learn the shapes between its stages.
"""

import re
from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Need, Rule, Spot
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, TensorMade
from gradviz.query.ops import UNFILLED
from gradviz.sets import distinct, distinct_pairs, grouped

_UNFILLED = re.compile(
    r"\b(?:torch\.|th\.|t\.)?(?:cuda\.)?(?:Float|Double|Half|BFloat16)?Tensor\((?!\s*\[)[\w\s.,*+/-]+\)"
)
_COPIES = 64  # the most tensors in a chain of copies that are looked at
_RAW = {"Parameter", "Tensor"}  # the recorded makers of Tensor(3, 4), by PyTorch and by the engine
_MOST = 10_000  # the most leaves that are looked at


@Rule("uninitialised-parameter", ERROR, "a parameter that is used as it came out of torch.empty", needs=(Need.DETAILS,))
def uninitialised_parameter(case: Case) -> Iterator[Found]:
    states = case.trace.states
    wanted = states.flags & (LEAF | REQUIRES_GRAD) == LEAF | REQUIRES_GRAD
    leaves = distinct(states.tensors[wanted])[:_MOST]
    found: dict[int, dict[int, int]] = {}  # by the site, the leaves, each with the op that reads it first
    for leaf in leaves.tolist():
        chain = _unfilled(case, leaf)
        readers = case.downstream.readers(leaf)
        reading = next((op for op in readers if case.query.nodes.of_op(op)), None)
        has_elements = 0 not in (case.query.tensors.shape(leaf) or ())
        if not chain or not has_elements or reading is None:
            continue
        writes = (write for t in chain for write in case.query.tensors.writes(t))
        if not any(write < reading for write in writes):
            made = case.query.tensors.maker(leaf)
            found.setdefault(case.site(made) if made is not None else 0, {})[leaf] = reading
    for site, read in found.items():
        own = [*read]
        yield Found(
            f"{case.called(own)} {'is' if len(own) == 1 else 'are'} used as torch.empty left "
            f"{'it' if len(own) == 1 else 'them'}: nothing was written there first",
            Fix(
                "use torch.randn in place of torch.empty, times a small number such as 0.02; a bias may be torch.zeros",
                _initialised,
            ),
            (case.query.tensors.maker(own[0]) or 0, read[own[0]]),
            site=site,
            tensors=tuple(own),
        )


def _unfilled(case: Case, leaf: int) -> list[int]:
    """The leaf, the tensors that it was made from, and their aliases, if the first of them was made without values;
    else empty."""
    chain = [leaf]
    for _ in range(_COPIES):
        made = case.query.tensors.made(chain[-1])
        if not isinstance(made, TensorMade):
            return []
        text = case.words.expression(made.site, 200)
        if made.how in UNFILLED:
            if chain == [leaf] and text and made.how not in text:
                return []  # the program itself does not call the function
            return [*chain, *case.of(_aliases).get(chain[-1], []), *case.of(_aliases).get(leaf, [])]
        if not made.source:
            is_raw = made.how in _RAW and _UNFILLED.search(text) is not None
            return [*chain, *case.of(_aliases).get(leaf, [])] if is_raw else []
        chain.append(made.source)
    return []


def _aliases(case: Case) -> dict[int, list[int]]:
    """The tensors that share the memory of each tensor."""
    states = case.trace.states
    shared = states.bases > 0
    pairs = distinct_pairs(states.bases[shared], states.tensors[shared])
    return grouped(pairs.tolist())


def _initialised(spot: Spot) -> list[Edit]:
    """`torch.randn(n) * 0.02` in place of `torch.empty(n)`."""
    source = spot.source
    for call in spot.calls_here("empty"):
        arguments = source.text[source.span(call.func)[1] : source.span(call)[1]]
        return [source.replaced(call, f"torch.randn{arguments} * 0.02")]
    return []
