"""`gradviz fix`: the edit of a finding as a diff that git takes, its proof, and when it is written."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from tests.check.test_try_cures import BROKEN, FORGOTTEN, ON_TORCH, is_advice
from tests.invoked import invoked
from tests.zoo_programs import Program, checked

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")
SOUND = "import torch\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()\n"
ADVISED = """
import torch
net = torch.nn.Linear(3, 2)
loss = net(torch.ones(4, 3)).argmax(1).float().mean()
loss.backward()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training without zero_grad() in the current folder, to be run with the number of its steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FORGOTTEN)
    return tmp_path / "train.py"


def fixed(*arguments: str) -> Result:
    return invoked(["fix", *(["--engine", "numpy"] if not arguments[-1].endswith(".gradviz") else []), *arguments])


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> None:
    settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "core.autocrlf=false"]
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def git_applied(diff: bytes, folder: Path) -> None:
    git(folder, "apply", stdin=diff)


def other_files(script: Path) -> list[str]:
    return sorted(path.name for path in script.parent.iterdir() if path != script)


# --- the diff and its proof


def test_an_edit_is_printed_with_its_proof(script: Path) -> None:
    done = fixed("train.py", "20")
    assert done.exit_code == 0
    lines = done.stdout[done.stdout.index("1. error") :].splitlines()
    assert lines[0].startswith("1. error stale-gradient  train.py:10: pass 2 adds to gradients")
    assert lines[1:3] == ["--- a/train.py", "+++ b/train.py"]
    assert "+    opt.zero_grad()" in lines
    verdict, _, loss, gradient, equal = lines[-5:]
    assert verdict == "proved    a copy with the edit ran: finding gone, no other came"
    assert loss.startswith("loss      ")
    assert loss.count(" in 20 steps") == 2
    assert gradient.count("net.weight.grad rms ") == 2
    assert equal.startswith("equal     to the last bit in all that was recorded, until train.py:")
    assert script.read_text() == FORGOTTEN
    assert other_files(script) == ["train.gradviz"]


@pytest.mark.slow
def test_the_proof_tells_where_the_runs_begin_to_differ(script: Path) -> None:
    script.write_text(FORGOTTEN.replace("(net(x) - ", "(net(x).detach() - "))  # which ends in an error
    done = fixed("train.py", "2")
    assert done.exit_code == 0, done.output
    equal = done.stdout.splitlines()[-1]
    assert equal.startswith("equal     to the last bit in all that was recorded, until train.py:10 before pass 1: ")


@pytest.mark.slow
def test_an_error_that_could_not_be_seen_before_is_told_and_refutes_nothing(script: Path) -> None:
    script.write_text(FORGOTTEN.replace("(net(x) - ", "(net(x).detach() - "))
    done = fixed("train.py", "2")
    assert "proved    a copy with the edit ran: finding gone, 1 new finding" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("new "))
    assert line.startswith("new       error stale-gradient  train.py:10: ")
    assert line.endswith(" (a rule that could not be checked before)")


@needs_git
def test_git_applies_the_diff_alone_on_stdout(script: Path) -> None:
    done = fixed("--diff", "train.py", "3")
    assert done.exit_code == 0
    assert done.stdout.startswith("--- a/train.py\n+++ b/train.py\n@@")
    assert "proved    a copy with the edit ran" in done.stderr
    git_applied(done.stdout_bytes, script.parent)
    assert script.read_text() == FORGOTTEN.replace("    loss.backward()", "    opt.zero_grad()\n    loss.backward()")


def test_a_trace_is_only_read(script: Path) -> None:
    invoked(["trace", "--engine", "numpy", "train.py", "3"])
    done = fixed("train.gradviz")
    assert done.exit_code == 0
    assert "+    opt.zero_grad()" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "not proved: gradviz fix train.py, with the arguments of the run, runs it with the edit"
    refused = fixed("--apply", "train.gradviz")
    assert refused.exit_code == 2
    assert "--apply runs the program to prove the edit, so it needs SCRIPT" in refused.stderr
    assert script.read_text() == FORGOTTEN


def test_a_trace_whose_program_has_changed_since_says_so(script: Path) -> None:
    invoked(["trace", "--engine", "numpy", "train.py", "3"])
    script.write_text(FORGOTTEN + "# more\n")
    done = fixed("train.gradviz")
    assert done.exit_code == 0
    assert "train.py is not here with the text that was recorded" in done.stdout


def test_where_no_edit_is_sure_the_choices_are_shown(script: Path) -> None:
    script.write_text(ADVISED)
    done = fixed("train.py")
    assert done.exit_code == 1
    assert "no sure edit: " in done.stdout
    assert fixed("--diff", "train.py").stdout == ""


def test_a_program_without_a_finding_has_nothing_to_cure(script: Path) -> None:
    script.write_text(SOUND)
    done = fixed("train.py")
    assert (done.exit_code, done.stdout) == (0, "no finding, so there is nothing to cure\n")


@pytest.mark.slow
def test_a_name_is_not_assigned_to_itself(script: Path) -> None:
    script.write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\nh = w * 2\n"
        "h = h.detach()\n(h * w).sum().backward()\nh.sum().backward()\n"
    )
    assert "-h = h.detach()\n (h * w)" in fixed("train.py").stdout


@pytest.mark.slow
def test_a_finding_is_chosen_by_its_number(script: Path) -> None:
    script.write_text(
        FORGOTTEN.replace("for i in", "seen = 0\nfor i in").replace("opt.step()", "opt.step()\n    seen += loss")
    )
    done = fixed("--finding", "2", "train.py", "6")
    assert done.exit_code == 0, done.output
    assert "2. warning graph-leak  train.py:13: " in done.stdout
    assert "-    seen += loss\n+    seen += loss.detach()" in done.stdout
    beyond = fixed("--finding", "9", "train.gradviz")
    assert beyond.exit_code == 2
    assert "there is no finding 9: check lists 2" in beyond.stderr


@pytest.mark.parametrize("name", ["a\0b.py", "x" * 5000 + ".py", "a\nb.py", "\x1b[31mred.py", "../../etc/passwd"])
def test_a_file_that_a_trace_names_oddly_is_named_in_one_line(name: str, script: Path) -> None:
    invoked(["trace", "--engine", "numpy", "train.py", "3"])
    with sqlite3.connect("train.gradviz") as database:
        for table in ("sites", "sources"):
            database.execute(f"UPDATE {table} SET file = ? WHERE file = 'train.py'", [name])
    database.close()
    done = fixed("--diff", "train.gradviz")
    assert done.exit_code == 0, done.output
    head = done.stdout.split("\n")
    assert [head[0][:6], head[1][:6], head[2][:3]] == ["--- a/", "+++ b/", "@@ "]
    assert head[0].isprintable()
    assert "not proved: gradviz fix SCRIPT" in done.stderr


def test_a_trace_without_source_texts_has_no_edit(script: Path) -> None:
    invoked(["trace", "--engine", "numpy", "--no-source", "train.py", "3"])
    done = fixed("train.gradviz")
    assert (done.exit_code, done.stdout.count("\n")) == (2, 1)
    assert "the trace has no source texts" in done.stderr


@pytest.mark.slow
def test_a_program_that_ends_in_an_exception_is_cured(script: Path) -> None:
    script.write_text(
        "import torch\nx = torch.ones(2, requires_grad=True)\ny = x.exp()\ny.add_(1)\ny.sum().backward()\n"
    )
    done = fixed("train.py")
    assert done.exit_code == 0, done.output
    assert "finding gone, no other came" in done.stdout


@pytest.mark.slow
def test_a_loss_that_is_nan_is_shown_as_such(script: Path) -> None:
    script.write_text(
        "import torch\nx = torch.tensor([0.0, 2.0], requires_grad=True)\nloss = (x * x.log()).sum()\nloss.backward()\n"
    )
    done = fixed("train.py")
    assert done.exit_code == 0, done.output
    assert "nan in 1 pass" in done.stdout
    assert "1.39 in 1 pass" in done.stdout


# --- writing


def test_an_edit_is_written_when_it_is_proved(script: Path) -> None:
    script.chmod(0o750)
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "written   train.py"
    assert script.read_text() == FORGOTTEN.replace("    loss.backward()", "    opt.zero_grad()\n    loss.backward()")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert other_files(script) == ["train.gradviz"]


STORED = {
    "CRLF": FORGOTTEN.replace("\n", "\r\n").encode(),
    "no last newline": FORGOTTEN.removesuffix('\nprint("trained")\n').encode(),
    "a byte order mark": b"\xef\xbb\xbf" + FORGOTTEN.encode(),
    "Latin-1": ("# -*- coding: latin-1 -*-" + FORGOTTEN.replace("trained", "tr\u00e4ined")).encode("latin-1"),
    "other letters": FORGOTTEN.replace("trained", "\ud6c8\ub828").encode(),
    "a form feed and a line separator": FORGOTTEN.replace("net = ", "\f\nkept = '\u2028'\nnet = ").encode(),
}


@pytest.mark.slow
@needs_git
@pytest.mark.parametrize("content", STORED.values(), ids=STORED)
def test_all_other_bytes_of_a_file_stay(content: bytes, script: Path) -> None:
    script.write_bytes(content)
    done = fixed("--diff", "train.py", "3")
    assert done.exit_code == 0, done.output
    applied = fixed("--apply", "train.py", "3")
    assert applied.exit_code == 0, applied.output
    end = b"\r\n" if b"\r\n" in content else b"\n"
    expected = content.replace(b"    loss.backward()", b"    opt.zero_grad()" + end + b"    loss.backward()")
    assert script.read_bytes() == expected
    script.write_bytes(content)
    git_applied(done.stdout_bytes, script.parent)
    assert script.read_bytes() == expected


@pytest.mark.slow
def test_an_edit_is_written_through_a_link(script: Path) -> None:
    (script.parent / "real").mkdir()
    real = script.rename(script.parent / "real" / "training.py")
    script.symlink_to(real)
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 0, done.output
    assert script.is_symlink()
    assert "opt.zero_grad()" in real.read_text()


@needs_git
@pytest.mark.parametrize("state", ["changed", "staged", "untracked"])
def test_a_file_that_git_could_not_bring_back_is_not_written(state: str, script: Path) -> None:
    git(script.parent, "init", "-q")
    if state != "untracked":
        script.write_text("# first\n")
        git(script.parent, "add", "train.py")
        git(script.parent, "commit", "-qm", "first")
        script.write_text(FORGOTTEN)
    if state == "staged":
        git(script.parent, "add", "train.py")
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("gradviz: train.py has changes that are not committed: ")
    assert "proved" not in done.stdout
    assert script.read_text() == FORGOTTEN


@pytest.mark.slow
@needs_git
def test_a_committed_file_is_written(script: Path) -> None:
    git(script.parent, "init", "-q")
    git(script.parent, "add", "train.py")
    git(script.parent, "commit", "-qm", "first")
    assert fixed("--apply", "train.py", "3").exit_code == 0
    assert "opt.zero_grad()" in script.read_text()


@pytest.mark.slow
def test_a_proof_that_fails_writes_nothing(script: Path) -> None:
    guarded = FORGOTTEN + "assert 'zero' + '_grad' not in open(__file__).read()\n"
    script.write_text(guarded)
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 1
    assert "not proved  with the cure the script ended with AssertionError" in done.stdout
    assert script.read_text() == guarded


@pytest.mark.slow
def test_a_file_that_changes_during_the_proof_is_not_written(script: Path) -> None:
    changing = "import pathlib\nif 'gradviz-' in __file__:\n    pathlib.Path('train.py').open('a').write('# more')\n"
    script.write_text(FORGOTTEN + changing)
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 2
    assert "proved    a copy with the edit ran" in done.stdout
    assert done.stderr.splitlines()[-1] == "gradviz: train.py has changed: nothing was written"
    assert script.read_text() == FORGOTTEN + changing + "# more"


@pytest.mark.slow
def test_a_module_beside_the_script_is_written(script: Path) -> None:
    loss = script.parent / "pieces" / "loss.py"
    loss.parent.mkdir()
    loss.write_text("def loss_of(net, x):\n    return net(x).detach().pow(2).mean()\n")
    script.write_text(
        "import torch\nfrom pieces.loss import loss_of\n"
        "net = torch.nn.Linear(3, 1)\nloss_of(net, torch.ones(2, 3)).backward()\n"
    )
    done = fixed("--apply", "train.py")
    assert done.exit_code == 0, done.output
    assert "--- a/pieces/loss.py" in done.stdout
    assert ".detach()" not in loss.read_text()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="a file that even its owner may not write")
def test_a_read_only_file_is_not_written(script: Path) -> None:
    script.chmod(0o444)
    done = fixed("--apply", "train.py", "3")
    assert done.exit_code == 2
    assert "train.py is read-only" in done.stderr


# --- the zoo

PAGE = Path(__file__).parents[2] / "docs/fix.md"
EDITED = [program for program in BROKEN if not is_advice(program)]


@needs_git
@pytest.mark.slow
@pytest.mark.parametrize("program", EDITED, ids=lambda program: program.name)
def test_git_applies_the_diff_of_each_program_of_the_zoo(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    patch = checked(program, tmp_path).findings[0].patch
    assert patch is not None
    git_applied(replace(patch, file="program.py").diff.encode(), tmp_path)
    assert (tmp_path / "program.py").read_text() == patch.after


def counts() -> tuple[Counter[str], Counter[str]]:
    """Of how many programs of the zoo the finding is of each rule, and of how many it has an edit. Tests of
    `tests/check/test_try_cures.py` run each of the latter with its edit."""
    broken = [*BROKEN, *ON_TORCH]
    edits = Counter(program.rule for program in broken if not is_advice(program))
    return Counter(program.rule for program in broken), edits


def test_at_least_seven_in_ten_findings_have_a_proved_edit() -> None:
    programs, edits = counts()
    assert edits.total() / programs.total() >= 0.7


def test_the_page_names_all_rules_and_no_edit_too_many() -> None:
    programs, edits = counts()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {rule for rule, *_ in rows} == set(programs), "python -m tests.cli.test_fix writes the table anew"
    too_many = [rule for rule, _, with_edit in rows if int(with_edit) > edits[rule]]
    assert too_many == [], "python -m tests.cli.test_fix writes the table anew"


def write_table() -> None:
    programs, edits = counts()
    lines = [f"| `{rule}` | {programs[rule]} | {edits[rule]} |" for rule in sorted(programs)]
    lines.append(f"| all | {programs.total()} | {edits.total()} |")
    head = "| rule | programs | with a proved edit |\n|-|-|-|\n"
    before, _, _ = PAGE.read_text().partition(head)
    PAGE.write_text(before + head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    write_table()
