"""Reads the settings of `check` from `[tool.gradviz]` in pyproject.toml."""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradviz.diagnose.between_ranks import BETWEEN_RANKS
from gradviz.diagnose.finding import ERROR, WARNING
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.rules import BY_ID, RULES
from gradviz.errors import GradvizError

_FILE = "pyproject.toml"
_FAILING = (ERROR, WARNING)
# By the id of the rule.
THRESHOLDS = {rule.id: rule.threshold for rule in sorted(RULES, key=lambda rule: rule.id) if rule.threshold}


class BadSettings(GradvizError):
    """A settings file cannot be used. The message is one line: the key and what it should be."""


def settings_at(folder: Path) -> Settings:
    """The settings for a directory: `[tool.gradviz]` of the nearest pyproject.toml in it or above it that has this
    table. The defaults if there is none. Raises BadSettings."""
    folder = folder.resolve()
    for directory in (folder, *folder.parents):
        table = _table(directory / _FILE)
        if table is not None:
            return _settings(table, directory / _FILE)
    return Settings()


def _table(path: Path) -> dict[str, Any] | None:
    """The table `[tool.gradviz]` of a file; None if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
        if "gradviz" not in text:  # mistakes in the tables of other tools are not reported here
            return None
        table = tomllib.loads(text).get("tool", {}).get("gradviz")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"{path} cannot be read: {error}") from None
    if table is not None and not isinstance(table, dict):
        raise BadSettings(f"{path}: tool.gradviz is not a table")
    return table


def _settings(table: dict[str, Any], path: Path) -> Settings:
    settings: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise BadSettings(f"{path}: [tool.gradviz] has no key {key!r}; it has {', '.join(_KEYS)}")
        try:
            settings[key.replace("-", "_")] = _KEYS[key](value)
        except ValueError as error:
            raise BadSettings(f"{path}: [tool.gradviz] {key}: {error}") from None
    return Settings(**settings)


def _rules(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("it is a list of rules")
    for one in value:
        if one not in BY_ID and one not in BETWEEN_RANKS:
            raise ValueError(f"there is no rule {one!r}")
    return tuple(value)


def _severity(value: object) -> str:
    if value not in _FAILING:
        raise ValueError(f"it is {' or '.join(_FAILING)}, not {value!r}")
    return str(value)


def _thresholds(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("it is a table")
    for rule, number in value.items():
        known = THRESHOLDS.get(rule)
        if known is None:
            raise ValueError(f"there is none for {rule!r}; the rules with one are {', '.join(THRESHOLDS)}")
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not is_number or not known.least <= number <= known.largest:
            span = f"at least {known.least:g}" if known.largest == math.inf else f"{known.least:g} to {known.largest:g}"
            raise ValueError(f"{rule} is a number, {span} ({known.says}), not {number!r}")
    return {rule: float(number) for rule, number in value.items()}


_KEYS: dict[str, Callable[[object], Any]] = {
    "select": _rules,
    "ignore": _rules,
    "fail-on": _severity,
    "thresholds": _thresholds,
}
