"""Cures of the training step: when gradients are cleared, clipped and used, and by which optimizer."""

from __future__ import annotations

import ast
import re

from gradviz.cures.graph_cures import updated_in_place, with_keyword
from gradviz.cures.source_text import Edit, SourceText
from gradviz.cures.spot import Spot

_INPUT_AND_RATE = 2  # the arguments of dropout before `training`
_PARTS = {"a tenth": "0.1", "a hundredth": "0.01"}  # of a learning rate


def cleared_before(spot: Spot) -> list[Edit]:
    """`optimizer.zero_grad()` before the backward of the finding's line; `w.grad = None` for steps by hand."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    clearing = _clearing(spot, statement)
    return [source.before(statement, clearing)] if clearing else []


def _clearing(spot: Spot, statement: ast.stmt) -> str:
    """The statement that clears gradients: `zero_grad()` of an optimizer that steps in this function, or `.grad = None`
    of each leaf. Empty if the optimizer is not known."""
    source = spot.source
    by_hand = re.match(r"([\w.]+)\.grad = None", spot.finding.fix)
    if by_hand is not None:
        names = [spot.query.names.of(tensor) for tensor in spot.finding.tensors]
        known = [name for name in names if name and re.fullmatch(r"[A-Za-z_]\w*", name)] or [by_hand[1]]
        return " = ".join(f"{name}.grad" for name in dict.fromkeys(known)) + " = None"
    held = {name for _, _, name in spot.optimizers()}
    area = source.function(statement)
    steps = [spot.receiver(call) for call in source.calls("step", within=area)]
    stepping = [name for name in steps if name in held or "opt" in name.lower()]
    if stepping:
        return f"{stepping[0]}.zero_grad()"
    return f"{min(held)}.zero_grad()" if len(held) == 1 else ""


def cleared_elsewhere(spot: Spot) -> list[Edit]:
    """A call of zero_grad() moved from between backward() and step() to before backward(); or a step() before
    backward() moved behind it."""
    source, statement = spot.source, spot.statement
    if statement is not None and ".backward()  # before" in spot.finding.fix:
        return _stepped_later(spot, statement)
    clearings = spot.calls_here("zero_grad", "zero_")
    if statement is None or not clearings or not isinstance(statement, ast.Expr):
        return []
    clearing = source.statement(clearings[0])
    block = source.siblings(clearing)
    earlier = block[: block.index(clearing)]
    passes = [other for other in earlier if source.calls("backward", within=other)]
    if not passes:
        return _cleared_behind_the_step(spot, clearing)
    target = passes[-1]
    return [source.removed(clearing), source.before(target, source.code(clearing))]


def _stepped_later(spot: Spot, statement: ast.stmt) -> list[Edit]:
    source, block = spot.source, spot.source.siblings(statement)
    later = block[block.index(statement) + 1 :]
    passes = [other for other in later if source.calls("backward", within=other)]
    return [source.removed(statement), source.after(passes[0], source.code(statement))] if passes else []


def _cleared_behind_the_step(spot: Spot, clearing: ast.stmt) -> list[Edit]:
    """A clearing in each round, moved behind a step that is made in some rounds only."""
    source, loop = spot.source, spot.source.loop(clearing)
    steps = source.calls("step", within=loop) if loop is not None else []
    rare = [step for step in steps if isinstance(source.parent(source.statement(step)), ast.If)]
    if not rare:
        return []
    return [source.removed(clearing), source.after(source.statement(rare[0]), source.code(clearing))]


def cleared_for_each(spot: Spot) -> list[Edit]:
    """`zero_grad()` of the optimizer that steps next, before each backward() that has none before it."""
    source = spot.source
    edits = []
    for call in source.calls("backward"):
        area = source.function(call)
        after = [step for step in source.calls("step", within=area) if source.span(step) > source.span(call)]
        statement = source.statement(call)
        block = source.siblings(statement)
        before = block[: block.index(statement)][-1:]
        if after:
            clearing = f"{spot.receiver(after[0])}.zero_grad()"
            if not any(source.code(other) == clearing for other in before):
                edits.append(source.before(statement, clearing))
    return edits


def added_to_gradient(spot: Spot) -> list[Edit]:
    """`p.grad = p.grad + g` in place of `p.grad = g`, if there is a `p.grad`."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign):
        return []
    target, value = source.code(statement.targets[0]), source.code(statement.value)
    return [source.replaced(statement.value, f"{value} if {target} is None else {target} + {value}")]


def clipped_between(spot: Spot) -> list[Edit]:
    """A statement that clips gradients, moved before the step in its block."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    loop = source.loop(statement)
    if loop is not None and not source.calls("step", within=loop):
        statement = loop
    block = source.siblings(statement)
    steps = [other for other in block if source.calls("step", within=other)]
    if not steps:
        return []
    return [source.removed(statement), source.before(steps[0], _one_line(source.code(statement)))]


def _one_line(code: str) -> str:
    """The code of a loop with one statement, on one line, so that it fits any indentation."""
    head, _, body = code.partition("\n")
    return f"{head} {body.strip()}" if body and "\n" not in body else code


def unscaled_before(spot: Spot) -> list[Edit]:
    """`scaler.unscale_(optimizer)` before the clipping."""
    source, statement = spot.source, spot.statement
    steps = [call for call in source.calls("step") if "scaler" in spot.receiver(call).lower() and call.args]
    if statement is None or not steps:
        return []
    held = source.code(steps[0].args[0])
    return [source.before(statement, f"{spot.receiver(steps[0])}.unscale_({held})")]


def scheduled_behind(spot: Spot) -> list[Edit]:
    """The step of a scheduler moved behind the step of the optimizer, or out of the inner loop."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    code = source.code(statement)
    if "outside of the loop" in spot.finding.fix:
        loop = source.loop(statement)
        return [source.removed(statement), source.after(loop, code)] if loop is not None else []
    block = source.siblings(statement)
    held = {name for _, _, name in spot.optimizers()}
    for other in block:
        steps = [call for call in source.calls("step", within=other) if spot.receiver(call) in held]
        if steps and other is not statement:
            target = source.statement(steps[0])
            return [source.removed(statement), source.after(target, code)]
    return []


def smaller_rate(spot: Spot) -> list[Edit]:
    """A tenth or a hundredth of the learning rate, as the cure says, at the optimizer that steps at the line, or at the
    only optimizer."""
    factor = next((part for word, part in _PARTS.items() if word in spot.finding.fix), "")
    source, made = spot.source, list(spot.optimizers())
    stepping = {spot.receiver(call) for call in spot.calls_here("step")}
    stepping_here = [call for node, call, name in made if name in stepping or node is spot.statement]
    for call in stepping_here or ([made[0][1]] if len(made) == 1 else []):
        for keyword in call.keywords:
            if keyword.arg == "lr" and factor:
                return [source.replaced(keyword.value, f"{factor} * {source.code(keyword.value)}")]
    return []


def divided(spot: Spot) -> list[Edit]:
    """`(loss / 4).backward()`."""
    count = re.search(r"/ (\d+)\)", spot.finding.fix)
    for call in spot.calls_here("backward"):
        if count is not None and isinstance(call.func, ast.Attribute):
            root = call.func.value
            return [spot.source.replaced(root, f"({spot.source.code(root)} / {count[1]})")]
    return []


def reduced(spot: Spot) -> list[Edit]:
    """`loss.mean().backward()`."""
    for call in spot.calls_here("backward"):
        if not call.args and not call.keywords and isinstance(call.func, ast.Attribute):
            root = call.func.value
            return [spot.source.replaced(root, f"{spot.source.code(root)}.mean()")]
    return []


def held_by_the_optimizer(spot: Spot) -> list[Edit]:
    """The forgotten parameters in the optimizer, as its argument or as a new group; or the missing step."""
    source, fix = spot.source, spot.finding.fix
    copied = re.fullmatch(r"(.+\.data\.copy_\(.+\))  # in place", fix)
    if copied is not None and spot.statement is not None:
        return [source.replaced(spot.statement, copied[1])]
    if "in place" in fix:
        return updated_in_place(spot)
    if fix.endswith(".step()  # after backward()"):
        return _stepped(spot)
    statement = spot.statement
    if statement is None:
        return []
    whole = re.match(r"[\w.]+\(([\w.\[\]]+\.parameters\(\))", fix)
    part = re.search(r"\*([\w.\[\]]+\.parameters\(\))\]", fix)
    made_here = [(node, call, name) for node, call, name in spot.optimizers() if node is statement]
    if made_here and part is not None:
        return [source.after(statement, f'{made_here[0][2]}.add_param_group({{"params": list({part[1]})}})')]
    if made_here and whole is not None and made_here[0][1].args:
        return [source.replaced(made_here[0][1].args[0], whole[1])]
    if "add_param_group" in fix and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        held = [name for _, _, name in spot.optimizers()]
        module = spot.receiver(statement.value)
        if len(held) == 1 and module:
            return [
                source.after(
                    statement, f'{held[0]}.add_param_group({{"params": list({module}.parameters())}})'
                )
            ]
    return []


def _stepped(spot: Spot) -> list[Edit]:
    """`step()` of the only optimizer behind backward()."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    cleared = source.calls("zero_grad", within=source.function(statement))
    names = [name for _, _, name in spot.optimizers()] or [spot.receiver(call) for call in cleared]
    held = list(dict.fromkeys(names))
    if len(held) != 1:
        return []
    call = next(iter(spot.calls_here("backward")), None) or spot.backward_before(statement)
    return [source.after(source.statement(call), f"{held[0]}.step()")] if call is not None else []


def made_after(spot: Spot) -> list[Edit]:
    """Other parameters for an optimizer; or the optimizer made again after the line that replaces its parameters."""
    source, statement = spot.source, spot.statement
    whole = re.search(r"\b\w+\(([\w.\[\]]+\.parameters\(\))", spot.finding.fix)
    if statement is None:
        return []
    made_here = [call for made, call, _ in spot.optimizers() if made is statement and call.args]
    if made_here:
        return [source.replaced(made_here[0].args[0], whole[1])] if whole is not None else []
    for made, _, _ in spot.optimizers():
        if source.function(made) is source.function(statement) and made.lineno < statement.lineno:
            return [source.after(statement, source.code(made))]
    return []


def evaluated(spot: Spot) -> list[Edit]:
    """`model.eval()` before a statement and `model.train()` behind it; or `model.train()` before a statement; or
    dropout only in training."""
    source, statement = spot.source, spot.statement
    if "training=self.training" in spot.finding.fix:
        return _dropped_in_training(spot)
    cure = re.match(r"([\w.]+)\.(eval|train)\(\)", spot.finding.fix)
    if statement is None or cure is None:
        return []
    model = cure[1]
    if cure[2] == "train":
        return [source.before(statement, f"{model}.train()")]
    for outer in source.around(statement):
        code = source.code(outer.items[0].context_expr) if isinstance(outer, ast.With) else ""
        mode = re.search(r"set_grad_enabled\((\w+)\)", code)
        if mode is not None and isinstance(outer, ast.With):
            return [source.before(outer, f"{model}.train({mode[1]})")]
    before = source.before(statement, f"{model}.eval()")
    if isinstance(statement, ast.Return):
        return [before]
    return [before, source.after(statement, f"{model}.train()")]


def _dropped_in_training(spot: Spot) -> list[Edit]:
    """`F.dropout(x, p, training=self.training)` in a method of a module, in place of `nn.Dropout(p)(x)`, too."""
    calls, statement = spot.calls_here("dropout"), spot.statement
    method = spot.source.function(statement) if statement is not None else None
    is_method = isinstance(method, ast.FunctionDef) and [a.arg for a in method.args.args[:1]] == ["self"]
    layers = spot.calls_here("Dropout")
    if is_method and len(layers) == 1:
        return _by_a_function(spot.source, layers[0])
    if len(calls) != 1 or not is_method or len(calls[0].args) > _INPUT_AND_RATE:
        return []
    return [with_keyword(spot.source, calls[0], "training=self.training")]


def _by_a_function(source: SourceText, layer: ast.Call) -> list[Edit]:
    """`F.dropout(x, p, training=self.training)` for the call of a layer that is made in the same expression."""
    call = source.parent(layer)
    if not isinstance(call, ast.Call) or call.func is not layer or len(call.args) != 1:
        return []
    rates = [source.code(argument) for argument in (*layer.args, *layer.keywords)]
    arguments = ", ".join([source.code(call.args[0]), *rates, "training=self.training"])
    return [source.replaced(call, f"torch.nn.functional.dropout({arguments})")]


def downhill(spot: Spot) -> list[Edit]:
    """The update of the cure: `w -= rate * w.grad` in place of `w += rate * w.grad`."""
    statement, cure = spot.statement, spot.finding.fix
    is_update = re.search(r" -= | = |\.sub_\(", cure) is not None
    return [spot.source.replaced(statement, cure)] if statement is not None and is_update else []


def copied(spot: Spot) -> list[Edit]:
    """`first = w.grad.clone()` in place of `first = w.grad`."""
    statement = spot.statement
    if not isinstance(statement, ast.Assign):
        return []
    end = spot.source.span(statement.value)[1]
    return [Edit(end, end, ".clone()")]


def scheduled_in_the_loop(spot: Spot) -> list[Edit]:
    """`scheduler.step()` at the end of the first loop after the line that makes the scheduler."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    block = source.siblings(statement)
    loops = (other for other in block[block.index(statement) :] if isinstance(other, ast.For | ast.While))
    loop = next(loops, None)
    step = spot.finding.fix.partition("  #")[0]
    return [source.after(loop.body[-1], step)] if loop is not None else []


def made_before_the_loop(spot: Spot) -> list[Edit]:
    """The line that makes the optimizer moved before the outermost loop, if it needs no name that the loop sets."""
    source, statement = spot.source, spot.statement
    around = source.around(statement) if statement is not None else ()
    loops = [node for node in around if isinstance(node, ast.For | ast.While)]
    if statement is None or not loops or "model" in spot.finding.fix:
        return []
    if _names(statement, ast.Load) & _names(loops[-1], ast.Store):
        return []
    return [source.removed(statement), source.before(loops[-1], source.code(statement))]


def _names(tree: ast.AST, how: type[ast.expr_context]) -> set[str]:
    """The names that a tree reads (`ast.Load`) or sets (`ast.Store`)."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, how)}
