"""The rules, the most exact and the gravest first: of two findings of one severity, the first rule's comes first."""

from gradviz.diagnose.rule import Rule
from gradviz.diagnose.rules import (
    backward_twice,
    custom_backward_signature,
    detached_path,
    discarded_gradient,
    frozen_parameter,
    inplace_modified,
    late_clip,
    no_graph,
    nonscalar_backward,
    off_loss_path,
    stale_gradient,
    unused_parameter,
)

RULES: tuple[Rule, ...] = tuple(
    module.RULE
    for module in (
        inplace_modified,
        backward_twice,
        nonscalar_backward,
        custom_backward_signature,
        frozen_parameter,
        detached_path,
        no_graph,
        discarded_gradient,
        stale_gradient,
        late_clip,
        off_loss_path,
        unused_parameter,
    )
)
BY_ID = {rule.id: rule for rule in RULES}
