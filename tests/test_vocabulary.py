"""A fact has one name: the columns of statistics are called, not counted."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import gradviz
from gradviz.events.values import Stat, Stats
from gradviz.query.columns import STORED

PACKAGE = Path(gradviz.__file__).parent


def test_the_columns_of_statistics_are_the_fields_of_statistics() -> None:
    names = [stat.name.lower() for stat in Stat]
    assert names == [field.name for field in fields(Stats)] == list(STORED)
    assert [*Stat] == list(range(len(names)))


def test_no_column_of_the_statistics_is_given_by_its_number() -> None:
    by_number = re.compile(
        r"\bstats(\[[^\]]*\])?\[[^\]]*, ?\[?\d|^_(MIN|MAX|MEAN|RMS|NAN|INF|ZEROS)\b.* = \d", re.MULTILINE
    )
    files = [path for path in PACKAGE.rglob("*.py") if "engine" not in path.parts]
    assert len(files) > 300
    found = {path.name: match[0] for path in files for match in by_number.finditer(path.read_text("utf-8"))}
    assert found == {}
