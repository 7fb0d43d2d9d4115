"""`numpy-of-graph`: the program converts a tensor that requires grad to an array of NumPy.

Why it is bad: an array of NumPy has no graph, so nothing computed from it could be differentiated. PyTorch raises.

Example:

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    print(y.numpy())  # <- numpy-of-graph

Cure: use `.detach().numpy()` for a value that the program only looks at. Compute with torch what is to be
differentiated.

Not reported: a tensor that does not require grad, or that is detached.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.fix import typed_for
from gradviz.diagnose.rule import ERROR, Case, Fix, Found, Rule
from gradviz.query.source_trees import method_calls, statement_at

_MESSAGE = "Can't call numpy() on Tensor that requires grad"


@Rule("numpy-of-graph", ERROR, "a tensor that requires grad as an array of NumPy")
def numpy_of_graph(case: Case) -> Iterator[Found]:
    for failure in case.failures:
        if _MESSAGE not in failure.message:
            continue
        statement = statement_at(case.query, failure.site)
        arrays = [tensor for _, tensor in method_calls(statement, "numpy")]
        name = ast.unparse(arrays[0]) if len(arrays) == 1 else ""
        what = name or "the tensor"
        yield Found(
            f"{what} requires grad, and an array of NumPy has no graph to hand its gradient back through",
            Fix(f"{name}.detach().numpy()", typed_for(f"{name}.numpy", f"{name}.detach().numpy"))
            if name
            else "call .detach() before the tensor is given to NumPy",
            (failure.event,),
            site=failure.site,
            severity=case.severity_of(failure),
        )
