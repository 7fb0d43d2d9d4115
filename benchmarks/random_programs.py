"""What `check` says about training programs that nobody wrote: drawn from a grammar, each with one known fault, and its
healthy twin, which is the same program without the fault.

    python benchmarks/random_programs.py [--count 300] [--seed 0] [--jobs 2] [--only FAULT] [--misses] [--keep FOLDER]

The grammar draws layers and how `forward` joins them, losses and further terms, optimizers, schedules, loops, helper
functions, names and data. A fault is another text of a line that the program has anyway, so that each fault meets all
surroundings. *named*: a finding stands on a line of the fault; *first*: the first finding does; *innocent*: an error or
a warning stands on another line (of a twin: on any line). `--misses` prints what was said where the fault was not
named first, or a line was innocent; `--keep` keeps the programs and their traces. The same seed draws the same
programs.

A line of the grammar is `TEXT #MARK ?? FAULT: OTHER ?? FAULT: OTHER`: `$name` stands for what was drawn, `;;` begins a
new line, and an OTHER that is empty leaves the line out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from string import Template

from common import machine, table

Said = list[tuple[str, str, int, str]]  # of findings: severity, rule, line, message

# A fault may also be named where its cure can be typed: at lines with these marks. Of a line that is left out, the
# lines beside it count.
MARKS = {
    "no zero_grad": "pass step", "no step": "pass step optimizer", "term forgotten": "root term", "term cut": "term",
    "no train": "evaluate call", "left unused": "side", "rate huge": "step", "rate tiny": "step", "rate gone": "step",
    "graph kept": "kept", "clipped late": "step",
}  # fmt: skip


@dataclass
class Program:
    """A program being drawn. `target` is the fault to put in and at which of its places; None draws the twin. `places`
    counts the places of each fault, `drawn` has what names stand for."""

    random: Random
    target: tuple[str, int] | None = None
    lines: list[str] = field(default_factory=list)
    drawn: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    marked: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    changed: set[int] = field(default_factory=set)

    def write(self, grammar: str, depth: int = 0, **names: str) -> None:
        """Write the lines of a piece of the grammar."""
        for line in filter(str.strip, grammar.splitlines()):
            text, *others = line.strip().split(" ?? ")
            text, _, mark = text.partition(" #")
            is_changed, indent = False, " " * (len(line) - len(line.lstrip()) + 4 * depth)
            for fault, _, other in (one.partition(":") for one in others):
                self.places[fault] += 1
                if self.target == (fault, self.places[fault]):
                    text, is_changed = other[1:], bool(other)
                    if not other:
                        self.changed |= {len(self.lines), len(self.lines) + 1}
            for part in Template(text).substitute(self.drawn | names).split(";;") if text else ():
                self.lines.append(indent + (part if part.startswith("  ") else part.strip()))
                self.marked[mark].add(len(self.lines))
                if is_changed:
                    self.changed.add(len(self.lines))

    def one_of(self, *texts: str) -> str:
        """One of these texts."""
        return self.random.choice(texts)

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.random.random() < share

    def guilty(self) -> set[int]:
        """The lines at which a finding names the fault."""
        marks = MARKS.get(self.target[0], "").split() if self.target else []
        return self.changed.union(*(self.marked[mark] for mark in marks))


# --- networks

ENTRANCES = {
    "Linear($inputs, $width)": """
$h = $act(self.enter($x)) ?? cut: $h = $act(self.enter($x)).detach() ?? data: $h = $act($x @ self.enter.weight.data.t())
""",
    "GRUCell($inputs, $width)": """
$h = torch.zeros(len($x), $width)
for t in range($x.shape[1]):
    $h = self.enter($x[:, t], $h) ?? partly cut: $h = self.enter($x[:, t], $h.detach())
""",
    "LSTM($inputs, $width, batch_first=True)": """
$h = self.enter($x)[0][:, -1] ?? cut: $h = self.enter($x)[0][:, -1].data
""",
    "Conv1d($inputs, $width, 3, padding=1)": """
$h = $act(self.enter($x.transpose(1, 2))).mean(2) ?? cut: $h = $act(self.enter($x.transpose(1, 2)).detach()).mean(2)
""",
    "Linear($inputs, 3 * $width)": """
q, k, v = self.enter($x).chunk(3, -1)
scores = q @ k.transpose(1, 2) / $width ** 0.5 ?? partly cut: scores = (q @ k.transpose(1, 2)).detach() / $width ** 0.5
$h = (scores.softmax(-1) @ v).mean(1) ?? axis: $h = (scores.softmax(0) @ v).mean(1)
""",
}
LAYERS = (
    "Linear($width, $width)",
    "Sequential(nn.Linear($width, 2 * $width), nn.$layer(), nn.Linear(2 * $width, $width))",
    "Sequential(nn.LayerNorm($width), nn.Linear($width, $width), nn.$layer())",
    "Sequential(nn.Linear($width, $width), nn.BatchNorm1d($width), nn.$layer())",
)
JOINS = (
    "$h = $act($call) ?? no grad: with torch.no_grad():;;    $h = $act($call) ?? cut: $h = $act($behind)",
    "$h = $h + $call ?? cut: $h = $h + $call.detach() ?? partly cut: $h = $h + $behind ?? dropped: $h + $call",
    "$h = $h * torch.sigmoid($call) ?? cut: $h = $h * torch.sigmoid($call.data)"
    " ?? rounded: $h = $h * torch.sigmoid($call).round()",
    "side = $call #side ?? cut: side = $call.detach()\n$h = $act(0.7 * $h + side) ?? left unused: $h = $act(0.7 * $h)",
    "$h = torch.stack([$h, $call]).mean(0) ?? cut: $h = torch.stack([$h, torch.tensor($call.tolist())]).mean(0)",
)


def network(p: Program, name: str, inputs: int, outputs: int, steps: bool = False) -> None:
    """A class with this name, which takes (N, inputs), or with `steps` (N, T, inputs), and gives (N, outputs)."""
    kinds = [*ENTRANCES]
    enter = p.random.choice(kinds[1:] if steps else kinds[:1])
    p.drawn |= {"inputs": str(inputs), "outputs": str(outputs), "width": p.one_of("8", "12", "16"), "name": name}
    p.drawn |= {"x": p.one_of("x", "inp", "features"), "h": p.one_of("h", "z", "out", "hid")}
    p.drawn["act"] = p.one_of("torch.relu", "torch.tanh", "F.gelu", "F.silu", "F.elu")
    names = p.random.sample(["block", "mix", "trunk", "inner", "proj", "refine", "deep"], p.random.randint(1, 3))
    is_list, drops = len(names) > 1 and p.chance(0.3), p.chance(0.3)
    p.write(
        f"class $name(nn.Module):;;    def __init__(self):\n        super().__init__()\n        self.enter = nn.{enter}"
    )
    if is_list:
        all_of = ", ".join("nn.Linear($width, $width)" for _ in names)
        p.write(f"self.stack = nn.ModuleList([{all_of}]) ?? unregistered: self.stack = [{all_of}]", 2)
    for layer in [] if is_list else names:
        text = f"self.{layer} = nn.{p.one_of(*LAYERS)}"
        p.write(f"{text} ?? frozen: {text}.requires_grad_(False)", 2, layer=p.one_of("ReLU", "Tanh", "GELU"))
    if drops:
        p.write("self.drop = nn.Dropout(0.2)", 2)
    p.write("self.leave = nn.Linear($width, $outputs)", 2)
    p.write("def forward(self, $x):", 1)
    p.write(ENTRANCES[enter], 2)
    if is_list:
        p.write("for layer in self.stack:", 2)
        p.write(
            p.one_of(*JOINS), 3, call="layer($h)".replace("$h", p.drawn["h"]), behind=f"layer({p.drawn['h']}.detach())"
        )
    for layer in [] if is_list else names:
        call = f"self.{layer}({p.drawn['h']})"
        p.write(p.one_of(*JOINS), 2, call=call, behind=call.replace(")", ".detach())"))
    if drops:
        p.write("$h = self.drop($h)", 2)
    p.write("return self.leave($h) ?? made anew: return nn.Linear($width, $outputs)($h)", 2)


# --- optimizers and updates


def optimizer(p: Program, name: str, parameters: str, faults: str = "") -> str:
    """An optimizer called `name`; `faults` is `FAULT: PARAMETERS` of others. Returns its class."""
    rates = {"SGD": 0.05, "Adam": 0.003, "AdamW": 0.003, "RMSprop": 0.001, "Adagrad": 0.02}
    kind = p.random.choice([*rates])
    more = (", momentum=0.9" if kind == "SGD" and p.chance(0.5) else "") + (
        ", weight_decay=1e-4" if p.chance(0.2) else ""
    )
    made = f"{name} = torch.optim.{kind}({{}}, lr={{:g}}{more})".format
    fault, _, others = faults.partition(": ")
    text = f"{made(parameters, rates[kind])} #optimizer ?? rate huge: {made(parameters, rates[kind] * 1e5)}"
    p.write(
        f"{text} ?? rate tiny: {made(parameters, 1e-12)}" + f" ?? {fault}: {made(others, rates[kind])}" * bool(fault)
    )
    return kind


def update(p: Program, depth: int, opt: str, loss: str, schedule: str = "") -> None:
    """The lines from the loss to the step."""
    loops = f"for group in {opt}.param_groups:;;    for q in group['params']:;;        q.grad = None"
    clear = (f"{opt}.zero_grad()" if p.chance(0.7) else loops) + " ?? no zero_grad:"
    backward, step = f"{loss}.backward()", f"{opt}.step()"
    clip = f"torch.nn.utils.clip_grad_norm_({opt}.param_groups[0]['params'], 1.0)"
    steps = f"{backward};;{step} #step ?? no step: {backward} ?? step first: {step};;{backward}"
    clipped = f"{backward} #pass\n{clip};;{step} #step ?? no step: {clip} ?? clipped late: {step};;{clip}"
    middle = clipped if p.chance(0.3) else steps
    p.write("\n".join([clear, middle] if p.chance(0.4) else [middle, clear]), depth)
    if schedule:
        p.write(f"{schedule}.step()", depth)


def scheduler(p: Program, opt: str, steps: int) -> str:
    """A scheduler, for some programs. Returns its name; empty for none."""
    if p.chance(0.6):
        return ""
    text = p.one_of(f"CosineAnnealingLR({opt}, {steps})", f"StepLR({opt}, {steps // 2}, gamma=0.5)",
                    f"ExponentialLR({opt}, 0.95)", f"LambdaLR({opt}, lambda n: 1 / (1 + 0.1 * n))")  # fmt: skip
    made = "schedule = torch.optim.lr_scheduler."
    p.write(f"{made}{text} ?? rate gone: {made}ExponentialLR({opt}, 0.01)")
    return "schedule"


TERMS = (
    "penalty = sum(q.pow(2).sum() for q in $model.parameters()) #term"
    " ?? term cut: penalty = sum(q.detach().pow(2).sum() for q in $model.parameters())",
    "penalty = torch.stack([q.abs().mean() for q in $model.parameters()]).sum() #term"
    " ?? term cut: penalty = torch.stack([q.data.abs().mean() for q in $model.parameters()]).sum()",
)
LOSSES = {
    "classes": ("F.cross_entropy($out, $y)", "F.nll_loss($out.log_softmax(1), $y)", "nn.CrossEntropyLoss()($out, $y)"),
    "binary": ("F.binary_cross_entropy_with_logits($out, $y)", "F.binary_cross_entropy(torch.sigmoid($out), $y)"),
    "numbers": (
        "F.mse_loss($out, $y)",
        "F.smooth_l1_loss($out, $y)",
        "(($out - $y) ** 2).mean()",
        "($out - $y).abs().mean()",
    ),
}
WRONG = {
    "classes": "probabilities: $loss = F.cross_entropy($out.softmax(1), $y)",
    "binary": "probabilities: $loss = F.binary_cross_entropy_with_logits(torch.sigmoid($out), $y)",
    "numbers": "columns: $loss = F.mse_loss($out, $y.squeeze(1))",
}


def loss_of(p: Program, depth: int, kind: str, out: str, y: str, with_terms: bool = False) -> None:
    """The lines that compute a loss, with a further term for some programs."""
    text = p.one_of(*LOSSES[kind])
    cut = f"root cut: $loss = torch.tensor({text}.item(), requires_grad=True)"
    p.write(f"$loss = {text} #root ?? {WRONG[kind]} ?? {cut}", depth, out=out, y=y)
    if with_terms and p.chance(0.4):
        p.write(p.one_of(*TERMS), depth)
        cut = "term cut: $loss = $loss + 1e-3 * penalty.item()"
        p.write(f"$loss = $loss + 1e-3 * penalty #root ?? {cut} ?? term forgotten:", depth)


# --- whole programs


def supervised(p: Program) -> None:
    """One network and one loss, in one of several loops."""
    kind, steps, turns = p.one_of("classes", "binary", "numbers"), p.chance(0.4), p.random.randint(6, 12)
    network(p, "Net", p.random.randint(3, 8), 3 if kind == "classes" else 1, steps)
    p.drawn |= {"model": p.one_of("model", "net"), "loss": p.one_of("loss", "cost", "objective"), "turns": str(turns)}
    p.drawn["opt"] = opt = p.one_of("opt", "optimizer", "optim")
    size, first = ("5, $inputs", "data.sum(1)[:, :1]") if steps else ("$inputs", "data[:, :1]")
    labels = {"classes": f"({first} > 0).long().squeeze(1) + ({first} > 1).long().squeeze(1)",
              "binary": f"({first} > 0).float()", "numbers": f"{first}.sin()"}[kind]  # fmt: skip
    p.write(f"data = torch.randn(32, {size})\nlabels = {labels}\n$model = Net()")
    model, loss = p.drawn["model"], p.drawn["loss"]
    steps_of = optimizer(p, opt, f"{model}.parameters()", f"left out: [*{model}.leave.parameters()]")
    schedule = scheduler(p, opt, turns)
    loop = p.one_of("plain", "batches", "function", "accumulated", "plain" if schedule else "closure")
    if loop == "function":
        p.write("def train_step(x, y):;;    out = $model(x) #call")
        loss_of(p, 1, kind, "out", "y", with_terms=True)
        update(p, 1, opt, loss)
        p.write("return $loss.item() ?? graph kept: return $loss", 1)
    p.write("history = []\nfor epoch in range($turns):")
    if p.chance(0.25):
        p.write("$model.eval();;with torch.no_grad():;;    score = $model(data).mean() #evaluate", 1)
        p.write("$model.train() ?? no train:", 1)
    kept = "history.append($loss.item()) ?? graph kept: history.append($loss)"
    if loop == "function":
        p.write("history.append(train_step(data, labels)) #kept", 1)
    elif loop == "closure":
        p.write("def closure():\n    $opt.zero_grad() ?? no zero_grad:\n    pred = $model(data) #call", 1)
        loss_of(p, 2, kind, "pred", "labels")
        p.write("    $loss.backward();;return $loss #pass\nhistory.append($opt.step(closure).item()) #step", 1)
    elif loop == "plain":
        p.write("pred = $model(data) #call", 1)
        loss_of(p, 1, kind, "pred", "labels", with_terms=True)
        update(p, 1, opt, loss)
        p.write(kept, 1)
    else:
        p.write("for x, y in zip(data.split(8), labels.split(8)):\n    pred = $model(x) #call", 1)
        loss_of(p, 2, kind, "pred", "y", with_terms=True)
        if loop == "batches":
            update(p, 2, opt, loss)
        else:  # the other optimizers do not mind the scale
            p.write("($loss / 4).backward() #pass" + " ?? unscaled: $loss.backward()" * (steps_of == "SGD"), 2)
            p.write("$opt.step();;$opt.zero_grad() #step ?? no zero_grad: $opt.step()", 1)
        p.write(kept, 1)
    if schedule:
        p.write("schedule.step()", 1)
    p.write("print(history[-1])")


def two_networks(p: Program) -> None:
    """An encoder and a decoder, with an optimizer each."""
    inputs, code = p.random.randint(4, 8), p.random.randint(2, 4)
    first, second = p.random.choice([("Encoder", "Decoder"), ("Sender", "Receiver"), ("Body", "Top")])
    network(p, first, inputs, code)
    network(p, second, code, inputs)
    p.drawn |= {"a": first.lower(), "b": second.lower(), "turns": str(p.random.randint(6, 10))}
    p.write(f"$a, $b = {first}(), {second}()")
    a, b = (f"{name.lower()}.parameters()" for name in (first, second))
    optimizer(p, f"{first.lower()}_opt", a, f"wrong owner: {b}")
    optimizer(p, f"{second.lower()}_opt", b, f"wrong owner: {a}")
    p.write("x = torch.randn(24, $outputs)\nfor step in range($turns):\n    code = $a(x) ?? cut: code = $a(x).detach()")
    if p.chance(0.5):
        p.write("code = code + 0.1 * torch.randn_like(code) ?? cut: code = torch.normal(code, 0.1)", 1)
    p.write("""
    loss = F.mse_loss($b(code), x) #root
    ${a}_opt.zero_grad() ?? no zero_grad:
    ${b}_opt.zero_grad() ?? no zero_grad:
    loss.backward() #pass
    ${a}_opt.step() #step ?? no step:
    ${b}_opt.step() #step ?? no step:
print(loss.item())""")


def adversaries(p: Program) -> None:
    """A generator and a discriminator."""
    network(p, "Maker", 4, 2)
    network(p, "Judge", 2, 1)
    p.write("maker, judge = Maker(), Judge()")
    optimizer(p, "maker_opt", "maker.parameters()", "wrong owner: judge.parameters()")
    optimizer(p, "judge_opt", "judge.parameters()")
    p.write("""
for step in range($turns):
    real = torch.randn(16, 2) * 0.5 + 1
    fake = maker(torch.randn(16, 4))
    judge_opt.zero_grad() ?? no zero_grad:
    judge_loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
    judge_loss.backward();;judge_opt.step() #step ?? no step: judge_loss.backward()
    maker_opt.zero_grad()
    maker_loss = F.softplus(-judge(fake)).mean() ?? cut: maker_loss = F.softplus(-judge(fake.detach())).mean()
    maker_loss.backward() #pass
    maker_opt.step() #step ?? no step: ?? other step: judge_opt.step()
print(maker_loss.item())""", turns=str(p.random.randint(6, 10)))  # fmt: skip


def followed(p: Program) -> None:
    """A network and a slow copy of it that gives the targets."""
    width = p.random.randint(3, 6)
    network(p, "Online", width, width)
    p.write("import copy\nonline = Online()\ntarget = copy.deepcopy(online)\nhead = nn.Linear($outputs, $outputs)")
    optimizer(p, "opt", "[*online.parameters(), *head.parameters()]", "left out: head.parameters()")
    p.drawn["turns"] = str(p.random.randint(6, 10))
    p.write("""
for step in range($turns):
    view, other = torch.randn(2, 16, $inputs) * 0.1 + torch.randn(16, $inputs)
    with torch.no_grad():;;    goal = target(other) ?? target trained: goal = target(other)
    guess = head(online(view)) ?? cut: guess = head(online(view).detach())""")
    p.write("loss = " + p.one_of("F.mse_loss(guess, goal)", "(1 - F.cosine_similarity(guess, goal)).mean()"), 1)
    update(p, 1, "opt", "loss")
    p.write("""
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.lerp_(fast, 0.05) ?? written back: fast.copy_(slow) ?? average lost: slow.lerp(fast, 0.05)
print(loss.item())""")


def by_hand(p: Program) -> None:
    """Parameters of one's own and an update by hand."""
    p.drawn |= {"inputs": str(p.random.randint(3, 6)), "width": str(p.random.randint(6, 12)), "loss": "loss"}
    p.drawn |= {"turns": str(p.random.randint(8, 14)), "act": p.one_of("tanh()", "relu()", "sigmoid()")}
    p.drawn["w"], p.drawn["v"] = p.random.choice([("w1", "w2"), ("A", "B"), ("first", "second")])
    p.write("""
$w = torch.randn($inputs, $width) * 0.3
$v = torch.randn($width, 1) * 0.3
$w.requires_grad_();;$v.requires_grad_()
x = torch.randn(40, $inputs)
y = x[:, :1] * 2 + 1
for step in range($turns):
    hidden = (x @ $w).$act ?? data: hidden = (x @ $w.data).$act
    pred = hidden @ $v ?? cut: pred = hidden.detach() @ $v""")
    loss_of(p, 1, "numbers", "pred", "y")
    lost, dropped = ("update lost: param = param - 0.05 * param.grad", "update dropped: param.sub(0.05 * param.grad)")
    p.drawn["clear"] = p.one_of("param.grad = None", "param.grad.zero_()")
    p.write(
        """
    loss.backward() #pass
    with torch.no_grad():
        for param in ($w, $v):
            param -= 0.05 * param.grad #step ?? uphill: param += 0.05 * param.grad ?? $lost ?? $dropped
            $clear ?? no zero_grad:
print(loss.item())""".replace("$lost", lost).replace("$dropped", dropped)
    )


FAMILIES = (supervised, supervised, supervised, two_networks, adversaries, followed, by_hand)


def drawn(seed: int, number: int, target: tuple[str, int] | None = None) -> Program:
    """The program with this number."""
    p = Program(Random(f"{seed} {number}"), target)
    p.write(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed($seed)",
        seed=str(number),
    )
    p.random.choice(FAMILIES)(p)
    return p


def broken(seed: int, number: int, only: str = "") -> Program | None:
    """The program with one of the faults that it has a place for; None if it has no place for `only`."""
    places = drawn(seed, number).places
    faults = sorted(places) if not only else [only] * (only in places)
    if not faults:
        return None
    random = Random(f"fault {seed} {number}")
    fault = random.choice(faults)
    return drawn(seed, number, (fault, random.randint(1, places[fault])))


# --- running them


def said_of(text: str, path: Path) -> Said:
    """What `check` says about a program, which is recorded in a child of this process."""
    from gradviz.diagnose import check
    from gradviz.sources.script import Target, run

    path.write_text(text)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        with open(theirs, "w") as answer, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            with contextlib.suppress(SystemExit):
                run(Target(str(path), False, []), path.with_suffix(".gradviz"), engine="torch")
            found = check(path.with_suffix(".gradviz"))
            json.dump([(f.severity, f.rule, f.line, f.message) for f in found], answer)
        os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        said = [tuple(finding) for finding in json.loads(answer.read() or '[["error", "check", 0, "no answer"]]')]
    os.waitpid(child, 0)
    return said


def serve(seed: int, numbers: range, only: str, folder: Path) -> None:
    """Run the programs with these numbers and their twins; one line of JSON for each."""
    import torch
    import torch._dynamo  # which the first optimizer of a process imports

    torch.set_num_threads(1)
    for number in numbers:
        program = broken(seed, number, only)
        if program is None or program.target is None:
            continue
        lines = sorted(program.guilty())
        twin = drawn(seed, number)
        for p, guilty in ((program, lines), (twin, [])):
            path = folder / f"{number}{'' if guilty else '_healthy'}.py"
            said = said_of("\n".join(p.lines) + "\n", path)
            print(json.dumps([number, program.target[0], guilty, said]), flush=True)


def asked(options: argparse.Namespace, folder: str) -> list[tuple[int, str, list[int], Said]]:
    """The number, fault, lines and findings of each program; a twin has no lines."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--count", str(options.count), "--jobs",
               str(options.jobs), "--only", options.only, "--keep", folder]  # fmt: skip
    parts = [subprocess.Popen([*command, "--serve", str(job)], stdout=subprocess.PIPE) for job in range(options.jobs)]
    return sorted(tuple(json.loads(line)) for part in parts for line in part.communicate()[0].splitlines())


def is_innocent(guilty: list[int], said: Said) -> bool:
    """Whether an error or a warning stands on another line."""
    return any(severity != "note" and line not in guilty for severity, _, line, _ in said)


def main() -> None:
    """Print the table, and what `--misses` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only this fault")
    parser.add_argument("--misses", action="store_true", help="print what was said where it was not right")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the programs and their traces here")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.seed, range(options.serve, options.count, options.jobs), options.only, Path(options.keep))
        return
    with tempfile.TemporaryDirectory() as elsewhere:
        if options.keep:
            Path(options.keep).mkdir(parents=True, exist_ok=True)
        answers = asked(options, options.keep or elsewhere)
    faulty, twins = ([a for a in answers if bool(a[2]) is is_faulty] for is_faulty in (True, False))
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    for number, fault, guilty, said in faulty:
        lines = [line for _, _, line, _ in said]
        named, first = (any(line in guilty for line in some) for some in (lines, lines[:1]))
        right = [1, named, first, is_innocent(guilty, said)]
        for of in (fault, "all"):
            counts[of] = [a + b for a, b in zip(counts[of], [*right, 0], strict=True)]
        if options.misses and (right[3] or not right[2]):
            print(f"{number} {fault} at {guilty}:", *(f"    {s} {r} {n}: {m[:150]}" for s, r, n, m in said), sep="\n")
    for number, fault, _, said in twins:
        for of in (fault, "all"):
            counts[of][4] += is_innocent([], said)
        if options.misses and is_innocent([], said):
            print(f"{number} healthy:", *(f"    {s} {r} {n}: {m[:150]}" for s, r, n, m in said), sep="\n")
    print(machine())
    rows = [(fault, *map(str, counts[fault])) for fault in sorted(counts)]
    table(f"seed {options.seed}", rows, ("fault", "programs", "named", "first", "innocent", "twins accused"))


if __name__ == "__main__":
    main()
