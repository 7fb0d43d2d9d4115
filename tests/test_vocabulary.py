"""A fact has one name: columns of statistics are called, not counted, and kinds of ops are told in one place."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import gradviz
from gradviz.events.values import Stat, Stats
from gradviz.query import ops
from gradviz.query.predicate_columns import STORED

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


CLASSES = {name: value for name, value in vars(ops).items() if isinstance(value, frozenset)}
OF_PYTHON = {"deepcopy", "T", "data", "getitem"}  # names that are no function's of PyTorch


@pytest.mark.parametrize("name", CLASSES)
def test_each_name_of_a_class_is_one_of_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    places = (torch, torch.Tensor, torch.nn.functional, torch.nn.init, torch.ops.aten)
    unknown = {op for op in CLASSES[name] - OF_PYTHON if not any(hasattr(place, op) for place in places)}
    assert unknown - {f"{op}_" for op in CLASSES[name]} == set()


def test_an_op_in_place_is_of_the_kind_of_the_op() -> None:
    for kind in (ops.RECTIFIERS, ops.SATURATING, ops.LOGARITHMS, ops.CLAMPING, ops.SUMS):
        assert {op for op in kind if not op.endswith("_")} == {op.removesuffix("_") for op in kind}
