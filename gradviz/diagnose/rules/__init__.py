"""The rules, the most exact and the gravest first. Findings of the same severity are sorted in this order."""

from importlib import import_module

from gradviz.diagnose.rule import Rule

_BY_GRAVITY = """
    inplace_modified silent_write backward_twice nonscalar_backward custom_backward_signature
    missing_create_graph frozen_parameter detached_path no_graph no_backward none_grad backward_result
    unused_input numpy_of_graph integer_leaf uninitialised_parameter huge_start constant_start
    lr_too_large nonfinite_forward masked_nan singular_derivative hook_changed_gradient nonfinite_gradient
    wrong_custom_gradient wrong_loss_input wrong_axis broadcast_surprise stale_optimizer
    unregistered_parameter recreated_parameter restarted_optimizer restricted_backward stale_graph
    gradient_overwritten discarded_gradient stale_gradient aliased_gradient ascent gradient_leak
    clip_before_unscale late_clip vanished_lr lost_update nonleaf_grad_read stale_model broken_tie
    missing_detach wrong_mode constant_output dead_relu saturated_activation zero_gradient not_updated
    scheduler_order unused_scheduler off_loss_path unused_parameter graph_leak unscaled_accumulation
    vanishing_gradient exploding_gradient update_ratio
""".split()
# The rule of a file has the name of the file.
RULES: tuple[Rule, ...] = tuple(getattr(import_module(f"{__name__}.{name}"), name) for name in _BY_GRAVITY)
BY_ID = {rule.id: rule for rule in RULES}
