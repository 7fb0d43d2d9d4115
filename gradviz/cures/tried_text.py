"""The result of trying a cure, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from gradviz.cures.trial import Tried
from gradviz.diagnose.place import place_of
from gradviz.words.escape import clean
from gradviz.words.numbers import number, plural


def tried_text(tried: Tried | None, with_patch: bool) -> Iterator[Text]:
    """The lines about a cure that was tried, below the report."""
    if tried is None:
        yield Text("no finding, so there is no cure to be tried", "dim")
        return
    if with_patch and tried.cure is not None:
        yield Text(clean_lines(tried.cure.patch), no_wrap=True, overflow="ignore")
    if tried.progress is None:
        yield Text.assemble(
            ("not tried  ", "dim"), f"the cure of {tried.finding.rule}: {clean(tried.problem)}"
        )
        return
    yield Text.assemble(("with the cure: ", "bold"), ", ".join(_facts(tried)))
    for finding in tried.new:
        yield Text.assemble(
            ("   new  ", "dim"),
            f"{finding.severity} {finding.rule}  {place_of(finding)}: {clean(finding.message)}",
        )


def clean_lines(text: str) -> str:
    """The text with each of its lines cleaned."""
    return "\n".join(clean(line) for line in text.splitlines())


def _facts(tried: Tried) -> Iterator[str]:
    progress = tried.progress
    assert progress is not None
    if progress.leaf:
        gradient = "None" if progress.rms is None else f"rms {number(progress.rms, 3)}"
        yield f"{clean(progress.leaf)}.grad {gradient}"
    yield "finding gone" if tried.gone else "the finding is still there"
    if tried.new:
        yield plural(len(tried.new), "new finding")
    if progress.passes and progress.first_loss == progress.first_loss:
        steps = (
            plural(progress.steps, "step") if progress.steps else plural(progress.passes, "pass", "passes")
        )
        yield f"loss {number(progress.first_loss, 3)} → {number(progress.last_loss, 3)} in {steps}"
    if tried.problem:
        yield clean(tried.problem)


def tried_as_json(tried: Tried | None) -> dict[str, Any] | None:
    """The result as plain data; None if there was no finding."""
    if tried is None:
        return None
    progress = tried.progress
    return {
        "rule": tried.finding.rule,
        "line": tried.finding.line or None,
        "applied": tried.cure is not None,
        "patch": tried.cure.patch if tried.cure is not None else None,
        "problem": tried.problem or None,
        "gone": tried.gone,
        "new": [{"rule": f.rule, "severity": f.severity, "line": f.line or None} for f in tried.new],
        "loss": [_finite(progress.first_loss), _finite(progress.last_loss)] if progress is not None else None,
        "steps": progress.steps if progress is not None else None,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
