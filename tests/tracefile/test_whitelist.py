"""What the filters of `gradviz redact` leave of texts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradviz
from gradviz.events.event_layout import LAYOUTS
from gradviz.events.field_types import TEXT_PARTS
from gradviz.tracefile import whitelist
from gradviz.tracefile.database import COLUMNS, TABLES

FILTERS = [whitelist.name, whitelist.arguments, whitelist.formula, whitelist.path, whitelist.settings]


def test_every_text_of_an_event_has_a_filter() -> None:
    fields = {
        (kind, f.name) for kind, layout in LAYOUTS.items() for f in layout.fields.values() if f.stored.how == "text"
    }
    parts = {
        (kind, f"{field.name}.{part}")
        for kind, layout in LAYOUTS.items()
        for field in layout.lists
        for part in field.stored.parts
        if part in TEXT_PARTS
    }
    assert fields | parts == whitelist.TEXTS.keys()


def test_a_text_without_a_filter_is_left_out() -> None:
    kind = next(iter(LAYOUTS))
    assert whitelist.filter_of(kind, "a field to come")("secret") == "…"


def test_the_real_numbers_of_events_are_known() -> None:
    known = {(kind, f.name) for kind, layout in LAYOUTS.items() for f in layout.more if f.stored.how == "time"}
    of_elements = ("given", "found", "low", "high", "loss", "norm", "largest", "change", "size")
    computed = {(kind, name) for kind, name in known if name in of_elements}
    assert known - computed == whitelist.REALS


def test_the_texts_of_tables_are_those_that_redact_knows() -> None:
    texts = set(re.findall(r"(\w+) TEXT", TABLES))
    assert texts == {
        "key", "value", "text", "shape", "dtype", "device", "inputs", "file", "function", "names", "digest", "name",
        "role", "type", "message",
    }  # fmt: skip
    # `counts` are of the table of histograms, which no copy has
    assert {name for name, kind in COLUMNS.items() if kind is bytes} == {"data", "counts"}


def test_what_is_noted_of_a_run_and_not_known_is_left_out() -> None:
    assert whitelist.meta_of({"user": "secret", "python": "3.11.7", "argv": "secret"}) == {
        "python": "3.11.7",
        "redacted": "1",
    }


@pytest.mark.parametrize(
    ("key", "text", "kept"),
    [
        ("torch", "2.13.0+cpu", "2.13.0+cpu"),
        ("torch", "2.13.0+secret", "2.13.0"),
        ("python", "3.13.0rc1", "3.13.0rc1"),
        ("numpy", "secret", "…"),
        ("script", "/home/secret/train.py", "…/train.py"),
        ("ended", "exit 3", "exit 3"),
        ("ended", "exit secret", "exit …"),
        ("values", "full", "stats"),
        ("stopped", "its file /secret cannot be written; complete up to event 7", "…; complete up to event 7"),
        ("stopped", "secret", "…"),
        ("last", "secret", ""),
    ],
)
def test_what_stays_of_a_note(key: str, text: str, kept: str) -> None:
    assert whitelist.meta_of({key: text})[key] == kept


def test_the_class_of_an_error_stays() -> None:
    meta = {"ended": "error", "error": "ValueError: secret", "error_type": "ValueError", "error_line": "7"}
    assert whitelist.meta_of(meta)["error"] == "ValueError: …"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("exponent=3", "exponent=3"),
        ("dim=1, keepdim=True", "dim=1, keepdim=True"),
        ("(1, None, slice(None, 3))", "(1, None, slice(None, 3))"),
        ("dtype=float32, cuda:0", "dtype=float32, cuda:0"),
        ("2.0", "…"),
        ("1e-05, 0x7f33, 3.5j, 1000", "…, …, …, …"),
        ("'ij,jk->ik'", "…"),
        ("""reduction="it's", b'secret', 2""", "reduction=…, …, 2"),
        (r"'it\'s', 'cut o", "…, …"),
        ("'ends with \\", "…"),
    ],
)
def test_what_stays_of_arguments(text: str, kept: str) -> None:
    assert whitelist.arguments(text) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("net.0.weight", "net.0.weight"),
        ("main.<locals>.hook", "main.<locals>.hook"),
        ("<lambda>", "<lambda>"),
        ("w[0, 1]", "w[0, 1]"),
        ("aten::sum.dim_IntList", "aten::sum.dim_IntList"),
        ("params['a key'].w", "params[…].w"),
        ("params[0.73519]", "params[…]"),
        ("params[8675309]", "params[…]"),
        ("a module called so", "…"),
    ],
)
def test_what_stays_of_a_name(text: str, kept: str) -> None:
    assert whitelist.name(text) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("train.py", "train.py"),
        ("sub/train.py", "sub/train.py"),
        (r"sub\train.py", r"sub\train.py"),
        ("<stdin>", "<stdin>"),
        ("", ""),
        ("/home/secret/train.py", "…/train.py"),
        ("../secret/train.py", "…/train.py"),
        ("sub/../../secret/train.py", "…/train.py"),
        (r"C:\secret\train.py", "…/train.py"),
        ("C:train.py", "…/train.py"),
        (r"\\secret\share\train.py", "…/train.py"),
        (r"secret\..\..\train.py", "…/train.py"),
        ("file:///secret/train.py", "…/train.py"),
        ("~/secret/train.py", "…/train.py"),
        ("/home/secret/", "…"),
    ],
)
def test_what_stays_of_a_path(text: str, kept: str) -> None:
    assert whitelist.path(text) == kept


def test_settings_that_optimizers_have_stay() -> None:
    text = '{"lr": 0.1, "betas": [0.9, 0.99], "nesterov": true, "fused": null, "secret": 1, "eps": "secret"}'
    assert json.loads(whitelist.settings(text)) == {"lr": 0.1, "betas": [0.9, 0.99], "nesterov": True, "fused": None}
    assert whitelist.settings("secret") == "{}"


def test_rates_are_numbers() -> None:
    assert (whitelist.rates("[0.1, 0.01]"), whitelist.rates('["secret"]')) == ("[0.1, 0.01]", "[]")


def test_formulas_stay() -> None:
    file = Path(gradviz.__file__).parent / "sources/formulas.json"
    texts = set(re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(json.loads(file.read_text("utf-8")), ensure_ascii=False)))
    assert len(texts) > 300
    assert [text for text in texts if whitelist.formula(text) != text] == []


def test_the_numbers_of_a_program_leave_formulas() -> None:
    assert whitelist.formula("73519.2 · x^(3−1)") == "… · x^(3−1)"


@pytest.mark.parametrize("keep", FILTERS, ids=lambda keep: keep.__name__)
@given(st.text())
def test_what_was_filtered_stays(keep: object, text: str) -> None:
    assert callable(keep)
    assert keep(keep(text)) == keep(text)


SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="…"), min_size=1)


@given(st.lists(st.one_of(SECRETS, st.binary(min_size=1), st.floats(), st.integers(min_value=1000)), min_size=1))
def test_arguments_hold_nothing_of_values(values: list[object]) -> None:
    assert set(whitelist.arguments(", ".join(map(repr, values)))) <= set("…, -nainf")


@given(st.integers(0, 60), st.lists(SECRETS, min_size=1))
def test_a_text_that_was_cut_off_gives_no_more_away(length: int, values: list[str]) -> None:
    assert set(whitelist.arguments(", ".join(map(repr, values))[:length])) <= set("…, ")


@given(SECRETS)
def test_a_quoted_key_leaves_its_name(key: str) -> None:
    assert whitelist.name(f"d[{key!r}].w") == "d[…].w"


@given(st.text(), st.sampled_from(["/", "../", "C:\\", "\\\\host\\share\\", "~/"]))
def test_no_folder_above_is_left_of_a_path(folder: str, root: str) -> None:
    assert whitelist.path(f"{root}{folder}/x.py") == "…/x.py"
