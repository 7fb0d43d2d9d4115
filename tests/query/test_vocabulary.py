"""A fact has one name: columns of statistics are called, not counted, and kinds of ops are told in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gradviz
from gradviz.events.values import Stat, Stats
from gradviz.query import ops
from gradviz.query.predicate_columns import STORED

PACKAGE = Path(gradviz.__file__).parent


def test_the_columns_of_statistics_are_the_fields_of_statistics() -> None:
    names = [stat.name.lower() for stat in Stat]
    assert names == list(Stats._fields) == list(STORED)
    assert [*Stat] == list(range(len(names)))


def test_no_column_of_the_statistics_is_given_by_its_number() -> None:
    by_number = re.compile(
        r"\bstats(\[[^\]]*\])?\[[^\]]*, ?\[?\d|^_(MIN|MAX|MEAN|RMS|NAN|INF|ZEROS)\b.* = \d", re.MULTILINE
    )
    files = [path for path in PACKAGE.rglob("*.py") if "engine" not in path.parts]
    assert len(files) > 200
    found = {path.name: match[0] for path in files for match in by_number.finditer(path.read_text("utf-8"))}
    assert found == {}


CLASSES = {name: value for name, value in vars(ops).items() if isinstance(value, frozenset)}
# Names that are no function's of PyTorch: of Python, and of DTensor's own Functions.
OF_OTHERS = {"deepcopy", "T", "data", "getitem"} | ops.OF_PARTS


@pytest.mark.parametrize("name", CLASSES)
def test_each_name_of_a_class_is_one_of_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    places = (torch, torch.Tensor, torch.nn.functional, torch.nn.init, torch.linalg, torch.ops.aten)
    unknown = {op for op in CLASSES[name] - OF_OTHERS if not any(hasattr(place, op) for place in places)}
    assert unknown - {f"{op}_" for op in CLASSES[name]} == set()


def test_an_op_in_place_is_of_the_kind_of_the_op() -> None:
    for kind in (ops.RECTIFIERS, ops.SATURATING, ops.LOGARITHMS, ops.CLAMPING, ops.SUMS):
        assert {op for op in kind if not op.endswith("_")} == {op.removesuffix("_") for op in kind}


def test_a_kind_that_has_a_function_has_it_by_its_other_names_too() -> None:
    pytest.importorskip("torch")
    from torch.overrides import get_overridable_functions

    functions = {f for functions in get_overridable_functions().values() for f in functions}
    told = re.compile(r"\b[Aa]lias (?:for|of) :(?:func|meth):`~?([\w.]+)`")
    alike = {
        (function.__name__, found[1].rpartition(".")[2])
        for function in functions
        if (found := told.search(getattr(function, "__doc__", None) or ""))
    }
    assert len(alike) > 30
    missing = [
        (name, kind, other)
        for pair in alike
        for name, other in (pair, pair[::-1])
        for kind, names in CLASSES.items()
        if name in names and other not in names and other != "expit"  # which is `special_expit`
    ]
    assert missing == []


def test_each_function_of_pytorch_is_of_a_kind_or_listed_as_of_none() -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"the list is that of PyTorch 2.13, and this is {torch.__version__}")
    from torch.overrides import get_overridable_functions

    functions = {f for functions in get_overridable_functions().values() for f in functions}
    names = {name for f in functions if (name := getattr(f, "__name__", "")) and not name.startswith("_")}
    of_a_kind = set().union(*CLASSES.values())
    of_none = set((Path(__file__).parent / "ops_of_no_kind.txt").read_text("utf-8").split())
    assert names - of_a_kind - of_none == set()
    assert of_none & of_a_kind == set()


@pytest.mark.slow
def test_a_function_with_several_names_is_asked_for_by_its_kind() -> None:
    several = {name for pair in ops._OTHER_NAMES.items() for name in (pair[0], *pair[1])}
    files = [p for p in PACKAGE.rglob("*.py") if not {"engine", "sources", "replay"} & set(p.parts)]
    assert len(files) > 200
    found = [
        (path.name, compared.lineno)
        for path in files
        for compared in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(compared, ast.Compare) and isinstance(compared.left, ast.Attribute) and compared.left.attr == "op"
        for literal in ast.walk(compared)
        if isinstance(literal, ast.Constant) and literal.value in several
    ]
    assert found == []
