"""The formulas of gradviz's derivatives as data. Recorders of other engines show the same formulas without loading
the engine.

    python -m tests.versions.formula_table > gradviz/sources/formulas.json
"""

from __future__ import annotations

import json
from typing import Any

from gradviz.engine.core.derivative import Choice
from gradviz.engine.table.derivatives import TABLE

# From 2.14 on PyTorch gives another gradient at a bound and at a tie than the version that the engine follows. By op
# and number of inputs: the later formulas by the engine's.
SINCE = [2, 14]
_AT_TIES = {
    "x ≥ y": "1 where x > y, 1/2 where x = y", "x < y": "1 where x < y, 1/2 where x = y",
    "x ≤ y": "1 where x < y, 1/2 where x = y", "x > y": "1 where x > y, 1/2 where x = y",
}  # fmt: skip
LATER: dict[tuple[str, int], dict[str, str]] = {
    ("clamp", 1): {"x ≤ max": "x < max", "x ≥ min": "x > min", "min ≤ x ≤ max": "min < x < max"},
    ("clamp", 3): {
        "min ≤ x ≤ max": "1 where min < x < max, 1 where x = min = max, 1/2 where x = min or x = max",
        "x < min < max": "1 where x < min < max, 1/2 where x = min < max",
        "x > max or max < min": "1 where x > max or max < min, 1/2 where min < x = max",
    },
    ("clamp_min", 1): {"x ≥ min": "x > min"},
    ("clamp_max", 1): {"x ≤ max": "x < max"},
    **{(op, 2): _AT_TIES for op in ("clamp", "clamp_min", "clamp_max", "fmax", "fmin")},
}


def table() -> dict[str, list[dict[str, Any]]]:
    """The rows of each op: its inputs and other arguments by name, the formula for each input, whether the op works
    element by element, the name of its node, and whether it takes any number of inputs. A formula that depends on an
    argument is a list: the argument, pairs of value and formula, and the formula for all other values. A row with
    `since` replaces the row before it from that version of PyTorch on."""

    def text(derivative: Any) -> Any:
        if not isinstance(derivative, Choice):
            return derivative.text
        cases = [[value, text(branch)] for value, branch in derivative.by_value.items()]
        return [derivative.argument, cases, text(derivative.otherwise)]

    rows: dict[str, list[dict[str, Any]]] = {}
    for op in TABLE.values():
        texts = [text(op.derivatives[name]) if name in op.derivatives else "" for name in op.inputs]
        if any(texts):
            row = {
                "inputs": op.inputs, "args": op.args, "texts": texts, "elementwise": op.elementwise,
                "node": op.node_name, "variadic": op.variadic,
            }  # fmt: skip
            if row not in rows.setdefault(op.name, []):
                rows[op.name].append(row)
                later = LATER.get((op.name, len(op.inputs)))
                if later is not None:
                    rows[op.name].append({**row, "texts": _replaced(texts, later), "since": SINCE})
    return rows


def _replaced(texts: Any, later: dict[str, str]) -> Any:
    """Formulas with the later ones in their places."""
    if isinstance(texts, list):
        return [_replaced(text, later) for text in texts]
    return later.get(texts, texts) if isinstance(texts, str) else texts


def main() -> None:
    """Print the table, a line for each op."""
    lines = [f"{json.dumps(name)}: {json.dumps(rows, ensure_ascii=False)}" for name, rows in sorted(table().items())]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
