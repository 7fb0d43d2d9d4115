"""The arguments of an operation that differ from PyTorch's defaults."""

from __future__ import annotations

import re

from gradviz.query.ops import LOSSES
from gradviz.words.escape import plain

_DROPOUTS = frozenset(("dropout", "dropout1d", "dropout2d", "dropout3d"))

# The functions whose default for an argument this is, as PyTorch documents them.
DEFAULTS: dict[str, frozenset[str]] = {
    "reduction='mean'": LOSSES,
    "ignore_index=-100": frozenset(("cross_entropy", "nll_loss")),
    "label_smoothing=0.0": frozenset(("cross_entropy", "linear_cross_entropy")),
    "beta=1.0": frozenset(("smooth_l1_loss",)),
    "delta=1.0": frozenset(("huber_loss",)),
    "log_input=True": frozenset(("poisson_nll_loss",)),
    "eps=1e-08": frozenset(("poisson_nll_loss",)),
    "eps=1e-06": frozenset(("gaussian_nll_loss", "triplet_margin_loss")),
    "margin=1.0": frozenset(("hinge_embedding_loss", "triplet_margin_loss", "multi_margin_loss")),
    "margin=0": frozenset(("cosine_embedding_loss", "margin_ranking_loss")),
    "blank=0": frozenset(("ctc_loss",)),
    "training=True": _DROPOUTS,
    "p=0.5": _DROPOUTS | {"alpha_dropout", "feature_alpha_dropout"},
    "p=2.0": frozenset(("normalize",)),
    "dim=1": frozenset(("normalize",)),
    "eps=1e-12": frozenset(("normalize",)),
    "tau=1": frozenset(("gumbel_softmax",)),
    "dim=-1": frozenset(("glu", "gumbel_softmax")),
    "eps=1e-10": frozenset(("gumbel_softmax",)),
    "alpha=1.0": frozenset(("celu", "elu")),
    "negative_slope=0.01": frozenset(("leaky_relu",)),
    "min_val=-1.0": frozenset(("hardtanh",)),
    "max_val=1.0": frozenset(("hardtanh",)),
    "mode='nearest'": frozenset(("interpolate", "upsample")),
    "mode='constant'": frozenset(("pad",)),
}


def shown_arguments(op: str, args: str) -> str:
    """The arguments that a box shows: those that are not the op's defaults, in at most 28 characters."""
    parts = [part for part in re.split(r", (?=[a-z_]\w*=)", args) if op not in DEFAULTS.get(part, ())]
    return plain(", ".join(parts), 28)
