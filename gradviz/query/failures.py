"""The exceptions that left a backward pass or ended the program, and the roots of the calls of backward() that
PyTorch refused."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradviz.events.kinds import ErrorRaised, Kind, OpRan, TensorMade
from gradviz.query.functions_of_source import function_around
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.tracefile import Site


class Failure(NamedTuple):
    """An exception. `event` is the event that records it, or the last event before it; `site` is where it was raised,
    None if unknown. `node` and `number` (the pass) are 0 if it was raised outside of a pass. `handled` is whether the
    program caught it and continued."""

    message: str
    event: int
    site: Site | None
    node: int = 0
    number: int = 0
    handled: bool = False


def failures(query: Query) -> list[Failure]:
    """The exceptions of a run, in order."""
    table = query.trace.table(Kind.ERROR)
    ended, site_of = query.trace.meta.get("error", ""), query.places.site
    raised = [
        Failure(one.message, one.index, site_of(one.site), one.node, one.in_pass, one.message not in ended)
        for one in map(table.object, table.events.tolist())
    ]
    if ended and not any(failure.message and failure.message in ended for failure in raised):
        file, number = query.trace.meta.get("error_file", ""), query.trace.meta.get("error_line", "")
        site = query.places.of_line(file, int(number) if number.isdecimal() else 0)
        raised.append(Failure(ended, query.trace.count - 1, site))
    return raised


_MESSAGE = "does not require grad and does not have a grad_fn"
_REFUSALS = (_MESSAGE, "grad can be implicitly created only", "Mismatch in shape: grad_output")
_CALL = re.compile(r"\s*([\w.]+)\.backward\(|.*\bgrad\(\s*(?:outputs\s*=\s*)?([\w.]+)\s*,")


def is_refusal(error: ErrorRaised) -> bool:
    """Whether an error refused a pass before it began."""
    return not error.in_pass and any(text in error.message for text in _REFUSALS)


def refused_root(query: Query, error: ErrorRaised) -> int:
    """The tensor that a refused backward() was called on: by its node, or by its name in the source, if it is as the
    refusal says; 0 if neither is known."""
    tensors = query.nodes.tensors(error.node) if error.node else []
    if tensors:
        return tensors[0]
    for named in _named(query, error.index, query.places.site(error.site)):
        if _MESSAGE not in error.message or not query.tensors.requires_grad(named, error.index):
            return named
    return 0


def refused(query: Query) -> list[tuple[Failure, int]]:
    """The calls that were refused because the root does not require grad, in order, each with the root (0 if
    unknown)."""
    return [(failure, _root(query, failure)) for failure in failures(query) if _MESSAGE in failure.message]


def _root(query: Query, failure: Failure) -> int:
    """The tensor without requires_grad that backward() was called on: by its name in the source, else the last tensor
    that was made."""
    for named in _named(query, failure.event, failure.site):
        if not query.tensors.requires_grad(named, failure.event):
            return named
    made = query.trace.indices(Kind.OP, Kind.TENSOR)
    made = made[made <= failure.event]
    event = query.trace.event(int(made[-1])) if len(made) else None
    if isinstance(event, OpRan):
        return event.outputs[0] if event.outputs else 0
    return event.tensor if isinstance(event, TensorMade) else 0


def _named(query: Query, event: int, site: Site | None) -> Iterator[int]:
    """The tensors that a line may call backward() on, or grad() with, by the name in the line. If that is the parameter
    of a function, also the tensors of the names that calls pass to it."""
    call = _CALL.match(query.places.line_text(site.number)) if site is not None else None
    if site is None or call is None:
        return
    name = call[1] or call[2]
    for other in (name, *_arguments(query.of(trees).get(site.place.file), site.place.line, name)):
        owner = query.names.tensor_called(other.removesuffix(".grad"), event)
        tensor = query.tensors.grad(owner, event) if owner and other.endswith(".grad") else owner
        if tensor:
            yield tensor


def _arguments(tree: ast.Module | None, line: int, name: str) -> Iterator[str]:
    """The arguments that calls of the function around a line pass to its parameter of a name."""
    function = function_around(tree, line)
    parameters = [parameter.arg for parameter in function.args.args] if function is not None else []
    if tree is None or function is None or name not in parameters:
        return
    at = parameters.index(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function.name and at < len(node.args):
            yield ast.unparse(node.args[at])
