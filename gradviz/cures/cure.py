"""The cure of a finding as an edit of its file."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from gradviz.cures import graph_cures as graph
from gradviz.cures import model_cures as model
from gradviz.cures import number_cures as numbers
from gradviz.cures import refused_cures as refused
from gradviz.cures import step_cures as steps
from gradviz.cures.source_text import SourceText
from gradviz.cures.spot import Apply, Spot
from gradviz.diagnose import Finding
from gradviz.query.query import Query

APPLIED: dict[str, Apply] = {
    "aliased-gradient": steps.copied,
    "ascent": steps.downhill,
    "backward-result": refused.read_from_the_leaf,
    "backward-twice": graph.kept_graph,
    "broadcast-surprise": numbers.same_shape,
    "broken-tie": model.shared,
    "clip-before-unscale": steps.unscaled_before,
    "constant-output": numbers.one_output,
    "constant-start": model.started_otherwise,
    "custom-backward-signature": model.right_signature,
    "dead-relu": numbers.leaky,
    "detached-path": graph.without_cut,
    "discarded-gradient": steps.cleared_elsewhere,
    "frozen-parameter": model.trainable,
    "gradient-leak": steps.cleared_for_each,
    "gradient-overwritten": steps.added_to_gradient,
    "graph-leak": graph.kept_without_graph,
    "hook-changed-gradient": model.passed_on,
    "huge-start": model.started_otherwise,
    "inplace-modified": graph.out_of_place,
    "integer-leaf": refused.of_floating_point,
    "late-clip": steps.clipped_between,
    "lr-too-large": steps.smaller_rate,
    "masked-nan": numbers.masked_inside,
    "missing-create-graph": graph.with_create_graph,
    "missing-detach": graph.detached,
    "no-backward": refused.called_backward,
    "no-graph": refused.on_the_tensor,
    "none-grad": refused.with_a_gradient_to_read,
    "nonfinite-forward": numbers.off_the_edge,
    "nonleaf-grad-read": graph.retained,
    "nonscalar-backward": steps.reduced,
    "not-updated": steps.held_by_the_optimizer,
    "numpy-of-graph": refused.detached_for_numpy,
    "restarted-optimizer": steps.made_before_the_loop,
    "restricted-backward": graph.unrestricted,
    "scheduler-order": steps.scheduled_behind,
    "silent-write": graph.behind_backward,
    "singular-derivative": numbers.off_the_edge,
    "stale-gradient": steps.cleared_before,
    "stale-graph": graph.in_each_round,
    "stale-model": model.copied_state,
    "stale-optimizer": steps.made_after,
    "uninitialised-parameter": model.initialised,
    "unregistered-parameter": model.registered,
    "unscaled-accumulation": steps.divided,
    "unused-input": refused.with_unused,
    "unused-parameter": model.removed_layer,
    "unused-scheduler": steps.scheduled_in_the_loop,
    "wrong-axis": numbers.right_axis,
    "wrong-loss-input": numbers.logits,
    "wrong-mode": steps.evaluated,
    "zero-gradient": numbers.with_a_gradient,
}
"""How the cure of a rule is applied. The cure of another rule is advice."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A file with the cure of a finding applied: its text before and after."""

    file: str
    before: str
    after: str

    @property
    def patch(self) -> str:
        """The edit as a unified diff."""
        name = Path(self.file).name
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            name,
            f"{name} (with the cure)",
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)

    def line_after(self, line: int) -> int:
        """The line in the cured text of a line in the text before; the nearest line if that line was changed."""
        before, after = self.before.splitlines(), self.after.splitlines()
        for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if a0 < line <= a1:
                return min(b0 + line - a0, max(b1, b0 + 1))
        return line


def cure_of(finding: Finding, query: Query, text: str) -> Cure | None:
    """The cure of a finding in the text of its file; None if the cure is advice, or cannot be applied here."""
    apply = APPLIED.get(finding.rule)
    if apply is None or not finding.line:
        return None
    try:
        source = SourceText(text)
    except SyntaxError:
        return None
    edits = apply(Spot(source, finding, query))
    after = source.edited(edits)
    if after == text or not _is_python(after):
        return None
    return Cure(finding.file, text, after)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
