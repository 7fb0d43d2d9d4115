"""The closed table of the functions that a replay may call, by name. Nothing else is ever called for a trace.

`torch.NAME`, `F.NAME` (torch.nn.functional), `Tensor.NAME`, `linalg.NAME`, `special.NAME`, `fft.NAME` and
`autograd.grad`. All functions compute only with tensors: none reads a file, calls an argument, or returns
uninitialised memory."""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

# As functions, as methods of tensors, and in place (where PyTorch has the name with `_`).
_BOTH = """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all amax amin aminmax angle any
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort asin asinh atan atan2 atanh baddbmm
    bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to ceil celu cholesky cholesky_inverse
    cholesky_solve chunk clamp clamp_max clamp_min clip clone conj conj_physical copysign corrcoef cos cosh
    count_nonzero cov cross cummax cummin cumprod cumsum deg2rad det detach diag diag_embed diagflat diagonal
    diagonal_scatter diff digamma dist div divide dot dsplit eq erf erfc erfinv exp exp2 expm1 fix flatten flip
    fliplr flipud float_power floor floor_divide fmax fmin fmod frac frexp gather ge greater greater_equal gt
    hardshrink hsplit hypot i0 igamma igammac imag index_add index_copy index_fill index_put index_reduce
    index_select inner inverse isclose isfinite isinf isnan isneginf isposinf isreal kron kthvalue ldexp le lerp
    less less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and
    logical_not logical_or logical_xor logit logsumexp lt lu_solve masked_fill masked_scatter masked_select matmul
    matrix_exp matrix_power max maximum mean median min minimum mm mode moveaxis movedim msort mul multiply mv
    mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative nextafter nonzero norm not_equal
    outer permute pinverse polygamma positive pow prelu prod put qr quantile rad2deg ravel real reciprocal relu
    remainder renorm repeat_interleave reshape roll rot90 round rsqrt scatter scatter_add scatter_reduce select
    select_scatter selu sgn sigmoid sign signbit sin sinc sinh slice_scatter slogdet softmax sort split
    split_with_sizes sqrt square squeeze std sub subtract sum svd swapaxes swapdims t take take_along_dim tan tanh
    tensor_split threshold tile topk trace transpose triangular_solve tril triu true_divide trunc unbind unflatten
    unique unique_consecutive unsqueeze var vdot vsplit where xlogy
""".split()
_FUNCTIONS = """
    atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors bucketize cartesian_prod cat cdist chain_matmul
    column_stack combinations complex concat concatenate conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d cumulative_trapezoid dstack einsum erfc gru gru_cell group_norm hstack heaviside layer_norm
    lstm lstm_cell meshgrid polar rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell row_stack rsub searchsorted
    stack std_mean tensordot trapezoid trapz var_mean view_as_complex view_as_real vstack batch_norm instance_norm
    pixel_shuffle pixel_unshuffle cosine_similarity embedding max_pool1d max_pool2d max_pool3d constant_pad_nd fill
    geqrf gradient grid_sampler grid_sampler_2d grid_sampler_3d istft lu lu_unpack native_group_norm
    native_layer_norm orgqr ormqr stft unsafe_chunk unsafe_split unsafe_split_with_sizes zero_ alias_copy
    diagonal_copy expand_copy narrow_copy permute_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy
    unbind_copy unfold_copy unsqueeze_copy view_copy
""".split()
_METHODS = """
    __add__ __and__ __div__ __eq__ __floordiv__ __ge__ __getitem__ __gt__ __iadd__ __iand__ __ifloordiv__ __imul__
    __invert__ __ior__ __ipow__ __isub__ __itruediv__ __le__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__
    __pow__ __radd__ __rand__ __rfloordiv__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__ __rsub__ __rtruediv__
    __rxor__ __setitem__ __sub__ __truediv__ __xor__ bfloat16 bool byte cdouble cfloat char contiguous copy_ cpu
    cuda double expand expand_as fill_ fill_diagonal_ float half int long repeat reshape_as short sum_to_size to
    type type_as unfold view view_as zero_ T.__get__ mT.__get__ H.__get__ mH.__get__ real.__get__ imag.__get__
    data.__get__
""".split()
_OF_LAYERS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
    adaptive_max_pool3d_with_indices affine_grid avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
    binary_cross_entropy binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss elu embedding
    embedding_bag fold gaussian_nll_loss gelu glu grid_sample group_norm hardshrink hardsigmoid hardswish hardtanh
    hinge_embedding_loss huber_loss instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear
    linear_cross_entropy local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d margin_ranking_loss
    max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    max_unpool1d max_unpool2d max_unpool3d mish mse_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss nll_loss normalize one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle
    poisson_nll_loss prelu relu relu6 rms_norm selu sigmoid silu smooth_l1_loss soft_margin_loss softmax softmin
    softplus softshrink softsign tanh tanhshrink threshold triplet_margin_loss unfold
""".split()
_DROPOUTS = "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout".split()
_OTHER_RANDOM = """
    rrelu gumbel_softmax multi_head_attention_forward scaled_dot_product_attention fractional_max_pool2d
    fractional_max_pool3d fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices
""".split()
_DRAWN = ("bernoulli",)  # from a distribution whose parameters are tensors
_LINALG = """
    cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh householder_product inv inv_ex lstsq lu
    lu_factor lu_factor_ex lu_solve matmul matrix_exp matrix_norm matrix_power matrix_rank multi_dot norm pinv qr
    slogdet solve solve_ex solve_triangular svd svdvals tensorinv tensorsolve vander vecdot vector_norm
""".split()
_SPECIAL = """
    digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e log1p log_ndtr
    log_softmax logit logsumexp multigammaln ndtr ndtri polygamma psi round sinc softmax xlog1py xlogy zeta
""".split()
_FFT = """
    fft fft2 fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft
    rfft2 rfftn
""".split()

DIFFERENTIATES = "autograd.grad"  # a pass that can itself be differentiated

NAMES: frozenset[str] = frozenset(
    [
        DIFFERENTIATES,
        *(f"torch.{name}{end}" for name in (*_BOTH, *_FUNCTIONS) for end in ("", "_")),
        *(f"Tensor.{name}{end}" for name in _BOTH for end in ("", "_")),
        *(f"Tensor.{name}" for name in _METHODS),
        *(f"F.{name}{end}" for name in _OF_LAYERS for end in ("", "_")),
        *(f"{of}.{name}{end}" for of in ("F", "torch") for name in (*_DROPOUTS, "rrelu") for end in ("", "_")),
        *(f"F.{name}" for name in _OTHER_RANDOM),
        *(f"torch.{name}" for name in _DRAWN),
        "Tensor.bernoulli",
        *(f"linalg.{name}" for name in _LINALG),
        *(f"special.{name}" for name in _SPECIAL),
        *(f"fft.{name}" for name in _FFT),
    ]
)

_RANDOM = {*_DROPOUTS, *_OTHER_RANDOM, *_DRAWN, "lstm", "gru", "rnn_relu", "rnn_tanh"}
# Functions whose result is their argument without its history: no gradient passes.
DETACHING = frozenset(("torch.detach", "Tensor.detach", "Tensor.data.__get__"))


@lru_cache(maxsize=1 << 12)  # a recorder asks at each call
def base_name(function: str) -> str:
    """The name of a function without its place, in place or not: `dropout` of `F.dropout_`, `add` of
    `Tensor.__add__`."""
    name = function.partition(".")[2].removesuffix(".__get__")
    return re.sub(r"\A__[ri]?(\w+?)__\Z", r"\1", name).rstrip("_")


def is_dropout(function: str) -> bool:
    """Whether a function sets elements to zero by chance."""
    return base_name(function) in _DROPOUTS


def is_random(function: str) -> bool:
    """Whether a function may use random numbers."""
    return base_name(function) in _RANDOM


def functions_of(torch: object) -> dict[str, object]:
    """The functions of the table that PyTorch, or an engine with its names, has."""
    nn = getattr(torch, "nn", None)
    places = {
        "torch": torch,
        "F": getattr(nn, "functional", None),
        "Tensor": getattr(torch, "Tensor", None),
        "linalg": getattr(torch, "linalg", None),
        "special": getattr(torch, "special", None),
        "fft": getattr(torch, "fft", None),
        "autograd": getattr(torch, "autograd", None),
    }
    functions: dict[str, object] = {}
    for name in sorted(NAMES):
        place, _, path = name.partition(".")
        thing: object = places[place]
        for part in path.split("."):
            # An engine module that lacks a name searches for the nearest name, which takes long.
            thing = vars(thing).get(part) if isinstance(thing, ModuleType) else getattr(thing, part, None)
        if callable(thing):
            functions[name] = thing
    return functions


AUTOCASTING = ("cpu", "cuda")  # the devices whose autocast is recorded
WITHOUT_GRAD = "no_grad"
_USUAL = "float32"


class CallSettings(NamedTuple):
    """The state that a context describes: grad mode, the default dtype, and the dtype of autocast on each device that
    has it."""

    has_grad_mode: bool
    default: str
    autocast: dict[str, str]


def context_of(default: str, autocast: Mapping[str, str]) -> str:
    """The context of a call with grad mode, with this default dtype and these dtypes of autocast by device."""
    parts = [f"{device}={dtype}" for device, dtype in autocast.items()]
    return " ".join(parts if default == _USUAL else [*parts, f"default={default}"])


def without_grad(context: str) -> str:
    """The context of the same call without grad mode."""
    return f"{context} {WITHOUT_GRAD}".lstrip()


def is_without_grad(context: str) -> bool:
    """Whether a call with this context was made without grad mode."""
    return WITHOUT_GRAD in context.split()


def settings_of(context: str) -> CallSettings:
    """The state that a context describes."""
    named = dict(part.partition("=")[::2] for part in context.split())
    autocast = {device: named[device] for device in AUTOCASTING if device in named}
    return CallSettings(not is_without_grad(context), named.get("default", _USUAL), autocast)
