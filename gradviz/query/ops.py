"""The vocabulary of operations: kinds of ops by the names that traces of both engines have for them.

A rule or a view that needs a kind of op takes it from here, so that all agree on the ops of a kind. An op in place is
named with its underscore (`relu_`).

PyTorch has several names for some functions. A kind that has one of these names has all of them."""

from collections.abc import Sequence

from gradviz.events import values

# The other names of functions in PyTorch's documentation: methods, functions and `torch.special`.
_OTHER_NAMES = {
    "sigmoid": ("special_expit",), "softmax": ("special_softmax",), "log_softmax": ("special_log_softmax",),
    "log1p": ("special_log1p",), "logsumexp": ("special_logsumexp",), "abs": ("absolute",), "mul": ("multiply",),
    "div": ("divide", "true_divide"), "sub": ("subtract",), "clamp": ("clip",), "cat": ("concat", "concatenate"),
    "vstack": ("row_stack",), "neg": ("negative",), "movedim": ("moveaxis",), "transpose": ("swapaxes", "swapdims"),
    "matmul": ("linalg_matmul",), "diagonal": ("linalg_diagonal",),
}  # fmt: skip


def _kind(*names: str) -> frozenset[str]:
    """The names, with the other names of the same functions."""
    return frozenset(names).union(*(_OTHER_NAMES.get(name, ()) for name in names))


def _and_in_place(*names: str) -> frozenset[str]:
    return _kind(*names) | {f"{name}_" for name in _kind(*names)}


# Activations.
FLAT_BELOW_ZERO = _and_in_place("relu", "relu6")
RECTIFIERS = FLAT_BELOW_ZERO | _and_in_place("hardtanh", "threshold", "clamp_min")  # flat on one side
SATURATING = _and_in_place("tanh", "sigmoid", "hardtanh", "hardsigmoid", "softsign")  # flat far from 0
SHARES = _kind("softmax", "_safe_softmax", "gumbel_softmax")  # whose results add up to 1
LOG_SHARES = _kind("log_softmax")  # whose results are the logarithms of shares
PROBABILITIES = SHARES | _and_in_place("sigmoid")

# Logarithms.
LOGARITHMS = _and_in_place("log", "log2", "log10", "log1p")
LOG_PROBABILITIES = LOGARITHMS | _kind(
    "log_softmax", "logsumexp", "logsigmoid", "log_sigmoid", "special_log_ndtr", "cross_entropy", "nll_loss",
)  # fmt: skip

# Pointwise ops to which a program gives a number.
POINTWISE_WITH_NUMBERS = _and_in_place("leaky_relu", "elu", "celu", "pow", "mul", "div") | {
    "softplus", "hardshrink", "softshrink",
}  # fmt: skip

# Losses.
REGRESSION_LOSSES = _kind("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
OF_LOGITS = _kind("cross_entropy", "binary_cross_entropy_with_logits")
OF_LOG_PROBABILITIES = _kind("nll_loss", "kl_div", "ctc_loss")
LOSSES = REGRESSION_LOSSES | OF_LOGITS | OF_LOG_PROBABILITIES | {
    "binary_cross_entropy", "soft_margin_loss", "margin_ranking_loss", "hinge_embedding_loss",
    "cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss", "gaussian_nll_loss", "poisson_nll_loss",
    "multilabel_soft_margin_loss", "multilabel_margin_loss", "triplet_margin_with_distance_loss",
    "linear_cross_entropy",
}  # fmt: skip
FLAT_AT_ZERO = REGRESSION_LOSSES | _and_in_place("pow", "square", "abs") | {
    "norm", "vector_norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "frobenius_norm",
}  # with the derivative 0 at 0: a minimum  # fmt: skip

# Ops that pass elements on: in another shape, as another dtype, in part.
TRANSPOSING = _and_in_place("t", "transpose") | {"T", "mT", "H", "mH", "adjoint"}
RESHAPING = TRANSPOSING | _and_in_place("squeeze", "unsqueeze") | {
    "view", "view_as", "reshape", "reshape_as", "ravel", "flatten", "unflatten", "permute", "movedim", "moveaxis",
    "expand", "expand_as", "broadcast_to", "contiguous", "atleast_1d", "atleast_2d", "atleast_3d",
}  # fmt: skip
SHAPED_BY_SECOND = _kind("expand_as", "view_as", "reshape_as", "type_as")  # the second gives no element
CONVERTING = _kind("to", "type", "type_as", "cpu", "cuda", "float", "double", "half", "bfloat16", "clone")
OF_PARTS = frozenset({"_FromTorchTensor", "_ToTorchTensor"})  # DTensor.from_local() and to_local()
SELECTING = _kind("index", "getitem", "select", "slice", "as_strided", "narrow", "diagonal")
# of rows that data choose
LOOKUPS = _kind("embedding", "index", "index_select", "gather", "take_along_dim", "embedding_bag")
SPLITTING = _kind(
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes",
)  # fmt: skip
JOINING = _kind("cat", "stack", "hstack", "vstack", "dstack", "column_stack")
CHOOSING = _kind("min", "max", "minimum", "maximum", "fmin", "fmax")  # of two tensors, the element that counts
CLAMPING = _and_in_place("clamp", "clamp_min", "clamp_max")

# Products of data with weights: the ops of layers that learn. An embedding is a product with one-hot rows.
PRODUCTS = _kind(
    "embedding", "embedding_bag",
    "addmm", "mm", "matmul", "linear", "bmm", "baddbmm", "addbmm", "mv", "addmv", "einsum", "bilinear", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv_tbc", "convolution", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "dot", "inner", "vdot", "tensordot", "chain_matmul", "linalg_multi_dot",
)  # fmt: skip

CONVOLUTIONS = frozenset(op for op in PRODUCTS if op.startswith("conv"))
MATRIX_PRODUCTS = _kind("matmul", "bmm", "mm")
CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell"})  # each is one op, with a node for each gate

# Arithmetic and reductions.
ADDING, SUBTRACTING = _and_in_place("add"), _and_in_place("sub")
MULTIPLYING, DIVIDING, NEGATING = _and_in_place("mul"), _and_in_place("div"), _and_in_place("neg")
DIFFERENCES = SUBTRACTING | {"rsub"}
SUMS = ADDING | DIFFERENCES
MEANS = _kind("mean", "nanmean")
REDUCTIONS = MEANS | {"sum", "nansum"}

# Outside of the graph.
SHARING = _kind("detach", "detach_", "data")  # on the same memory, outside of the graph
COPYING = SHARING | TRANSPOSING | {"clone", "deepcopy", "to", "contiguous"}  # with the same elements

# Normalisations, whose results depend only on differences.
NORMALISING = SHARES | _kind(
    "log_softmax", "softmin", "layer_norm", "group_norm", "batch_norm", "native_batch_norm", "instance_norm",
    "native_layer_norm", "native_group_norm", "normalize", "cross_entropy", "rms_norm",
)  # fmt: skip
RUNNING = _kind("batch_norm", "native_batch_norm", "instance_norm")  # that keep running statistics

# Library functions that run several ops: the names of their arguments, and the arguments that each op reads.
ARGUMENTS = {"linear": ("input", "weight", "bias")}
INSIDE: dict[str, dict[str, tuple[str | None, ...]]] = {
    "linear": {"t": ("weight",), "addmm": ("bias", "input", None), "mm": ("input", None)}
}

# Ops that make tensors.
ZEROS = _kind("zeros", "zeros_like", "new_zeros")
FILLED = _kind("full", "full_like", "new_full")  # with one number of the program
UNFILLED = _kind(*values.UNFILLED)
RANDOM_STARTS = _kind("uniform_", "normal_", "kaiming_uniform_", "zero_")  # of a layer, and of its bias
DRAWN = _kind("normal")  # by `sample()` of a distribution
DISCRETE = _and_in_place("bernoulli", "poisson", "multinomial")  # random numbers that pass no gradient
DROPOUTS = _and_in_place("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout") | {
    "dropout1d", "dropout2d", "dropout3d", "native_dropout",
}  # fmt: skip

# to which a program gives numbers
WITH_NUMBERS = DROPOUTS | LOSSES | NORMALISING | RECTIFIERS | POINTWISE_WITH_NUMBERS


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
# Operators of which PyTorch has no function of this name:
_OPERATORS = ("floordiv", "truediv", "mod", "and", "or", "xor", "lshift", "rshift")
_SWAPPED = ("rsub", "rdiv", "rpow")  # as PyTorch calls them


def function_name(op: str) -> str:
    """The name of an op in texts: `eq` of the operator `__eq__`."""
    return op.removeprefix("__").removesuffix("__")


def operator_of(op: str, args: str) -> str:
    """An op whose name is that of an operator and of no function of PyTorch, as the source writes it, with dots for
    its tensor: `… // 2`, `1 - …`. Empty for another op. `args` are the arguments that are no tensors."""
    name = function_name(op)
    number = "" if ", " in args else args.rpartition("=")[2]
    if name.startswith("r") and name[1:] in _SIGNS and op != "rand":
        return f"{number} {_SIGNS[name[1:]]} …" if number else ""
    is_in_place = name.startswith("i") and name[1:] in _SIGNS
    sign = _SIGNS[name] if name in _OPERATORS else f"{_SIGNS[name[1:]]}=" if is_in_place else ""
    return f"… {sign} {number}" if sign and number else sign


def written(op: str, operands: Sequence[str]) -> str:
    """An op as a person would write it: an operator between its operands, else a call."""
    name = function_name(op)
    swapped = _SIGNS.get(name[1:]) if name.startswith("r") and name not in _SIGNS else None
    if len(operands) == 2 and (name != op or op in _SWAPPED) and (swapped or name in _SIGNS):
        first, second = (f"({one})" if " " in one else one for one in operands)
        return f"{second} {swapped} {first}" if swapped else f"{first} {_SIGNS[name]} {second}"
    return f"{name}({', '.join(operands)})"
