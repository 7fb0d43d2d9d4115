"""The command `check`: what it prints in each format, its exit status, and what it does with a script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz as package
from gradviz.diagnose import RULES, UnknownRule, check, run_rules
from gradviz.diagnose.rank_rule import RankFound, RankRule
from gradviz.diagnose.rule import Found, Rule
from gradviz.query.replicas import Replicas
from gradviz.sources.script import Target, run
from gradviz.tracefile import TraceError

Command = Callable[..., CompletedProcess[str]]

STALE = """\
import sys, torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    loss = (w ** 2).sum()
    loss.backward()
    optimizer.step()
print("trained", *sys.argv[1:])
"""
LINE = 6
SOUND = STALE.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()")
CLEARED_BEFORE_CLIPPING = """\
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.zero_grad()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    script = tmp_path / "stale.py"
    script.write_text(STALE)
    return script


def test_a_script_is_traced_and_its_output_comes_first(gradviz_here: Command, stale: Path) -> None:
    done = gradviz_here("check", stale.name, "--epochs", 3)
    assert done.returncode == 1
    assert done.stdout.startswith("trained --epochs 3\n")
    assert f"1. error stale-gradient  stale.py:{LINE}" in done.stdout
    assert "▶6      loss.backward()" in done.stdout
    assert "optimizer.zero_grad()  # before backward()" in done.stdout
    assert "gradviz step stale.gradviz --at" in done.stdout
    assert (stale.parent / "stale.gradviz").exists()


def test_rules_that_were_not_checked_are_counted_by_reason_and_named_on_demand(
    gradviz_here: Command, tmp_path: Path
) -> None:
    (tmp_path / "lesson.py").write_text(
        "import torch\nx = torch.ones(3, requires_grad=True)\n(x * 2).sum().backward()\n"
    )
    in_short = gradviz_here("check", "lesson.py").stdout
    assert in_short.count("not checked  ") == 1
    in_full = gradviz_here("check", "--not-checked", "lesson.gradviz").stdout
    told = json.loads(gradviz_here("check", "--format", "json", "lesson.gradviz").stdout)
    names = [rule["rule"] for rule in told["not_checked"]]
    assert len(names) > 20
    assert not any(name in in_short for name in names)
    assert all(name in in_full for name in names)
    counts = re.search(
        r"(\d+) rules as nothing stepped on a gradient, (\d+) as .*, (\d+) for other reasons",
        " ".join(in_short.split()),
    )
    assert counts is not None
    assert sum(map(int, counts.groups())) == len(names) - 1  # wrong-custom-gradient is to be selected
    steps = gradviz_here("check", "--select", "lost-update", "lesson.gradviz").stdout
    assert "not checked  lost-update: there are fewer than two steps of an optimizer" in steps


def test_values_that_were_not_recorded_are_the_first_reason(gradviz_here: Command, stale: Path) -> None:
    gradviz_here("trace", "--values", "none", stale.name)
    text = " ".join(gradviz_here("check", "stale.gradviz").stdout.split())
    assert re.search(r"not checked \d+ rules as values were not recorded \(--values none\)", text)


def test_the_newest_trace_is_checked_without_an_argument(
    stale: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gradviz_here: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="no TRACE given"):
        package.check()
    gradviz_here("trace", stale.name)
    assert [finding.rule for finding in package.check()] == ["stale-gradient"]


def test_a_sound_script_keeps_its_status(gradviz_here: Command, stale: Path) -> None:
    stale.write_text(SOUND)
    assert gradviz_here("check", stale.name).returncode == 0
    stale.write_text(SOUND + "sys.exit(3)\n")
    assert gradviz_here("check", stale.name).returncode == 3


def test_json_has_the_findings_and_what_was_checked(gradviz_here: Command, stale: Path) -> None:
    gradviz_here("trace", stale.name)
    done = gradviz_here("check", "stale.gradviz", "--format", "json")
    told = json.loads(done.stdout)
    (finding,) = told["findings"]
    assert done.returncode == 1
    assert set(finding) == {"rule", "severity", "message", "fix", "edits", "file", "line", "node", "pass"}
    assert (finding["rule"], finding["severity"]) == ("stale-gradient", "error")
    assert (Path(finding["file"]).name, finding["line"], finding["pass"]) == ("stale.py", LINE, 2)
    names = {*told["checked"], *(rule["rule"] for rule in told["not_checked"])}
    assert names == {rule.id for rule in RULES}
    assert all(rule["reason"] for rule in told["not_checked"])


def test_a_short_finding_is_one_line_as_compilers_write_it(gradviz_here: Command, stale: Path) -> None:
    gradviz_here("trace", stale.name)
    done = gradviz_here("check", "stale.gradviz", "--format", "short", env={"COLUMNS": "40"})
    assert re.fullmatch(r"stale\.py:\d+:\d+: error: pass 2 adds .+ \[stale-gradient\]\n", done.stdout)
    assert done.returncode == 1


def test_sarif_has_the_rule_and_the_region(gradviz_here: Command, stale: Path) -> None:
    gradviz_here("trace", stale.name)
    log = json.loads(gradviz_here("check", "stale.gradviz", "--format", "sarif").stdout)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0"
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": LINE, "startColumn": 5, "endLine": LINE, "endColumn": 20}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--ignore", "stale-gradient"), 0),
        (("--select", "late-clip"), 0),
        (("--select", "late-clip,stale-gradient"), 1),
        (("--fail-on", "error"), 1),
    ],
)
def test_rules_are_selected_and_ignored(
    gradviz_here: Command, stale: Path, options: tuple[str, ...], status: int
) -> None:
    gradviz_here("trace", stale.name)
    assert gradviz_here("check", "stale.gradviz", *options).returncode == status
    assert gradviz_here("check", *options, stale.name).returncode == status


@pytest.mark.parametrize(
    ("comment", "status"),
    [
        ("# gradviz: ignore[stale-gradient]", 0),
        ("# gradviz: ignore[late-clip, stale-gradient]", 0),
        ("# gradviz: ignore", 0),
        ("# gradviz: ignore[late-clip]", 1),
        ("# ignore[stale-gradient]", 1),
    ],
)
def test_a_comment_on_the_line_ignores_a_rule(gradviz_here: Command, stale: Path, comment: str, status: int) -> None:
    stale.write_text(STALE.replace("backward()", f"backward()  {comment}"))
    assert gradviz_here("check", stale.name).returncode == status


def test_a_leaf_that_its_update_replaced_is_to_be_updated_in_place(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(
        "import gradviz.engine as torch\n"
        "w = torch.tensor(2.0, requires_grad=True)\n"
        "for _ in range(2):\n"
        "    ((w * 3) ** 2).backward()\n"
        "    w = w - 0.1 * w.grad\n"
    )
    gradviz_here("trace", "by_hand.py")
    done = gradviz_here("check", "by_hand.gradviz", "--format", "json")
    fixes = {one["rule"]: one["fix"] for one in json.loads(done.stdout)["findings"]}
    assert fixes["nonleaf-grad-read"].startswith("with torch.no_grad(): w -= 0.1 * w.grad")


LESSON = """
import torch
x = torch.tensor(5.0, requires_grad=True)
y = x ** 3
z = torch.log(y)
print(y.grad)
z.backward(retain_graph=True)
print(y.grad)
y.retain_grad()
z.backward()
print(y.grad)
"""


def test_a_lesson_that_reads_a_grad_on_purpose_gets_a_note_and_a_clean_picture(
    gradviz_here: Command, tmp_path: Path
) -> None:
    (tmp_path / "lesson.py").write_text(LESSON)
    gradviz_here("trace", "lesson.py")
    found = json.loads(gradviz_here("check", "lesson.gradviz", "--format", "json").stdout)["findings"]
    assert {one["severity"] for one in found if one["rule"] == "nonleaf-grad-read"} == {"note"}
    gradviz_here("graph", "lesson.gradviz", "-o", "lesson.svg")
    assert "finding" not in (tmp_path / "lesson.svg").read_text()


@pytest.mark.parametrize("flat", ["torch.round(x)", "x.clamp(max=1.0)"])
def test_a_gradient_of_0_in_the_only_pass_of_a_lesson_is_a_note(flat: str, tmp_path: Path) -> None:
    assert _severities(tmp_path, f"({flat} - 4).pow(2).sum().backward()") == {"zero-gradient": "note"}


def test_a_gradient_of_0_in_the_only_pass_of_a_training_is_a_warning(tmp_path: Path) -> None:
    lines = "optimizer = torch.optim.SGD([x], lr=0.1)\ntorch.round(x).pow(2).sum().backward()\noptimizer.step()"
    assert _severities(tmp_path, lines) == {"zero-gradient": "warning"}


def test_a_saturated_layer_and_a_dead_rectifier_of_a_single_pass_are_notes(tmp_path: Path) -> None:
    assert _severities(tmp_path, "torch.tanh(1000 * x.repeat(8)).mul(2).sum().backward()") == {
        "saturated-activation": "note"
    }
    dead = "(torch.relu(-x.repeat(8)) + x.sum()).sum().backward()"
    assert _severities(tmp_path, dead) == {"dead-relu": "note"}


@pytest.mark.parametrize(("made", "said"), [("inf", "an infinity"), ("nan", "NaN")])
def test_what_a_hook_returns_is_no_fault_of_the_op(made: str, said: str, tmp_path: Path) -> None:
    lines = f"""\
out = x * 2
out.register_hook(lambda grad: torch.tensor([0.0, float("{made}")]))
out.sum().backward()
"""
    assert _severities(tmp_path, lines) == {"hook-changed-gradient": "error"}
    (finding,) = check(tmp_path / "one_pass.gradviz")
    assert finding.message.endswith(f"makes {said} of the gradient of out")


def test_an_infinite_gradient_given_to_backward_is_no_fault_of_the_op(tmp_path: Path) -> None:
    lines = 'out = x * 2\nout.backward(torch.tensor([0.0, float("inf")]))'
    assert _severities(tmp_path, lines) == {}


def _severities(folder: Path, lines: str) -> dict[str, str]:
    """The rules that find something in these lines about `x`, each with its severity."""
    text = f"import torch\nx = torch.tensor([1.4, 2.6], requires_grad=True)\n{lines}\n"
    (folder / "one_pass.py").write_text(text, encoding="utf-8")
    run(Target(str(folder / "one_pass.py"), False, []), folder / "one_pass.gradviz", engine="numpy")
    return {finding.rule: finding.severity for finding in check(folder / "one_pass.gradviz")}


def test_the_same_read_in_a_loop_that_trains_is_a_warning(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import gradviz.engine as torch\n"
        "x = torch.ones(4)\n"
        "w = torch.ones(4, requires_grad=True) * 0.1\n"
        "for _ in range(3):\n"
        "    ((x * w).sum() ** 2).backward(retain_graph=True)\n"
        "    print(w.grad)\n"
    )
    gradviz_here("trace", "loop.py")
    found = json.loads(gradviz_here("check", "loop.gradviz", "--format", "json").stdout)["findings"]
    assert {one["severity"] for one in found if one["rule"] == "nonleaf-grad-read"} == {"warning"}


LOST_AVERAGE = """\
import copy, torch
torch.manual_seed(0)
student = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16, 4)
    with torch.no_grad():
        for q, k in zip(student.parameters(), teacher.parameters()):
            k = k.data * 0.9 + q.data * 0.1
        target = teacher(x)
    optimizer.zero_grad()
    (student(x) - target - 1).square().mean().backward()
    optimizer.step()
"""


def test_a_teacher_whose_average_is_lost_is_not_called_frozen(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "byol.py").write_text(LOST_AVERAGE)
    found = json.loads(gradviz_here("check", "--format", "json", "byol.py").stdout)["findings"]
    assert [(one["rule"], one["line"]) for one in found] == [("not-updated", 12)]


def test_a_frozen_teacher_whose_statistics_change_is_noted(gradviz_here: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed, and a trace of our engine has no running statistics")
    average = "            k = k.data * 0.9 + q.data * 0.1\n"
    (tmp_path / "frozen.py").write_text(LOST_AVERAGE.replace(average, "            pass\n"))
    found = json.loads(gradviz_here("check", "--format", "json", "frozen.py").stdout)["findings"]
    assert ("wrong-mode", 13) in [(one["rule"], one["line"]) for one in found]


def test_what_cannot_be_checked_is_said(gradviz_here: Command, stale: Path) -> None:
    stale.write_text("import torch\nx = torch.ones(2)\n")
    done = gradviz_here("check", stale.name)
    assert done.returncode == 0
    assert "no findings" in done.stdout
    assert re.search(r"not checked \d+ rules as no backward pass was recorded", " ".join(done.stdout.split()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "no such script: missing.py"),
        (("missing.gradviz",), "missing.gradviz"),
        ((), "no TRACE given"),
        (("--select", "no-such-rule", "empty.gradviz"), "there is no rule 'no-such-rule'"),
        (("empty.gradviz", "other.gradviz"), "one argument too many"),
        (("broken.gradviz",), "broken.gradviz"),
    ],
)
def test_bad_input_gets_one_line(
    gradviz_here: Command, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    if arguments:
        (tmp_path / "broken.gradviz").write_text("no trace")
        with package.record(tmp_path / "empty.gradviz"):
            pass
    done = gradviz_here("check", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_an_option_behind_the_script_is_warned_about(gradviz_here: Command, stale: Path) -> None:
    stale.write_text(SOUND)
    done = gradviz_here("check", stale.name, "--format", "json")
    assert done.stdout.startswith("trained --format json\n")
    assert "--format after stale.py goes to stale.py" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "sarif"])
def test_what_programs_read_has_stdout_for_itself(
    form: str, gradviz: Command, gradviz_here: Command, stale: Path
) -> None:
    stale.write_text(f"import os\nos.write(1, b'by its number ')\n{stale.read_text()}\nos.system('echo by a child')")
    done = gradviz("check", "--format", form, stale.name)
    assert json.loads(done.stdout)
    assert done.stdout == gradviz_here("check", "stale.gradviz", "--format", form).stdout
    for text in ("trained", "by its number", "by a child"):
        assert text in done.stderr


def test_inside_a_program_stdout_is_for_what_programs_read(gradviz_here: Command, stale: Path) -> None:
    done = gradviz_here("check", "--format", "json", stale.name)
    assert json.loads(done.stdout)["findings"]
    assert "trained" in done.stderr


def test_check_in_python_gives_the_findings(gradviz_here: Command, stale: Path) -> None:
    gradviz_here("trace", stale.name)
    trace = stale.parent / "stale.gradviz"
    report = package.check(trace)
    assert [(finding.rule, finding.line) for finding in report] == [("stale-gradient", LINE)]
    with package.open(trace) as opened:
        assert check(opened) == report
    with pytest.raises(UnknownRule):
        check(trace, select=["no-such-rule"])


@pytest.mark.slow
def test_a_call_that_leaves_grad_mode_off_is_named(gradviz: Command, stale: Path) -> None:
    off = "def show(x):\n    torch.set_grad_enabled(False)\n    print(x)\n"
    script = STALE.replace("w = ", off + "w = ").replace("    loss.backward()", "    loss.backward()\n    show(loss)")
    stale.write_text(script)
    told = gradviz("check", stale.name).stdout
    assert "1. error detached-path  stale.py:3\n" in told
    assert "grad mode is off from here on" in told


def test_a_write_through_data_is_not_what_backward_refuses(gradviz_here: Command, stale: Path) -> None:
    lines = ["import torch", "w = torch.ones(2, requires_grad=True)", "y = w.exp()", "y.data.mul_(2)", "y.add_(1)"]
    stale.write_text("\n".join([*lines, "y.sum().backward()", ""]))
    assert "1. error inplace-modified  stale.py:5\n" in gradviz_here("check", stale.name).stdout


def test_text_of_a_trace_is_escaped(gradviz_here: Command, stale: Path) -> None:
    stale.write_text(STALE.replace("loss.backward()", "loss.backward()  # \x1b[31m"))
    assert "\x1b" not in gradviz_here("check", stale.name).stdout


def test_the_texts_of_a_finding_are_escaped_whatever_a_rule_puts_into_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _severities(tmp_path, "x.sum().backward()")
    hostile = Rule(RULES[0].id, "note", "", lambda case: iter([Found("a\x1b[31m", "b\u202ec\nd", ())]))
    monkeypatch.setattr("gradviz.diagnose.run_rules.RULES", [hostile])
    (finding,) = check(tmp_path / "one_pass.gradviz", select=[hostile.id])
    assert (finding.message, finding.fix) == ("a\\x1b[31m", "b\\u202ec\\nd")
    between = RankRule("ranks", "note", "", lambda ranks: iter([RankFound("a\x1b", "b\u202e", (0,))]))
    (finding,) = between.findings(Replicas({}))
    assert (finding.message, finding.fix) == ("a\\x1b", "b\\u202e")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_a_file_that_defines_it(rule: object) -> None:
    from importlib import import_module

    name = rule.id.replace("-", "_")  # type: ignore[attr-defined]
    module = import_module(f"gradviz.diagnose.rules.{name}")
    assert getattr(module, name) is rule
    assert (module.__doc__ or "").startswith(f"`{rule.id}`: ")  # type: ignore[attr-defined]


def test_the_guide_lists_every_rule_with_an_example_and_the_cure() -> None:
    guide = (Path(__file__).parents[2] / "docs/check.md").read_text()
    _, table = guide.split("\n| rule | severity | finds | example | cure |\n|-|-|-|-|-|\n")
    rows = [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in table.splitlines()]
    assert [row[:3] for row in rows] == [[f"`{rule.id}`", rule.severity, rule.looks_for] for rule in RULES]
    assert all(len(row) == 5 and all(row) for row in rows)


def test_a_clipping_after_gradients_were_cleared_is_not_said_to_be_early(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "cleared.py").write_text(CLEARED_BEFORE_CLIPPING, encoding="utf-8")
    gradviz_here("trace", "cleared.py")
    rules = [finding.rule for finding in check(tmp_path / "cleared.gradviz")]
    assert rules == ["discarded-gradient"]


def test_a_running_sum_of_losses_is_one_leak(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "summed.py").write_text("""\
import torch
w = torch.ones(3, requires_grad=True)
total = 0
for step in range(6):
    loss = (w * step).pow(2).sum()
    loss.backward()
    w.grad = None
    total = total + loss
""")
    done = gradviz_here("check", "--select", "graph-leak", "summed.py")
    assert "1. warning graph-leak  summed.py:8" in done.stdout
    assert "1 warning · 1 rule checked" in done.stdout


def test_what_follows_from_a_finding_stands_beneath_it(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "replaced.py").write_text("""\
import torch
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.step()
""")
    done = gradviz_here("check", "replaced.py")
    assert "1. error stale-optimizer  replaced.py:4" in done.stdout
    assert "torch.optim.AdamW(model.parameters(), lr=0.1" in done.stdout
    assert done.stdout.count("because of this  unused-parameter (line 2)") == 2
    assert "1 error · " in done.stdout


LAYERS = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(16, 16), nn.SHAPE())], nn.Linear(16, 1))
for module in net[:-1:2]:
    nn.init.PREPARED
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    (net(torch.randn(8, 16)) - 1).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "shape", "prepared", "beneath"),
    [
        ("dead-relu", "ReLU", "constant_(module.bias, -30.0)", 2),
        ("saturated-activation", "Tanh", "normal_(module.weight, std=20.0)", 0),
    ],
)
def test_layers_of_one_line_are_one_finding(
    gradviz_here: Command, tmp_path: Path, rule: str, shape: str, prepared: str, beneath: int
) -> None:
    (tmp_path / "layers.py").write_text(LAYERS.replace("SHAPE", shape).replace("PREPARED", prepared))
    done = gradviz_here("check", "layers.py")
    assert f"1. warning {rule}  layers.py:10\n" in done.stdout
    assert "in or after net.1, net.3 and net.5" in done.stdout
    assert done.stdout.count("because of this  zero-gradient: the gradient of net.") == beneath
    assert "\n1 warning · " in done.stdout


FUNCTION = """\
import torch
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        def times(x):
            return x * factor
        ctx.factor = factor
        return times(x)
    @staticmethod
    def backward(ctx, grad):
        def times(grad):
            return grad * ctx.factor
        if ctx.factor == 1:
            return grad
        # here one of two is missing
        return times(grad)
"""
CALLED = "Scale.apply(torch.ones(3, requires_grad=True), 2.0).sum().backward()\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(FUNCTION + CALLED, 16, id="the last outermost return"),
        pytest.param(FUNCTION + FUNCTION + CALLED, 33, id="two classes of one name: the call"),
        pytest.param(FUNCTION + "exec(" + repr(CALLED) + ")\n", 16, id="called from elsewhere"),
    ],
)
def test_a_wrong_backward_is_named_where_it_returns(
    gradviz_here: Command, tmp_path: Path, text: str, line: int
) -> None:
    (tmp_path / "scale.py").write_text(text)
    done = gradviz_here("check", "scale.py")
    assert f"1. error custom-backward-signature  scale.py:{line}\n" in done.stdout


def test_an_error_that_no_rule_is_about_is_told_with_its_line(gradviz_here: Command, tmp_path: Path) -> None:
    text = "import torch\nx = torch.ones(2, requires_grad=True)\ny = x * 2\n"
    (tmp_path / "ended.py").write_text(text + "y.requires_grad = False\n")
    done = gradviz_here("check", "ended.py")
    assert "ended by an error  ended.py:4  RuntimeError: you can only change" in done.stdout
    assert "no finding explains it · " in done.stdout
    (tmp_path / "ended.py").write_text(text + "y.backward()\n")  # for nonscalar-backward
    assert "ended by an error" not in gradviz_here("check", "ended.py").stdout
    (tmp_path / "ended.py").write_text(text)
    assert "ended by an error" not in gradviz_here("check", "ended.py").stdout


def test_the_cure_for_calls_in_the_wrong_order_is_in_the_words_of_the_program(tmp_path: Path) -> None:
    text = """import gradviz.engine as torch
w = torch.ones(3, requires_grad=True)
adam = torch.optim.Adam([w], lr=0.1)
for step in range(3):
    cost = (w ** 2).sum()
    adam.zero_grad()
    cost.backward()
    adam.step()
    torch.nn.utils.clip_grad_norm_([w], 0.5)
"""
    (tmp_path / "script.py").write_text(text)
    run(Target(str(tmp_path / "script.py"), False, []), tmp_path / "run.gradviz", engine="numpy")
    (finding,) = package.check(tmp_path / "run.gradviz").findings
    assert (finding.rule, finding.fix) == (
        "late-clip",
        "cost.backward(); torch.nn.utils.clip_grad_norm_([w], 0.5); adam.step()  # in this order",
    )


@pytest.mark.torch
@pytest.mark.parametrize(("line", "rules"), [("net.double()", []), ("net.weight.grad.mul_(0.5)", ["late-clip"])])
def test_a_model_that_is_converted_behind_a_step_clips_nothing(tmp_path: Path, line: str, rules: list[str]) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    text = f"""
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    net(torch.randn(4, 3, dtype=net.weight.dtype)).square().mean().backward()
    optimizer.step()
    if step == 3:
        {line}
"""
    (tmp_path / "script.py").write_text(text)
    run(Target(str(tmp_path / "script.py"), False, []), tmp_path / "run.gradviz", engine="torch")
    assert [finding.rule for finding in package.check(tmp_path / "run.gradviz").findings] == rules


def test_the_edit_of_a_fault_that_comes_in_each_pass_is_made_once(
    gradviz_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice.py").write_text(
        "import gradviz.engine as torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "for _ in range(20):\n"
        "    loss = w.exp().sum()\n"
        "    loss.backward()\n"
        "    try:\n"
        "        loss.backward()\n"
        "    except RuntimeError:\n"
        "        pass\n"
    )
    gradviz_here("trace", "twice.py")
    made = []
    make = run_rules.patch_of
    monkeypatch.setattr(run_rules, "patch_of", lambda *parts: made.append(parts) or make(*parts))
    first, *_ = package.check(tmp_path / "twice.gradviz").findings
    assert (first.rule, len(first.consequences) > 10) == ("backward-twice", True)
    assert first.patch is not None
    assert len(made) < 5
