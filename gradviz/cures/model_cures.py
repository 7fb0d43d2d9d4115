"""Cures of the model: parameters that are registered, trained, initialised, shared and used."""

from __future__ import annotations

import ast
import re

from gradviz.cures.source_text import Edit, SourceText
from gradviz.cures.spot import Spot
from gradviz.query.functions_of_source import called

_FLAG = "requires_grad"


def trainable(spot: Spot) -> list[Edit]:
    """`requires_grad = True` in place of False at the line that freezes; no line that undoes a freezing; the attribute
    that a misspelt one was meant to be."""
    source, statement = spot.source, spot.statement
    if statement is not None and spot.finding.fix.startswith("leave out this line"):
        return [source.removed(statement)]
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Attribute) and target.attr != _FLAG and f".{_FLAG} = " in spot.finding.fix:
        return [source.replaced(target, f"{source.code(target.value)}.{_FLAG}")]
    if statement is not None and spot.finding.fix.endswith(".requires_grad_(False)"):
        return [
            source.replaced(statement, spot.finding.fix)
        ]  # a module has the method, and no such attribute
    if isinstance(statement, ast.Assign) and source.code(statement.value) == "False":
        return [source.replaced(statement.value, "True")]
    for call in spot.calls_here("requires_grad_"):
        if call.args and source.code(call.args[0]) == "False":
            return [source.replaced(call.args[0], "True")]
    return []


_TENSORS = ("Parameter", "Tensor", "FloatTensor", "Variable")  # classes that are no layers


def registered(spot: Spot) -> list[Edit]:
    """A ModuleList or ModuleDict in place of a list or dict of layers; a Parameter in place of a tensor."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Expr):
        return _registering(spot, statement, _appended_to(statement.value))
    if not isinstance(statement, ast.Assign):
        return []
    if isinstance(statement.targets[0], ast.Subscript):
        return _registering(spot, statement, statement.targets[0].value)
    value = statement.value
    code = source.code(value)
    if isinstance(value, ast.List | ast.ListComp):
        return [source.replaced(value, f"torch.nn.ModuleList({code})")]
    if isinstance(value, ast.Dict | ast.DictComp):
        return [source.replaced(value, f"torch.nn.ModuleDict({code})")]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "dict"):
        return [
            source.replaced(
                value.func, "torch.nn.ModuleList" if value.func.id == "list" else "torch.nn.ModuleDict"
            )
        ]
    if isinstance(value, ast.Call) and called(value) in ("ModuleList", "ModuleDict"):
        return []
    return [source.replaced(value, f"torch.nn.Parameter(({code}).detach())")]


def _appended_to(value: ast.expr) -> ast.expr | None:
    """The list that an expression appends to; None for any other expression."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    return value.func.value if value.func.attr == "append" else None


def _registering(spot: Spot, statement: ast.stmt, container: ast.expr | None) -> list[Edit]:
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


def initialised(spot: Spot) -> list[Edit]:
    """`torch.randn(n) * 0.02` in place of `torch.empty(n)`."""
    source = spot.source
    for call in spot.calls_here("empty"):
        arguments = source.text[source.span(call.func)[1] : source.span(call)[1]]
        return [source.replaced(call, f"torch.randn{arguments} * 0.02")]
    return []


def started_otherwise(spot: Spot) -> list[Edit]:
    """An initialiser in place of the call that wrote the first values."""
    cure = re.match(r"(torch\.nn\.init\.\w+\(.+\))  # in place of this call", spot.finding.fix)
    if cure is None or not isinstance(spot.expression, ast.Call):
        return []
    return [spot.source.replaced(spot.expression, cure[1])]


def shared(spot: Spot) -> list[Edit]:
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


def removed_layer(spot: Spot) -> list[Edit]:
    """The removal of a layer that nothing uses, if nothing else in the file names it."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    target = statement.targets[0]
    if not isinstance(target, ast.Attribute | ast.Name):
        return []
    name = target.attr if isinstance(target, ast.Attribute) else target.id
    uses = len(re.findall(rf"\b{re.escape(name)}\b", source.text))
    return [source.removed(statement)] if uses == 1 else []


def copied_state(spot: Spot) -> list[Edit]:
    """A copy of the state_dict in place of the state_dict; or the trained model in place of the evaluated model, or of
    the one that loads its own state_dict."""
    source = spot.source
    for call in spot.calls_here("load_state_dict"):
        if spot.finding.fix.startswith(f"{source.code(call.func)}("):
            return [source.replaced(call, spot.finding.fix)]
    for call in spot.calls_here("state_dict"):
        if "deepcopy" in spot.finding.fix:
            return [source.replaced(call, f"{{k: v.clone() for k, v in {source.code(call)}.items()}}")]
    cure = re.match(r"evaluate ([\w.]+), or copy its weights: ([\w.]+)\.load_state_dict", spot.finding.fix)
    statement = spot.statement
    if cure is None or statement is None:
        return []
    held = [
        n
        for n in ast.walk(statement)
        if isinstance(n, ast.Name | ast.Attribute) and source.code(n) == cure[2]
    ]
    return [source.replaced(held[0], _beside(cure[2], cure[1]))] if held else []


def _beside(old: str, new: str) -> str:
    """The new name as it is written in the place of the old name: `self.net` for `net` beside `self.ema`."""
    return f"self.{new}" if old.startswith("self.") and not new.startswith("self.") else new


def right_signature(spot: Spot) -> list[Edit]:
    """A backward that returns one gradient for each input of its forward."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Return) or statement.value is None:
        return []
    owner = next((node for node in source.around(statement) if isinstance(node, ast.ClassDef)), None)
    forwards = [
        n for n in (owner.body if owner else []) if isinstance(n, ast.FunctionDef) and n.name == "forward"
    ]
    if not forwards:
        return []
    has_context = not any(isinstance(n, ast.FunctionDef) and n.name == "setup_context" for n in owner.body)  # type: ignore[union-attr]
    wanted = len(forwards[0].args.args) - has_context
    value = statement.value
    parts = [source.code(e) for e in value.elts] if isinstance(value, ast.Tuple) else [source.code(value)]
    parts = (parts + ["None"] * wanted)[:wanted]
    return [source.replaced(value, ", ".join(parts))]


def passed_on(spot: Spot) -> list[Edit]:
    """A hook that returns the gradient as it is; or the removal of a line that registers a hook."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Return) and statement.value is not None:
        function = source.function(statement)
        arguments = getattr(function, "args", None)
        if arguments is not None and arguments.args:
            return [source.replaced(statement.value, arguments.args[-1].arg)]
    if isinstance(statement, ast.Expr) and spot.calls_here("register_hook", "register_full_backward_hook"):
        return [source.removed(statement)]
    return []


def as_leaf(spot: Spot) -> list[Edit]:
    """`x.requires_grad_()` after the only assignment of the name in the cure."""
    cure = re.match(r"([A-Za-z_]\w*)\.requires_grad_\(\)", spot.finding.fix)
    statement = spot.statement
    if cure is None or statement is None:
        return []
    return _leaf_of(spot.source, cure[1])


def _leaf_of(source: SourceText, name: str) -> list[Edit]:
    made = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
    ]
    return [source.after(made[0], f"{name}.requires_grad_()")] if len(made) == 1 else []
