"""The rules, the most exact and the gravest first: of two findings of one severity, the first rule's comes first."""

from gradviz.diagnose.rule import Rule
from gradviz.diagnose.rules import (
    backward_twice,
    custom_backward_signature,
    dead_relu,
    detached_path,
    discarded_gradient,
    frozen_parameter,
    gradient_leak,
    inplace_modified,
    late_clip,
    lost_update,
    lr_too_large,
    masked_nan,
    no_graph,
    nonfinite_forward,
    nonfinite_gradient,
    nonscalar_backward,
    not_updated,
    off_loss_path,
    recreated_parameter,
    scheduler_order,
    singular_derivative,
    stale_gradient,
    stale_optimizer,
    unregistered_parameter,
    unused_parameter,
    vanished_lr,
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
        lr_too_large,
        nonfinite_forward,
        masked_nan,
        singular_derivative,
        nonfinite_gradient,
        stale_optimizer,
        unregistered_parameter,
        recreated_parameter,
        discarded_gradient,
        stale_gradient,
        gradient_leak,
        late_clip,
        vanished_lr,
        lost_update,
        not_updated,
        scheduler_order,
        off_loss_path,
        unused_parameter,
        dead_relu,
    )
)
BY_ID = {rule.id: rule for rule in RULES}
