"""`[tool.gradviz]` in pyproject.toml: rules, severity and thresholds of `check`; a bad key is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gradviz.diagnose import RULES
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.settings_file import THRESHOLDS, BadSettings, settings_at

Command = Callable[..., CompletedProcess[str]]

DYING = """\
import torch
w = torch.tensor([1.0] * 8 + [-1.0] * 24, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = w.relu().sum()
    loss.backward()
    optimizer.step()
"""


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.gradviz]\n{text}")


def test_without_a_file_everything_is_the_default(tmp_path: Path) -> None:
    assert settings_at(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nkey = 1\n")
    assert settings_at(tmp_path) == Settings()


def test_the_file_of_a_directory_above_applies(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[project]\n")
    write(tmp_path, 'ignore = ["late-clip"]\nfail-on = "error"\n[tool.gradviz.thresholds]\ndead-relu = 0.9\n')
    found = settings_at(tmp_path / "inner")
    assert (found.ignore, found.fail_on, found.threshold("dead-relu", THRESHOLDS["dead-relu"])) == (
        ("late-clip",),
        "error",
        0.9,
    )
    assert found.threshold("lr-too-large", THRESHOLDS["lr-too-large"]) == 1e3


def test_every_threshold_belongs_to_a_rule() -> None:
    assert THRESHOLDS.keys() <= {rule.id for rule in RULES}
    assert all(known.least <= known.default <= known.largest for known in THRESHOLDS.values())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("unknown = 1", "[tool.gradviz] has no key 'unknown'; it has select, ignore, fail-on, thresholds"),
        ('ignore = "late-clip"', "[tool.gradviz] ignore: it is a list of rules"),
        ('select = ["nothing"]', "[tool.gradviz] select: there is no rule 'nothing'"),
        ('fail-on = "note"', "[tool.gradviz] fail-on: it is error or warning, not 'note'"),
        ("thresholds = 3", "[tool.gradviz] thresholds: it is a table"),
        ("thresholds = {late-clip = 1}", "there is none for 'late-clip'; the rules with one are dead-relu"),
        ("thresholds = {dead-relu = 2}", "dead-relu is a number, 0.5 to 1 (the share of zeros"),
        ("thresholds = {dead-relu = 'x'}", "not 'x'"),
        ("thresholds = {lr-too-large = true}", "lr-too-large is a number, at least 1"),
        ("key = ", "cannot be read"),
    ],
)
def test_a_bad_key_or_value_is_one_line(gradviz_here: Command, tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path, text)
    with pytest.raises(BadSettings) as raised:
        settings_at(tmp_path)
    assert says in str(raised.value)
    (tmp_path / "sound.py").write_text("print('it ran')\n")
    done = gradviz_here("trace", "sound.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)  # before the script runs


def test_check_uses_them_and_options_come_before_them(gradviz_here: Command, tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    assert gradviz_here("check", "--engine", "numpy", "dying.py").returncode == 0  # 75 % zeros are healthy
    write(tmp_path, "[tool.gradviz.thresholds]\ndead-relu = 0.7\n")
    done = gradviz_here("check", "dying.gradviz")
    assert done.returncode == 1
    assert "warning dead-relu  dying.py:6" in done.stdout
    write(tmp_path, 'fail-on = "error"\nthresholds = {dead-relu = 0.7}\n')
    assert gradviz_here("check", "dying.gradviz").returncode == 0
    assert gradviz_here("check", "dying.gradviz", "--fail-on", "warning").returncode == 1
    write(tmp_path, 'ignore = ["dead-relu"]\nthresholds = {dead-relu = 0.7}\n')
    assert "dead-relu" not in gradviz_here("check", "dying.gradviz").stdout
    assert "dead-relu" in gradviz_here("check", "dying.gradviz", "--ignore", "late-clip").stdout


def test_the_documentation_lists_every_threshold() -> None:
    rows = [f"| `{rule}` | {known.default:g} | {known.says} |" for rule, known in THRESHOLDS.items()]
    assert "\n".join(rows) in (Path(__file__).parents[2] / "docs" / "check.md").read_text()
