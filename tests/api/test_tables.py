"""A run as tables: SQL and pandas give what happened, and every documented question is answered."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.events.values import Stat
from gradviz.recorded_run import TABLE_NAMES, NoTable, RecordedRun, Rows, type_of

DOCS = (Path(__file__).parents[2] / "docs/tables.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"```sql\n(.*?)```", DOCS, re.DOTALL)
STEPS, SPIKE = 12, 7

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    """A training in which one gradient is thirty times as large in one pass, and a NaN is made beside it."""
    with package.record(tmp_path / "run.gradviz"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            out = net(torch.ones(2, 3))
            loss = out.sum() + (900.0 if step == SPIKE else 1.0) * net[2].bias.sum()
            loss.backward()
            optimizer.step()
            scheduler.step()
        torch.log(-torch.ones(2))
    return package.open(tmp_path / "run.gradviz")


def test_the_docs_name_every_table_with_its_columns(run: RecordedRun) -> None:
    told = dict(re.findall(r"^\| `(\w+)`: .*? \| (.*) \|$", DOCS, re.MULTILINE))
    assert tuple(told) == TABLE_NAMES
    for table, columns in told.items():
        assert run.sql(f"SELECT * FROM {table} LIMIT 1").columns == tuple(re.findall(r"`(\w+)`", columns))


@pytest.mark.parametrize("question", QUESTIONS, ids=range(len(QUESTIONS)))
def test_every_documented_question_is_answered(run: RecordedRun, question: str) -> None:
    assert len(run.sql(question)) > 0


def test_the_gradient_that_first_exceeds_ten_times_its_median_is_named(run: RecordedRun) -> None:
    ((name, number, times),) = run.sql(QUESTIONS[0])
    assert (name, number) == ("net.2.bias", SPIKE)
    assert times == pytest.approx(902 / 3)


def test_the_first_nan_of_a_forward_pass_is_found(run: RecordedRun) -> None:
    ((op, module, file, line, event),) = run.sql(QUESTIONS[1])
    assert (op, module, Path(file).name) == ("log", "", "test_tables.py")
    assert Path(file).read_text().splitlines()[line - 1].strip() == "torch.log(-torch.ones(2))"
    assert run.event(event).outputs


def test_shares_of_modules_add_up(run: RecordedRun) -> None:
    found = run.sql(QUESTIONS[2])
    assert {module for module, *_ in found} == {"net.0", "net.2"}
    assert sum(share for *_, share in found) == pytest.approx(1.0)


def test_changes_of_the_rate_come_with_the_loss_before(run: RecordedRun) -> None:
    losses = dict(run.sql("SELECT pass, loss FROM passes"))
    assert list(run.sql(QUESTIONS[3])) == [(6, 5e-7, losses[6]), (11, 2.5e-7, losses[11])]


def test_updates_are_those_of_the_run(run: RecordedRun) -> None:
    rows = run.sql(
        "SELECT change, updates.parameter_norm, ratio FROM updates JOIN gradients USING (name) "
        f"WHERE name = 'net.2.bias' AND step = {SPIKE} AND pass = step"
    )
    ((change, size, ratio),) = rows
    assert change == pytest.approx(902 * 5e-7, rel=1e-2)
    assert ratio == pytest.approx(change / size)


def test_only_reading_is_allowed(run: RecordedRun, tmp_path: Path) -> None:
    for query in ("DELETE FROM gradients", f"ATTACH '{tmp_path}/x.db' AS x", "PRAGMA journal_mode = WAL"):
        with pytest.raises(NoTable, match=r"SQLite says: not authorized"):
            run.sql(query)
    assert not (tmp_path / "x.db").exists()


def test_what_sqlite_refuses_is_one_line(run: RecordedRun) -> None:
    with pytest.raises(NoTable, match=r"^SQLite says: no such table: gradient \(the tables are passes, .*\)$"):
        run.sql("SELECT * FROM gradient")
    with pytest.raises(NoTable, match="one statement"):
        run.sql("SELECT 1; SELECT 2")
    with pytest.raises(NoTable, match="no table 'gradient'"):
        run.to_pandas("gradient")


def test_a_run_without_values_has_null_where_they_would_be(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz", values="none"):
        w = torch.ones(2, requires_grad=True)
        w.sum().backward()
    with package.open(tmp_path / "run.gradviz") as run:
        assert list(run.sql("SELECT name, norm, rms, nan FROM gradients")) == [("w", None, None, None)]
        assert list(run.sql("SELECT loss FROM passes")) == [(None,)]
        for table in TABLE_NAMES:
            run.sql(f"SELECT * FROM {table}")


def test_an_empty_run_has_empty_tables(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        pass
    with package.open(tmp_path / "run.gradviz") as run:
        assert {table: len(run.sql(f"SELECT * FROM {table}")) for table in TABLE_NAMES} == dict.fromkeys(TABLE_NAMES, 0)


@pytest.mark.parametrize("count", [1e300, np.inf, -np.inf])
def test_counts_of_a_damaged_trace_are_null_where_they_cannot_be(run: RecordedRun, count: float) -> None:
    run.states.stats[:, Stat.NAN] = count
    for table in ("gradients", "ops"):
        assert set(run.sql(f"SELECT nan FROM {table}")) == {(None,)}


@pytest.mark.slow
def test_pandas_gets_the_same_rows(run: RecordedRun) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install -e '.[pandas]'")
    frame = run.to_pandas()
    rows = run.sql("SELECT * FROM gradients")
    assert list(frame.columns) == list(rows.columns)
    assert np.allclose(frame["norm"], [row[rows.columns.index("norm")] for row in rows])
    assert rows.to_pandas().equals(frame)


@pytest.mark.slow
def test_duckdb_answers_the_documented_question_over_several_runs(run: RecordedRun) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install -e '.[pandas]'")
    pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    answer = answer_of("import pandas", {"train.gradviz": str(run.path)})
    ((path, name, number, times),) = answer.fetchall()
    assert (path, name, number) == (str(run.path), "net.2.bias", SPIKE)
    assert times == pytest.approx(902 / 3)


@pytest.mark.slow
def test_duckdb_answers_the_documented_question_on_the_file(run: RecordedRun, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    try:
        duckdb.sql("SET autoinstall_known_extensions = false; LOAD sqlite_scanner")
    except duckdb.Error:
        pytest.skip("DuckDB's extension for SQLite is not installed: docs/tables.md says how")
    run.save_tables(tmp_path / "run.db")
    answer = answer_of("ATTACH", {"two_layers.db": str(tmp_path / "run.db")})
    ((name, number, times),) = answer.fetchall()
    duckdb.sql("DETACH run")
    assert (name, number) == ("net.2.bias", SPIKE)
    assert times == pytest.approx(902 / 3)


def answer_of(word: str, paths: dict[str, str]) -> Any:
    """What the documented program with this word answers, of files at other paths."""
    (block,) = (one for one in re.findall(r"```py\n(.*?)```", DOCS, re.DOTALL) if "duckdb.sql" in one and word in one)
    before, _, last = block.rpartition("duckdb.sql(")
    asked = f"{before}answer = duckdb.sql({last}"
    for written, path in paths.items():
        asked = asked.replace(written, path)
    names: dict[str, Any] = {"gradviz": package}
    exec(asked, names)
    return names["answer"]


@pytest.mark.slow
def test_the_file_of_tables_holds_what_sql_answers(run: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("what was there before")
    run.save_tables(tmp_path / "run.db")
    with closing(sqlite3.connect(tmp_path / "run.db")) as file:
        for table in TABLE_NAMES:
            assert file.execute(f"SELECT * FROM {table}").fetchall() == run.sql(f"SELECT * FROM {table}").rows
    assert {path.name for path in tmp_path.iterdir()} == {"run.db", "run.gradviz"}


def test_each_value_is_of_the_type_of_its_column(run: RecordedRun) -> None:
    types = {"TEXT": str, "REAL": float, "INTEGER": int}
    for table in TABLE_NAMES:
        rows = run.sql(f"SELECT * FROM {table}")
        for name, values in zip(rows.columns, zip(*rows, strict=True), strict=False):
            assert {type(value) for value in values} <= {types[type_of(name)], type(None)}, (table, name)


@pytest.mark.slow
def test_findings_and_errors_are_tables(tmp_path: Path) -> None:
    with suppress(RuntimeError), package.record(tmp_path / "run.gradviz"):
        w = torch.ones(2, requires_grad=True)
        (w * w).backward()
    with package.open(tmp_path / "run.gradviz") as run:
        ((rule, file, line),) = run.sql("SELECT rule, file, line FROM findings WHERE severity = 'error'")
        assert (rule, Path(file).name) == ("nonscalar-backward", "test_tables.py")
        assert Path(file).read_text().splitlines()[line - 1].strip() == "(w * w).backward()"
        ((error, message),) = run.sql("SELECT error, message FROM errors")
        assert (error, message.split()[0]) == ("RuntimeError", "grad")


def test_the_command_writes_the_tables_and_names_them(run: RecordedRun, tmp_path: Path, gradviz_here: Run) -> None:
    done = gradviz_here("tables", "run.gradviz")
    assert done.stdout == f"wrote run.sqlite: the tables {', '.join(TABLE_NAMES)}\n"
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as file:
        assert file.execute("SELECT count(*) FROM passes").fetchone() == (STEPS,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("run.duckdb", "run.duckdb has no ending of an SQLite file: use one of .sqlite .sqlite3 .db"),
        ("nowhere/run.db", "cannot write nowhere/run.db: no such file or directory"),
        ("folder.db", "cannot write folder.db: is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_in_one_line(
    run: RecordedRun, tmp_path: Path, gradviz_here: Run, output: str, said: str
) -> None:
    (tmp_path / "folder.db").mkdir()
    done = gradviz_here("tables", "run.gradviz", "-o", output)
    assert (done.returncode, done.stderr) == (2, f"gradviz: {said}\n")


def test_without_pandas_one_line_says_what_to_do(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("gradviz.recorded_run.find_spec", lambda name: None)
    with pytest.raises(NoTable, match=r"^to_pandas needs pandas, which is not installed: pip install pandas$"):
        run.to_pandas()


def test_rows_show_themselves_as_text_and_as_a_table() -> None:
    rows = Rows(("name", "norm"), [("w<b>", 0.123456789), ("v", None), *[("x", 1.0)] * 40])
    text, html = repr(rows), rows._repr_html_()
    assert text.splitlines()[:3] == ["name  norm", "w<b>  0.123457", "v     NULL"]
    assert text.splitlines()[-1] == "and 12 more rows"
    assert "w&lt;b&gt;" in html
    assert "<b>" not in html
    assert (html.count("<tr>"), len(rows), rows[1]) == (31, 42, ("v", None))


def test_findings_show_themselves_as_a_table(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            (w * w).sum().backward()
            optimizer.step()
    html = package.check(tmp_path / "run.gradviz")._repr_html_()
    assert "stale-gradient" in html
    assert "test_tables.py:" in html
    assert "optimizer.zero_grad()" in html
    assert re.search(r"\d+ rules checked, \d+ not", html)


@pytest.mark.slow
def test_findings_and_reasons_print_as_lines_of_text(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w, v = torch.ones(2, requires_grad=True), torch.ones(100, requires_grad=True)
        optimizer = torch.optim.SGD([w, v], lr=0.1)
        for _ in range(3):
            loss = (w * w).sum() + (v**2).sum()
            loss.backward()
            optimizer.step()
    counted, first, message, cure = repr(package.check(tmp_path / "run.gradviz")).splitlines()
    assert counted.startswith("1 finding · ")
    assert re.fullmatch(r"1 error stale-gradient  test_tables\.py:\d+", first)
    assert message.startswith("   pass 2 adds to gradients")
    assert cure == "   cure  optimizer.zero_grad()  # before backward()"
    head, share, *path = repr(package.why(tmp_path / "run.gradviz", "w", 1)).splitlines()
    assert head.startswith("gradient of w = [2, 2] in pass 1")
    assert (share, len(path)) == ("50 %  [1, 1]", 9)
    head, heads, *stages, last = repr(package.why(tmp_path / "run.gradviz", "v", 1)).splitlines()
    assert head.startswith("gradient of v = (100) norm 20 in pass 1")
    assert heads.split() == ["place", "module", "or", "operation", "gain", "goes", "on"]
    assert stages[-1].endswith("→ norm 20")
    assert last.startswith("norms: elements were not recorded")


def test_reasons_show_themselves_as_tables(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w, v = torch.ones(2, requires_grad=True), torch.ones(100, requires_grad=True)
        loss = (w * w).sum() + (v * v).sum()
        loss.backward()
    exact = package.why(tmp_path / "run.gradviz", "w")._repr_html_()
    by_norms = package.why(tmp_path / "run.gradviz", "v")._repr_html_()
    assert "gradient of w = [2, 2] in pass 1" in exact
    assert exact.count("50 %") == 2
    assert "<br>" in exact  # a path has a line for each step
    assert "gradient of v = (100) norm 20 in pass 1" in by_norms
    assert "module or operation" in by_norms
