"""The vocabulary of operations: kinds of ops by the names that traces of both engines have for them.

A rule or a view that asks for a kind of op asks here, so that no two differ in what belongs to it. An op in place is
named with its underscore (`relu_`)."""

from __future__ import annotations


def _and_in_place(*names: str) -> frozenset[str]:
    return frozenset(names) | {f"{name}_" for name in names}


# Activations.
RECTIFIERS = _and_in_place("relu", "relu6", "hardtanh", "threshold", "clamp_min")  # flat on one side
SATURATING = _and_in_place("tanh", "sigmoid", "hardtanh", "hardsigmoid", "softsign")  # flat far from 0
SHARES = frozenset({"softmax", "_safe_softmax", "gumbel_softmax"})  # results that add up to 1
PROBABILITIES = SHARES | {"sigmoid", "sigmoid_"}

# Logarithms.
LOGARITHMS = _and_in_place("log", "log2", "log10", "log1p")
LOG_PROBABILITIES = LOGARITHMS | {
    "log_softmax", "logsumexp", "logsigmoid", "log_sigmoid", "cross_entropy", "nll_loss",
}  # fmt: skip

# Losses.
REGRESSION_LOSSES = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"})
OF_LOGITS = frozenset({"cross_entropy", "binary_cross_entropy_with_logits"})
OF_LOG_PROBABILITIES = frozenset({"nll_loss", "kl_div"})
LOSSES = REGRESSION_LOSSES | OF_LOGITS | OF_LOG_PROBABILITIES | {
    "binary_cross_entropy", "ctc_loss", "soft_margin_loss", "margin_ranking_loss", "hinge_embedding_loss",
    "cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss", "gaussian_nll_loss", "poisson_nll_loss",
    "multilabel_soft_margin_loss",
}  # fmt: skip
FLAT_AT_ZERO = REGRESSION_LOSSES | {"pow", "square", "abs", "norm"}  # whose derivative at 0 is 0: a minimum

# What hands elements on: in another shape, as another dtype, in part.
RESHAPING = frozenset({
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "transpose", "t", "T", "permute", "expand",
    "contiguous",
})  # fmt: skip
TRANSPOSING = frozenset({"t", "transpose", "T"})
SHAPED_BY_SECOND = frozenset({"expand_as", "view_as", "reshape_as", "type_as"})  # no element of it goes in
CONVERTING = frozenset({"to", "float", "double", "half", "bfloat16", "clone"})
SELECTING = frozenset({"index", "getitem", "select", "slice", "as_strided"})
LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})  # rows that data choose
SPLITTING = frozenset({"chunk", "split", "tensor_split", "unbind"})
JOINING = frozenset({
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack",
})  # fmt: skip
CLAMPING = _and_in_place("clamp", "clamp_min", "clamp_max", "clip")

# Products of data with weights: what a layer does that learns. An embedding is one, of rows that are 0 but for a 1.
PRODUCTS = frozenset({
    "embedding",
    "addmm", "mm", "matmul", "linear", "bmm", "baddbmm", "addbmm", "mv", "addmv", "einsum", "bilinear", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "lstm", "gru",
    "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
})  # fmt: skip

CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell"})  # each one op, with a node for each gate

# Arithmetic and reductions.
SUMS = _and_in_place("add", "sub", "rsub", "subtract")
MEANS = frozenset({"mean", "nanmean"})
REDUCTIONS = MEANS | {"sum"}

# Off the graph.
SHARING = frozenset({"detach", "detach_", "data"})  # on the same memory, outside of the graph
COPYING = SHARING | TRANSPOSING | {"clone", "deepcopy", "to", "contiguous"}  # the same elements

# Normalisations, that only see differences.
NORMALISING = SHARES | {
    "log_softmax", "layer_norm", "group_norm", "batch_norm", "native_batch_norm", "instance_norm",
    "native_layer_norm", "normalize", "cross_entropy", "rms_norm",
}  # fmt: skip
RUNNING = frozenset({"batch_norm", "native_batch_norm", "instance_norm"})  # that keep running statistics

# How tensors come to be.
ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
UNFILLED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"})
RANDOM_STARTS = frozenset({"uniform_", "normal_", "kaiming_uniform_", "zero_"})  # of a layer, and of its bias
DRAWN = frozenset({"normal"})  # how `sample()` of a distribution draws, apart from what it took
DISCRETE = _and_in_place(
    "bernoulli", "poisson", "multinomial"
)  # random numbers that no gradient flows through
DROPOUTS = frozenset({"dropout", "dropout_", "feature_dropout"})
