"""Help pages other than the list of verbs: the arguments of `break`, and the fields of a predicate."""

from __future__ import annotations

from collections.abc import Callable

from gradviz.query.predicate_columns import FIELDS, FLAG, NUMBER, STATISTICS, TENSORS, TEXT
from gradviz.step.breakpoints import FORMS

PREDICATES = (
    "break and until take a predicate over the event, such as",
    '  grad.rms < 1e-7      op == "log" and out.min <= 0      nan or inf      line == 12',
    "  parts: and, or, not, ( ); == != < <= > >=; ~ for texts that contain",
)
GROUPS = (("numbers", NUMBER), ("texts", TEXT), ("true or false", FLAG))


def fields_help(say: Callable[[str], str]) -> list[str]:
    """The fields of a predicate, grouped by type, with a description of each; `say` translates the texts."""
    lines = [say(line) for line in PREDICATES]
    lines += [f"  {name + '.X':<11} {say(tensors.doc)}" for name, tensors in TENSORS.items()]
    lines.append(f"      X: {', '.join(STATISTICS)}")
    for title, type_ in GROUPS:
        lines.append(f"  {say(title)}")
        lines += [f"    {name:<10} {say(field.doc)}" for name, field in FIELDS.items() if field.type == type_]
    return lines


def break_help() -> list[str]:
    """The forms that `break` takes."""
    flags = [name for name, field in FIELDS.items() if field.type == FLAG]
    return [f"  break {form} ..." for form in FORMS] + [f"  break {name}" for name in flags]
