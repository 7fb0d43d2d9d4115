"""Puts faults into the training programs of tests/zoo/training, one into each copy, and measures what `check` says.

    python tests/zoo/inject.py [--seen] [--unseen] [--held-out] [--seed WORD] [--minutes N] [--only FAULT]
                               [--programs FOLDER] [--keep FOLDER]

A fault is put wherever it fits, at most twice in a program. One that changes neither the output of the program nor how
it ends, or that Python itself refuses, is left out. *named*: a finding (an error or a warning) stands on a line of the
fault; *first*: the first finding does; *elsewhere*: there are findings, and none is on a line of the fault. Findings of
rules that report the program as it is, too, count only on a line of the fault. A third of the mutants is held out,
which one says the seed: its misses are listed only with `--held-out`, and `--unseen` runs no other. The order is one of
chance, by the seed, so that what `--minutes` leaves time for is a sample. All of it takes some half an hour on two
cores."""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import json
import math
import os
import re
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAINING = Path(__file__).parent / "training"
_PLACES = 2  # of one fault in one program
_WORKERS = 2
_SECONDS = 60  # for a program
_NOT_REACHED = "not reached"
# Of Python: the edit does not fit there, as a part of a loss that is one number.
_NO_FAULT = ("AttributeError", "IndexError", "NameError", "TypeError", "UnboundLocalError")
_OWN = re.compile(r"^(torch|F|nn|math|random|copy|optim|len|range|list|zip|print|deque|int|float|min|argparse)\b")


@dataclass(frozen=True)
class Mutant:
    """A program with one fault: its text, and the lines (from 1) at which a finding names it."""

    program: str
    fault: str
    text: str
    lines: frozenset[int]

    def draw(self, seed: str) -> bytes:
        """Random bytes of this mutant under a seed."""
        key = f"{self.program} {self.fault} {min(self.lines)}{seed}".encode()
        return hashlib.sha256(key).digest()

    def held_out(self, seed: str = "") -> bool:
        """Whether it is of the third that nobody looks at before the end."""
        return self.draw(seed)[0] % 3 == 0


class Program:
    """The text of a program, with edits that keep its lines."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text, self.lines = name, text, text.splitlines()
        self.tree = ast.parse(text)
        self.nodes = [*ast.walk(self.tree)]
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def source(self, node: ast.AST) -> str:
        """The text of a node."""
        if not isinstance(node, ast.expr | ast.stmt):
            return ""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        lines = [line.encode() for line in self.lines[first : last + 1]]  # columns are counted in UTF-8
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def with_node(self, node: Any, new: str) -> str | None:
        """The program with other text in the place of a node; None if that spans several lines."""
        if node.lineno != node.end_lineno:
            return None
        line = self.lines[node.lineno - 1]
        return self.with_line(node.lineno, line[: node.col_offset] + new + line[node.end_col_offset :])

    def with_line(self, number: int, new: str) -> str:
        """The program with another line."""
        return "\n".join([*self.lines[: number - 1], new, *self.lines[number:]]) + "\n"

    def with_more(self, statement: ast.stmt, more: str) -> str | None:
        """The program with more behind a statement, on its line."""
        if statement.lineno != statement.end_lineno:
            return None
        return self.with_line(statement.lineno, f"{self.lines[statement.lineno - 1]}; {more}")

    def calls(self, *methods: str) -> Iterator[ast.Call]:
        """The calls of methods of these names."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                yield node

    def block(self, node: ast.AST) -> set[int]:
        """The lines of the function around a node, or of the whole program."""
        while node in self.parents and not isinstance(node, ast.FunctionDef):
            node = self.parents[node]
        return set(range(getattr(node, "lineno", 1), (getattr(node, "end_lineno", 0) or len(self.lines)) + 1))

    def lines_of(self, *methods: str) -> set[int]:
        """The lines that call methods of these names."""
        return {call.lineno for call in self.calls(*methods)}

    def forward_results(self) -> Iterator[ast.Assign]:
        """Assignments of what a function or module of the program computes: `x = self.layer(x)`."""
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            called = self.source(node.value.func) if isinstance(node.value, ast.Call) else ""
            is_part = called.startswith("self.") or (called.isidentifier() and called[:1].islower())
            if is_part and not _OWN.match(called) and node.value.args and not self.under_no_grad(node):  # type: ignore[attr-defined]
                yield node

    def under_no_grad(self, node: ast.AST) -> bool:
        """Whether a node is in a block or a function without grad mode."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.With) and "no_grad" in self.source(node.items[0].context_expr):
                return True
            if isinstance(node, ast.FunctionDef) and any("no_grad" in self.source(d) for d in node.decorator_list):
                return True
        return False

    def optimizers(self) -> Iterator[tuple[ast.Assign, ast.Call]]:
        """The assignments that make optimizers."""
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
                continue
            if re.search(r"\b(SGD|Adam|AdamW|RMSprop)$", self.source(node.value.func)):
                yield node, node.value


Edit = tuple[str | None, set[int]]
Fault = Callable[[Program], Iterator[Edit]]


def _wrapped(template: str) -> Fault:
    def edits(program: Program) -> Iterator[Edit]:
        for node in program.forward_results():
            yield program.with_node(node.value, template.format(program.source(node.value))), {node.lineno}

    return edits


def _under_no_grad(program: Program) -> Iterator[Edit]:
    for node in program.forward_results():
        yield program.with_node(node, f"with torch.no_grad(): {program.source(node)}"), {node.lineno}


def _term_as_number(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            continue
        if isinstance(node.right, ast.Name) and re.match(r"(loss|kl|err|pen|hard|ent)", node.right.id):
            yield program.with_node(node.right, f"{node.right.id}.item()"), {node.lineno}


def _root_of_numbers(program: Program) -> Iterator[Edit]:
    for call in program.calls("backward"):
        root = program.source(call.func.value)  # type: ignore[attr-defined]
        new = f"{root} = torch.tensor({root}.item(), requires_grad=True); {root}.backward()"
        yield program.with_node(call, new), {call.lineno}


def _without_zero_grad(program: Program) -> Iterator[Edit]:
    for call in program.calls("zero_grad", "zero_"):
        near = program.block(call) & program.lines_of("backward", "step")
        if ".grad" in program.source(call) or "zero_grad" in program.source(call):
            yield program.with_node(call, "None"), {call.lineno, *near}


def _without_step(program: Program) -> Iterator[Edit]:
    for call in program.calls("step"):
        if "opt" in program.source(call.func).lower():
            near = program.block(call) & program.lines_of("backward")
            made = {node.lineno for node, _ in program.optimizers()}
            yield program.with_node(call, "None"), {call.lineno, *near, *made}


def _cleared_before_step(program: Program) -> Iterator[Edit]:
    optimizers = [call for call in program.calls("step") if "opt" in program.source(call.func).lower()]
    for call in program.calls("backward"):
        later = [step for step in optimizers if step.lineno > call.lineno]
        if later and later[0].lineno - call.lineno < 6:
            held = program.source(later[0].func.value)  # type: ignore[attr-defined]
            new = f"{program.source(call)}; {held}.zero_grad()"
            yield program.with_node(call, new), {call.lineno, later[0].lineno}


def _plain_list(program: Program) -> Iterator[Edit]:
    for call in program.calls("ModuleList"):
        yield program.with_node(call.func, "list"), {call.lineno}


def _part_of_the_parameters(program: Program) -> Iterator[Edit]:
    for _, call in program.optimizers():
        held = program.source(call.args[0])
        yield program.with_node(call.args[0], f"list({held})[:2]"), {call.lineno}


def _rate(value: str) -> Fault:
    def edits(program: Program) -> Iterator[Edit]:
        for _, call in program.optimizers():
            for keyword in call.keywords:
                if keyword.arg == "lr":
                    new = f"lr={value.format(program.source(keyword.value))}"
                    near = program.lines_of("step")
                    yield program.with_node(keyword, new), {call.lineno, *near}

    return edits


def _frozen(program: Program) -> Iterator[Edit]:
    for node, call in program.optimizers():
        held = re.match(r"([\w.]+)\.parameters\(\)$", program.source(call.args[0]))
        if held is not None:
            yield program.with_more(node, f"{held[1]}.requires_grad_(False)"), {node.lineno}


def _stale_optimizer(program: Program) -> Iterator[Edit]:
    for node, call in program.optimizers():
        held = re.match(r"([\w.]+)\.parameters\(\)$", program.source(call.args[0]))
        if held is not None:
            yield program.with_more(node, f"import copy; {held[1]} = copy.deepcopy({held[1]})"), {node.lineno}


def _optimizer_for_each_step(program: Program) -> Iterator[Edit]:
    for node, call in program.optimizers():
        name = program.source(node.targets[0])
        for step in program.calls("step"):
            if program.source(step.func) == f"{name}.step" and re.search("Adam|momentum", program.source(call)):
                edit = f"{program.source(node)}; {program.source(step)}"
                yield program.with_node(step, edit), {node.lineno, step.lineno}


def _scheduler_without_steps(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if not isinstance(node, ast.Assign) or "lr_scheduler" not in program.source(node.value):
            continue
        name = program.source(node.targets[0])
        for step in program.calls("step"):
            if program.source(step.func) == f"{name}.step":
                yield program.with_node(step, "None"), {node.lineno, step.lineno}


def _changed_in_place(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        if re.match(r"(torch|F)\.(tanh|exp|relu|softmax|sigmoid)\(", program.source(node.value)):
            yield program.with_more(node, f"{node.targets[0].id}.mul_(2)"), {node.lineno}


def _second_softmax(program: Program) -> Iterator[Edit]:
    for call in program.calls("cross_entropy", "nll_loss"):
        first = program.source(call.args[0])
        yield program.with_node(call.args[0], f"torch.softmax({first}, -1)"), {call.lineno}


def _broadcast(program: Program) -> Iterator[Edit]:
    for call in [*program.calls("criterion", "mse_loss", "smooth_l1_loss")]:
        if len(call.args) == 2:
            second = program.source(call.args[1])
            yield program.with_node(call.args[1], f"{second}.unsqueeze(-1)"), {call.lineno}


def _without_detach(program: Program) -> Iterator[Edit]:
    for call in program.calls("detach"):
        value = program.source(call.func.value)  # type: ignore[attr-defined]
        yield program.with_node(call, value), {call.lineno, *program.lines_of("backward")}


def _with_graph(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.With) and "no_grad" in program.source(node.items[0].context_expr):
            lines = set(range(node.lineno, (node.end_lineno or 0) + 1))
            yield program.with_node(node.items[0].context_expr, "torch.enable_grad()"), lines


def _without(method: str) -> Fault:
    def edits(program: Program) -> Iterator[Edit]:
        for call in program.calls(method):
            yield program.with_node(call, "None"), {call.lineno, *program.block(call)}

    return edits


def _early_clip(program: Program) -> Iterator[Edit]:
    for call in program.calls("backward"):
        following = program.lines[call.lineno] if call.lineno < len(program.lines) else ""
        if "clip_grad" in following:
            swapped = [*program.lines]
            swapped[call.lineno - 1], swapped[call.lineno] = following, program.lines[call.lineno - 1]
            yield "\n".join(swapped) + "\n", {call.lineno, call.lineno + 1}


def _root(template: str) -> Fault:
    def edits(program: Program) -> Iterator[Edit]:
        for call in program.calls("backward"):
            root = program.source(call.func.value)  # type: ignore[attr-defined]
            yield program.with_node(call, template.format(root)), {call.lineno}

    return edits


def _spare_layer(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.Assign) and re.match(r"self\.\w+ = nn\.Linear\(", program.source(node)):
            yield program.with_more(node, "self.spare = nn.Linear(3, 3)"), {node.lineno}


def _not_in_place(program: Program) -> Iterator[Edit]:
    for call in program.calls("add_", "sub_"):
        if ".data" in program.source(call) and "grad" not in program.source(call.func):
            func = program.source(call.func)[:-1]
            args = ", ".join(map(program.source, call.args))
            yield program.with_node(call, f"{func}({args})"), {call.lineno}


def _without_scale(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "accum" in program.source(node.right):
            yield (program.with_node(node, program.source(node.left)), {node.lineno, *program.lines_of("backward")})


def _without_create_graph(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.keyword) and node.arg == "create_graph":
            near = {node.value.lineno, *program.lines_of("backward")}
            yield program.with_node(node.value, "False"), near


def _sampled(program: Program) -> Iterator[Edit]:
    for call in program.calls("rsample"):
        new = program.source(call).replace(".rsample(", ".sample(")
        yield program.with_node(call, new), {call.lineno}


def _renamed(old: str, new: str) -> Fault:
    def edits(program: Program) -> Iterator[Edit]:
        for node in program.nodes:
            if isinstance(node, ast.Attribute) and node.attr == old and not program.under_no_grad(node):
                yield program.with_node(node, f"{program.source(node.value)}.{new}"), {node.lineno}

    return edits


def _other_axis(program: Program) -> Iterator[Edit]:
    for call in program.calls("softmax", "log_softmax"):
        for keyword in call.keywords:
            if keyword.arg == "dim":
                yield program.with_node(keyword.value, "0"), {call.lineno}


def _term(template: str) -> Fault:
    """A value in the loss, changed: of the assignment `loss = ...` or `..._loss = ...`."""

    def edits(program: Program) -> Iterator[Edit]:
        for node in program.nodes:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and re.search(r"loss$", node.targets[0].id)
                and not program.under_no_grad(node)
            ):
                yield (program.with_node(node.value, template.format(program.source(node.value))), {node.lineno})

    return edits


def _frozen_layer(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.Assign) and re.match(r"self\.\w+ = nn\.Linear\(", program.source(node)):
            target = program.source(node.targets[0])
            yield program.with_more(node, f"{target}.requires_grad_(False)"), {node.lineno}


def _started(template: str) -> Fault:
    """A layer whose weights start elsewhere."""

    def edits(program: Program) -> Iterator[Edit]:
        for node in program.nodes:
            if isinstance(node, ast.Assign) and re.match(r"self\.\w+ = nn\.Linear\(", program.source(node)):
                more = template.format(program.source(node.targets[0]))
                yield program.with_more(node, more), {node.lineno, *_uses(program, node.targets[0])}

    return edits


def _uses(program: Program, target: ast.expr) -> set[int]:
    """The lines that use an attribute."""
    name = program.source(target)
    return {n.lineno for n in program.nodes if isinstance(n, ast.Attribute) and program.source(n) == name}


def _made_anew(program: Program) -> Iterator[Edit]:
    for node in program.forward_results():
        called = program.source(node.value.func)  # type: ignore[attr-defined]
        for other in program.nodes:
            if not isinstance(other, ast.Assign) or program.source(other.targets[0]) != called:
                continue
            made = program.source(other.value)
            if re.match(r"nn\.Linear\([\w, .]*\d[\w, .]*\)$", made) and not re.search(r"[a-z_]\w*[,)]", made):
                yield program.with_node(node.value.func, made), {node.lineno}  # type: ignore[attr-defined]


def _stepped_first(program: Program) -> Iterator[Edit]:
    for call in program.calls("backward"):
        line = program.lines[call.lineno - 1]
        following = program.lines[call.lineno] if call.lineno < len(program.lines) else ""
        if re.search(r"opt\w*\.step\(\)$", following):
            swapped = [*program.lines]
            swapped[call.lineno - 1], swapped[call.lineno] = following, line
            near = program.block(call) & program.lines_of("zero_grad")
            yield "\n".join(swapped) + "\n", {call.lineno, call.lineno + 1, *near}


def _kept(program: Program) -> Iterator[Edit]:
    for node in program.nodes:
        if isinstance(node, ast.Call) and program.source(node).endswith(".item()"):
            parent = program.parents[node]
            if isinstance(parent, ast.Call) and program.source(parent.func).endswith(".append"):
                yield program.with_node(node, program.source(node)[: -len(".item()")]), {node.lineno}


def _evaluating(program: Program) -> Iterator[Edit]:
    for call in program.calls("train"):
        if not call.args:
            new = program.source(call).replace(".train()", ".eval()")
            yield program.with_node(call, new), {call.lineno, *program.block(call)}


FAULTS: dict[str, Fault] = {
    "detach": _wrapped("{}.detach()"),
    "data": _wrapped("{}.data"),
    "numpy": _wrapped("torch.from_numpy({}.detach().numpy())"),
    "no_grad": _under_no_grad,
    "term as a number": _term_as_number,
    "root of numbers": _root_of_numbers,
    "no zero_grad": _without_zero_grad,
    "no step": _without_step,
    "cleared before the step": _cleared_before_step,
    "plain list": _plain_list,
    "part of the parameters": _part_of_the_parameters,
    "rate too large": _rate("3000 * {}"),
    "rate too small": _rate("1e-12 * {}"),
    "frozen": _frozen,
    "stale optimizer": _stale_optimizer,
    "optimizer for each step": _optimizer_for_each_step,
    "scheduler without steps": _scheduler_without_steps,
    "changed in place": _changed_in_place,
    "second softmax": _second_softmax,
    "broadcast": _broadcast,
    "no detach": _without_detach,
    "target with a graph": _with_graph,
    "no train()": _without("train"),
    "no eval()": _without("eval"),
    "clipped early": _early_clip,
    "singular root": _root("({0} + ({0} - {0}).sqrt()).backward()"),
    "infinite root": _root("({0} / ({0} - {0})).backward()"),
    "backward twice": _root("{0}.backward(); {0}.backward()"),
    "unused layer": _spare_layer,
    "not in place": _not_in_place,
    "not divided": _without_scale,
    "no create_graph": _without_create_graph,
    "sample": _sampled,
    "sign": _renamed("tanh", "sign"),
    "step for relu": _renamed("relu", "sign"),
    "softmax over the batch": _other_axis,
    "loss as a number": _term("torch.tensor(({}).item(), requires_grad=True)"),
    "loss in numpy": _term("torch.tensor(({}).detach().numpy())"),
    "exponential": _term("({} + 1e4).exp()"),
    "log of 0": _term("({0}) + (({0}) * 0).log()"),
    "clamped away": _term("({}).clamp(max=-1e4)"),
    "frozen layer": _frozen_layer,
    "huge start": _started("{0}.weight.data.mul_(1e5)"),
    "start without spread": _started("nn.init.constant_({0}.weight, 0.0); nn.init.constant_({0}.bias, -50.0)"),
    "stepped first": _stepped_first,
    "losses kept": _kept,
    "eval() in place of train()": _evaluating,
    "rows cut": _wrapped("torch.cat([({0})[:1], ({0})[1:].detach()])"),
    "part cut": _wrapped("torch.cat([({0})[..., :1], ({0})[..., 1:].detach()], -1)"),
}


def programs(folder: Path = TRAINING) -> list[Program]:
    """The training programs, as they are."""
    return [Program(path.stem, path.read_text()) for path in sorted(folder.glob("*.py"))]


def mutants(program: Program, only: str = "") -> Iterator[Mutant]:
    """The program with each fault wherever it fits: at the first and at the last place."""
    for name, fault in FAULTS.items():
        if only and name != only:
            continue
        edits = [(text, lines) for text, lines in fault(program) if text is not None and _is_python(text)]
        for text, lines in edits[:1] + edits[1:][-_PLACES + 1 :]:
            yield Mutant(program.name, name, text, frozenset(lines))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def measured(name: str, text: str, folder: str) -> dict[str, Any]:
    """How a program ends, what it prints, and the findings about it, in a process of its own. To be called where no
    other threads run."""
    path = Path(folder) / f"{name}.py"
    path.write_text(text)
    answer = path.with_suffix(".json")
    child = os.fork()
    if not child:
        signal.alarm(_SECONDS)
        answer.write_text(json.dumps(_one(path)))
        os._exit(0)
    os.waitpid(child, 0)
    if not answer.exists():  # it was killed, or took too long
        answer.write_text(json.dumps({"ended": "no answer", "printed": "", "findings": []}))
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def _all(jobs: list[tuple[str, str]], folder: str, seconds: float = math.inf) -> list[dict[str, Any]]:
    """What `measured` gives for each name and text, by two processes; "not reached" where the seconds were over."""
    end = time.monotonic() + seconds
    children = []
    for worker in range(_WORKERS):
        child = os.fork()
        if not child:
            for name, text in jobs[worker::_WORKERS]:
                if time.monotonic() < end:
                    measured(name, text, folder)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    found = []
    for name, _ in jobs:
        answer = Path(folder) / f"{name}.json"
        found.append(json.loads(answer.read_text()) if answer.exists() else {"ended": _NOT_REACHED, "findings": []})
    return found


def _one(path: Path) -> dict[str, Any]:
    from gradviz.diagnose import check
    from gradviz.sources.script import Target, run
    from gradviz.tracefile import open_trace

    printed = io.StringIO()
    trace = path.with_suffix(".gradviz")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        outcome = run(Target(str(path), False, []), trace, engine="torch")
    findings = [(f.rule, f.severity, f.line, f.message) for f in check(trace).at_least("warning")]
    with open_trace(trace) as opened:
        error = opened.meta.get("error_type", "")
    trace.unlink()
    return {"ended": error or str(outcome.status), "printed": printed.getvalue(), "findings": findings}


def main() -> None:
    """Measure, and print the figures and the misses."""
    import torch
    import torch._dynamo  # which the first optimizer of a process imports

    parser = argparse.ArgumentParser()
    parser.add_argument("--held-out", action="store_true", help="list the misses of the third that is held out")
    parser.add_argument("--seen", action="store_true", help="leave out the third that is held out")
    parser.add_argument("--unseen", action="store_true", help="run the third that is held out alone")
    parser.add_argument("--seed", default="", help="another third")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no mutant later")
    parser.add_argument("--only", default="", help="one fault")
    parser.add_argument("--programs", type=Path, default=TRAINING, help="another folder of programs")
    parser.add_argument("--keep", default="", help="a folder for the mutants")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        own = programs(options.programs)
        healthy = {program.name: measured(program.name, program.text, folder) for program in own}
        for name, found in healthy.items():
            for finding in found["findings"]:
                print(f"accused: {name} {finding}")
        jobs = [mutant for program in own for mutant in mutants(program, options.only)]
        if options.seen or options.unseen:
            jobs = [job for job in jobs if job.held_out(options.seed) == options.unseen]
        jobs.sort(key=lambda job: job.draw(f"{options.seed} order"))
        named = [(f"{m.program}_{m.fault}_{n}".replace(" ", "_"), m.text) for n, m in enumerate(jobs)]
        results = _all(named, folder, options.minutes * 60)
    _report(healthy, list(zip(jobs, results, strict=True)), options.held_out, options.seed)


def _report(
    healthy: dict[str, Any], measured_: list[tuple[Mutant, dict[str, Any]]], list_held_out: bool, seed: str = ""
) -> None:
    reached = [(mutant, found) for mutant, found in measured_ if found["ended"] != _NOT_REACHED]
    print(f"reached  {len(reached)} of {len(measured_)} mutants")
    counts: dict[tuple[bool, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for mutant, found in reached:
        held, before = mutant.held_out(seed), healthy[mutant.program]
        same = (found["ended"], found.get("printed")) == (before["ended"], before["printed"])
        if same or found["ended"].endswith(_NO_FAULT):
            continue
        known = [finding[0] for finding in before["findings"]]  # of the program as it is
        own = [finding for finding in found["findings"] if finding[0] not in known or finding[2] in mutant.lines]
        at = [finding[2] in mutant.lines for finding in own]
        for key in ((held, mutant.fault), (held, "all")):
            row = counts[key]
            row[0] += 1
            row[1] += any(at)
            row[2] += bool(at[:1] == [True])
            row[3] += bool(at) and not any(at)
        if not any(at) and (not held or list_held_out):
            told = [(rule, line, message[:70]) for rule, _, line, message in found["findings"]]
            print(f"missed: {mutant.program}, {mutant.fault}, lines {sorted(mutant.lines)[:6]}: {told}")
    for (held, fault), (n, named, first, elsewhere) in sorted(counts.items()):
        what = "held out" if held else "seen"
        print(f"{what:8} {fault:26} {n:4} mutants  named {named:4}  first {first:4}  elsewhere {elsewhere:4}")
    accused = sum(bool(found["findings"]) for found in healthy.values())
    print(f"healthy  {accused} of {len(healthy)} accused")


if __name__ == "__main__":
    main()
