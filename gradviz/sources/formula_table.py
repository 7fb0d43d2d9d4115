"""The formulas of gradviz's derivatives as data. Recorders of other engines show the same formulas without loading
the engine.

    python -m gradviz.sources.formula_table > gradviz/sources/formulas.json
"""

from __future__ import annotations

import json
from typing import Any


def table() -> dict[str, list[dict[str, Any]]]:
    """The rows of each op: its inputs and other arguments by name, the formula for each input, whether the op works
    element by element, the name of its node, and whether it takes any number of inputs. A formula that depends on an
    argument is a list: the argument, pairs of value and formula, and the formula for all other values."""
    from gradviz.engine.core.derivative import Choice
    from gradviz.engine.table.derivatives import TABLE

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
    return rows


def main() -> None:
    """Print the table, a line for each op."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(rows, ensure_ascii=False)}"
        for name, rows in sorted(table().items())
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
