"""`broken-tie`: a parameter was made as a copy of another parameter of the same network
(`nn.Parameter(w.clone())`, `out.weight = copy.deepcopy(embed.weight)`), and both are trained: they differ from the
first step on.

Why it is bad: the two weights were meant to be one. Instead there are twice as many parameters, and each learns by
itself.

Example:

    torch.manual_seed(0)
    class Auto(torch.nn.Module):
        def __init__(self, n, k):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(k, n) * 0.1)
            self.w_back = torch.nn.Parameter(self.w.detach().t().clone())  # <- broken-tie
        def forward(self, x):
            return torch.tanh(x @ self.w.t()) @ self.w_back.t()
    auto = Auto(6, 3)
    opt = torch.optim.SGD(auto.parameters(), lr=0.1)
    for x in torch.randn(4, 10, 6):
        opt.zero_grad()
        torch.nn.functional.mse_loss(auto(x), x).backward()
        opt.step()

Cure: use the same Parameter in both places: `self.out.weight = self.embed.weight`.

Not reported: copies of whole layers, as in a stack of equal layers; copies that the program changes before it trains,
with noise or a factor, or while it trains. An initialiser that runs over all layers does not count as a change.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.rule import WARNING, Case, Edit, Fix, Found, Need, Rule, Spot
from gradviz.events.kinds import Kind, TensorMade
from gradviz.query.copies import original
from gradviz.query.functions_of_source import called
from gradviz.query.ops import RANDOM_STARTS
from gradviz.query.writes import Author, Writes
from gradviz.sets import common


@Rule(
    "broken-tie",
    WARNING,
    "a parameter that is made as a copy of another one, so that both are trained apart",
    needs=(Need.TRAINING, Need.DETAILS),
)
def broken_tie(case: Case) -> Iterator[Found]:
    trained, came = case.training.trained, case.trace.table(Kind.ACCUMULATED)
    sources = ((leaf, original(case.query, leaf)) for leaf in sorted(trained))
    copies = [(leaf, source) for leaf, source in sources if source in trained and source != leaf]
    for leaf, source in copies:
        first = int(came.events[came["tensor"] == leaf].min(initial=case.trace.count))
        anew = [event for event in case.query.tensors.writes(leaf) if event < first]
        # a loop over all layers gives new random values to the copy, too
        is_random = all(case.query.tensors.writer(event) in RANDOM_STARTS for event in anew)
        if _alone(case, leaf) and is_random and _tied(case, leaf, source):
            made = case.query.tensors.maker(leaf) or 0
            when = f"{case.at(anew[-1])} gives it other values, and" if anew else "from the first step on"
            yield Found(
                f"{case.words.called(leaf)} begins as a copy of {case.words.called(source)}, and both are trained: "
                f"{when} they are different weights",
                Fix(
                    "share the parameter itself: out.weight = embed.weight  # without clone() or a new Parameter",
                    _shared,
                ),
                (made, *anew[-1:]),
                tensors=(leaf, source),
            )


def _alone(case: Case, leaf: int) -> bool:
    """Whether a parameter was copied on its own. A copy of a layer copies all its parameters at one line."""
    made = case.query.tensors.maker(leaf)
    site = case.trace.events["site"][made] if made is not None else 0
    others = [
        tensor
        for tensor in case.training.trained
        if (event := case.query.tensors.maker(tensor)) is not None
        and case.trace.events["site"][event] == site
        and original(case.query, tensor)
    ]
    return len(others) == 1 and isinstance(case.query.tensors.made(leaf), TensorMade)


def _tied(case: Case, leaf: int, source: int) -> bool:
    """Whether two parameters look as if they were meant to be one: they are in one network, ops read both, a pass gives
    both a gradient, and the program writes to none of them between its passes, as it does to the rows of one alone."""
    pair, writes, began = (leaf, source), case.query.of(Writes), case.trace.passes[0].first
    late = writes.events > began
    own = ((event, one) for one in pair for event in writes.events[late & (writes.leaves == one)].tolist())
    if any(writes.author(event, one) is Author.PROGRAM for event, one in own):
        return False
    came = case.trace.table(Kind.ACCUMULATED)
    together = common(*(came["in_pass"][came["tensor"] == one] for one in pair))
    return len(together) >= 1 and len({*map(case.model_of, pair)}) == 1 and all(map(case.downstream.readers, pair))


def _shared(spot: Spot) -> list[Edit]:
    """`out.weight = embed.weight`, the parameter itself in place of a copy."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign):
        return []
    inner = statement.value
    while isinstance(inner, ast.Call):
        if called(inner) in ("Parameter", "deepcopy") and len(inner.args) == 1:
            inner = inner.args[0]
        elif called(inner) in ("clone", "detach") and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        else:
            return []
    return [source.replaced(statement.value, source.code(inner))]
