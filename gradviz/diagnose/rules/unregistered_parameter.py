"""`unregistered-parameter`: a leaf that requires grad takes part in the forward of a module whose other
parameters are trained. It gets gradients, but is not among the module's parameters(), so that no step changes it: it is
in a plain list or dict, or it is an attribute that an op made from a Parameter.

Why it is bad: `parameters()` does not list it, so no optimizer holds it, `state_dict()` does not save it and
`.to()` does not move it.

Example:

    torch.manual_seed(0)
    class Scaled(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.fc = torch.nn.Linear(size, 1)
            self.gain = torch.nn.Parameter(torch.rand(size)) * torch.full((size,), 0.5)  # <- unregistered-parameter
        def forward(self, x):
            return self.fc(x * self.gain)
    net = Scaled(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 3)).pow(2).mean().backward()
        optimizer.step()

Cure: assign the leaf as an `nn.Parameter` to an attribute of the module. Use `nn.ParameterList`, `nn.ModuleList` or
`nn.ModuleDict` in place of a plain list or dict.

Not reported: a tensor that the module gets from outside, or that another optimizer holds; a buffer that requires grad,
which libraries also have without wanting to train it.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Need, Rule, Site, Spot
from gradviz.events.kinds import ScopeEntered, TensorMade
from gradviz.query.flow import leaves_behind, reach
from gradviz.query.functions_of_source import called, function_around, nodes_of
from gradviz.query.ledger import Ledger
from gradviz.query.missing_gradients import PARAMETER
from gradviz.query.source_trees import assigned_to, method_calls, statement_at, trees

# inside a function; another function in it may make registered layers too
_COMPREHENSIONS = r"(\.<locals>\.<\w+>)*"
_TENSORS = ("Parameter", "Tensor", "FloatTensor", "Variable")  # classes that are no layers
_INIT = re.compile(rf"\w\.__init__{_COMPREHENSIONS}$")
_NEAR = 64  # the most results of a leaf, and the most ops on them, that are looked at


@Rule(
    "unregistered-parameter",
    ERROR,
    "a leaf in the forward of a module that is not among its parameters()",
    needs=(Need.TRAINING, Need.PASSES, Need.DETAILS),
)
def unregistered_parameter(case: Case) -> Iterator[Found]:
    modules = {case.model_of(tensor) for tensor in case.training.trained} - {""}
    # by the line that made them, and the forward or class around it
    found: dict[tuple[int | Site | None, str], list[int]] = {}
    for leaf in dict.fromkeys([*case.query.of(Ledger).homeless, *_beneath_failures(case)]):
        made = case.query.tensors.made(leaf)
        scopes = _modules_around(case, leaf)
        if not isinstance(made, TensorMade) or leaf in case.training.holders:
            continue
        module, name = _outermost(scopes), case.trace.parameters.get(leaf, "")
        if module in modules and not name.startswith(f"{module}.") and _is_of_a_module(case, leaf, made):
            site = _in_the_making_of(case, made.site, scopes)
            found.setdefault((site, f"the forward of {module}"), []).append(leaf)
        elif (listed := _in_a_plain_list(case, made.site)) is not None:
            found.setdefault(listed, []).append(leaf)
    for (place, around), leaves in found.items():
        events = [event for leaf in leaves[:4] if (event := case.query.tensors.maker(leaf)) is not None]
        # nothing is recorded on the line of an assignment alone: the first pass shows the gradients
        first = case.trace.passes[0] if isinstance(place, Site) and place.number == 0 else None
        its = ("gets", "is", "it") if len(leaves) == 1 else ("get", "are", "them")
        yield Found(
            f"{case.called(leaves)} {its[0]} gradients in {around}, but {its[1]} not among its parameters(): no step "
            f"changes {its[2]}",
            Fix("use nn.ModuleList, nn.ModuleDict or nn.Parameter as an attribute of the module", _registered),
            tuple(events) if first is None else (first.first, *events),
            site=place,
            number=first.number if first is not None else 0,
            tensors=tuple(leaves),
        )


def _is_of_a_module(case: Case, leaf: int, made: TensorMade) -> bool:
    """Whether a leaf is meant as a part of a module: it is a Parameter, or it was made in the `__init__` of a class
    that can be a module. Other leaves are inputs of a module: the points at which a differential equation is to hold,
    an image that is optimized."""
    if made.how == PARAMETER or leaf in case.trace.parameters:
        return True
    making = [
        caller for caller in case.query.places.callers(made.site) if "__init__" in caller.place.function.split(".")
    ]
    return any(not _is_of_a_plain_class(case, caller) for caller in making)


def _is_of_a_plain_class(case: Case, site: Site) -> bool:
    """Whether the line of a site is in a class that has no base, which is no module."""
    tree = case.query.of(trees).get(site.place.file)
    around = (
        node
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and node.lineno <= site.place.line <= (node.end_lineno or 0)
    )
    innermost = max(around, key=lambda node: node.lineno, default=None)
    return innermost is not None and not innermost.bases and not innermost.keywords


def _beneath_failures(case: Case) -> list[int]:
    """The leaves behind the node at which a pass failed, if no step changes them. Their part of the graph was made
    once, as in `self.scale = nn.Parameter(...) * 2`."""
    return [
        leaf
        for failure in case.failures
        if failure.node and not failure.handled
        for leaf in leaves_behind(case.query, [failure.node])
        if leaf not in case.training.trained
    ]


def _modules_around(case: Case, leaf: int) -> list[ScopeEntered]:
    """The modules in whose forward a leaf, or a result of the leaf, is first read; the outermost module comes first. A
    leaf that a copy or an average of it was written into is no result."""
    tensors, below = case.query.tensors, case.downstream
    if not below.readers(leaf):
        return []

    def onward(tensor: int) -> Iterator[int]:
        return (one for one in below.onward(tensor) if not tensors.is_leaf_that_requires_grad(one, case.trace.count))

    readers = {op for tensor in reach([leaf], onward, _NEAR) for op in below.readers(tensor)}
    for op in sorted(readers)[:_NEAR]:
        scopes = case.query.scopes.around(op, tensors.op(op).thread)
        if scopes:
            return scopes if tensors.is_leaf_that_requires_grad(leaf, op) else []
    return []


def _outermost(scopes: list[ScopeEntered]) -> str:
    return scopes[0].name.partition(".")[0] if scopes else ""


def _in_a_plain_list(case: Case, number: int) -> tuple[Site | None, str] | None:
    """The line in an `__init__` that puts what a site made into a plain list or dict of an attribute, or makes such a
    list the attribute, if the same call of the constructor made trained leaves, too; and the class. None if there is
    none."""
    calls = case.query.places.callers(number)
    for site, outer in pairwise(calls):
        tree, place = case.query.of(trees).get(site.place.file), site.place
        statement, constructor = statement_at(case.query, site), function_around(tree, place.line)
        nodes = ast.walk(constructor or ast.Module([], []))
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        name = assigned_to(statement)
        if isinstance(statement, ast.Expr):  # a list that begins as an empty one
            name = next((ast.unparse(filled) for _, filled in method_calls(statement, "append")), "")
        value = next((one.value for one in assigned if name and assigned_to(one) == name), None)
        kept = next((one for one in assigned if name and ast.unparse(one.value) == name), None)
        is_own = ((kept is None and name) or assigned_to(kept)).startswith("self.") and _INIT.search(place.function)
        is_plain = is_own and isinstance(value, ast.List | ast.ListComp | ast.Dict | ast.DictComp)
        if is_plain and outer.number in case.of(_constructors) and not _is_of_a_plain_class(case, site):
            own = site if kept is None else case.query.places.of_line(place.file, kept.lineno)  # of a variable
            return own, place.function.split(".")[-2]
    return None


def _constructors(case: Case) -> set[int]:
    """The sites of the calls of constructors that made trained leaves. Use `case.of(_constructors)`."""
    made = [case.query.tensors.made(leaf) for leaf in case.training.trained]
    calls = (case.query.places.callers(one.site) for one in made if one is not None)
    return {outer.number for chain in calls for site, outer in pairwise(chain) if _INIT.search(site.place.function)}


def _in_the_making_of(case: Case, site: int, scopes: list[ScopeEntered]) -> int:
    """The line that made a leaf, itself or by a call, in the `__init__` of the innermost registered module around it:
    there a plain list got the layer. The site of the leaf, if there is no such line."""
    root = _outermost(scopes)
    registered = [scope.type for scope in scopes if f"{scope.name}.".startswith(f"{root}.")]
    for type_ in registered[::-1]:
        making = re.compile(rf"(^|\.){re.escape(type_)}\.__init__{_COMPREHENSIONS}$")
        for caller in case.query.places.callers(site):
            if making.search(caller.place.function):
                return caller.number
    return site


def _registered(spot: Spot) -> list[Edit]:
    """A ModuleList or ModuleDict in place of a list or dict of layers; a Parameter in place of a tensor."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Expr):
        filled = next((one for call, one in method_calls(statement, "append") if call is statement.value), None)
        return _filled(spot, statement, filled)
    if not isinstance(statement, ast.Assign):
        return []
    if isinstance(statement.targets[0], ast.Subscript):
        return _filled(spot, statement, statement.targets[0].value)
    value = statement.value
    code = source.code(value)
    if isinstance(value, ast.Name):  # a list of the constructor
        assigned = (node for node in ast.walk(source.function(statement)) if isinstance(node, ast.Assign))
        value = next((node.value for node in assigned if source.code(node.targets[0]) == code), value)
    if isinstance(value, ast.List | ast.ListComp):
        return [source.replaced(statement.value, f"torch.nn.ModuleList({code})")]
    if isinstance(value, ast.Dict | ast.DictComp):
        return [source.replaced(statement.value, f"torch.nn.ModuleDict({code})")]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "dict"):
        return [source.replaced(value.func, f"torch.nn.Module{value.func.id.title()}")]
    if isinstance(value, ast.Call) and called(value) in ("ModuleList", "ModuleDict"):
        return []
    return [source.replaced(value, f"torch.nn.Parameter(({code}).detach())")]


def _filled(spot: Spot, statement: ast.stmt, container: ast.expr | None) -> list[Edit]:
    """A ModuleList or ModuleDict in place of the empty list or dict that a statement fills with layers, whose classes
    have capital letters. None if the line that makes it is not known."""
    source = spot.source
    values = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    is_of_layers = any(called(call)[:1].isupper() and called(call) not in _TENSORS for call in values)
    if container is None or not is_of_layers:
        return []
    for node in ast.walk(source.function(statement)):
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or source.code(node.targets[0]) != source.code(container):
            continue
        if isinstance(value, ast.List) and not value.elts:
            return [source.replaced(value, "torch.nn.ModuleList()")]
        if isinstance(value, ast.Dict) and not value.keys:
            return [source.replaced(value, "torch.nn.ModuleDict()")]
    return []
