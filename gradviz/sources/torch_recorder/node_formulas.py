"""The formulas of the derivatives of PyTorch's ops, for people: the same that gradviz's own engine shows for its
ops.

Texts for the derivatives of PyTorch's nodes that gradviz's engine has no formula for: LSTMs, attention, Fourier
transforms and others. A text with a `g` is the whole step, in which g is upstream.

The formulas of attention are those of the FlashAttention paper (arXiv:2205.14135, appendix B.2); the others follow
from the definitions of the ops."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from gradviz.events.field_types import Rule
from gradviz.events.filled_formula import with_values
from gradviz.events.listener import NO_RULE
from gradviz.sets import grouped
from gradviz.sources.torch_recorder.arguments import CONSTANTS, text_of
from gradviz.sources.torch_recorder.pytorchs_own import VERSION, is_floating_point

_REFLECTIONS = "by way of each reflection in the product"
_SCORES = "with s = p · (g vᵀ − Σ p · g vᵀ) by rows, p the weights of attention"
_OF_ATTENTION = (
    ("q", f"scale · s k, {_SCORES}"), ("k", f"scale · sᵀ q, {_SCORES}"), ("v", "pᵀ g, p the weights of attention"),
    ("mask", "s = p · (g vᵀ − Σ p · g vᵀ) by rows, p the weights of attention"),
)  # fmt: skip
_OF_BATCH_NORM = (
    ("x", "(h − mean(h) − x̂ · mean(h x̂)) / σ with h = g · weight"), ("weight", "x̂, summed"), ("bias", "1, summed"),
)  # fmt: skip

# The nodes of each text. A text alone stands for all edges.
_NODES: dict[str | tuple[str, ...], str] = {
    "1 / n, to the window": "AdaptiveAvgPool3DBackward0 AvgPool3DBackward0",
    "1 at each window's maximum":
        "AdaptiveMaxPool3DBackward0 FractionalMaxPool2DBackward0 FractionalMaxPool3DBackward0 "
        "MaxPool3DWithIndicesBackward0",
    "g times the coordinates of each point, summed": "AffineGridGeneratorBackward0",
    "1": "AliasBackward0 ToDenseBackward0 ToMkldnnBackward0 ToSparseBackward0 ToSparseBackward1",
    "1, at the places that the view shows, summed": "AsStridedBackward0",
    ("1 where not written over", "1, taken"): "AsStridedScatterBackward0 DiagonalScatterBackward0 PutBackward0",
    "0": "BernoulliBackward0 FillBackward0 NormalBackward1 NormalBackward2 NormalBackward3",
    ("σ(x) − y, weighted", "−x, or −x − (pos_weight − 1) ln σ(x), weighted"): "BinaryCrossEntropyWithLogitsBackward0",
    "L⁻ᵀ Φ(Lᵀ g) L⁻¹": "CholeskyBackward0",
    "by way of the inverse of the matrix that was factored": "CholeskyInverseBackward0",
    ("A⁻¹ g, A the matrix that was factored", "by way of the inverse of the matrix that was factored"):
        "CholeskySolveBackward0",
    ("the real part of g", "the imaginary part of g"): "ComplexBackward0",
    "the conjugate of g": "ConjBackward0 ConjPhysicalBackward0",
    "the probability of each label, minus its share in all alignments with the target": "CtcLossBackward0",
    "through the gates of all time steps, last to first":
        "CudnnRnnBackward0 MiopenRnnBackward0 MkldnnRnnLayerBackward0 MpsLstmBackward0",
    "1, summed": "ExpandBackward0",
    "the transform of g in the other direction": "FftC2CBackward0 FftC2RBackward0",
    "the real part of the transform of g in the other direction": "FftR2CBackward0",
    "1 / 2^exponent": "FrexpBackward0",
    ("the weight of each pixel around the point", "the slope of the input at the point"): "GridSampler2DBackward0",
    ("the weight of each voxel around the point", "the slope of the input at the point"): "GridSampler3DBackward0",
    "the derivative of the reduction by this element":
        "IndexReduceBackward0 SegmentReduceBackward0 SparseMmReduceImplBackward0",
    "by way of the eigenvectors": "LinalgEigBackward0",
    _REFLECTIONS: "LinalgHouseholderProductBackward0",
    "by way of the pseudo-inverse of the matrix": "LinalgLstsqBackward0",
    "by way of the factors L and U": "LinalgLuBackward0 LinalgLuFactorExBackward0",
    ("by way of the factors L and U", "A⁻ᵀ g, A the matrix that was factored"): "LinalgLuSolveBackward0",
    "the derivative of the exponential of xᵀ in the direction g": "LinalgMatrixExpBackward0",
    "g of the triangles, put together": "LuUnpackBackward0",
    "1, taken": "MaxUnpool2DBackward0 MaxUnpool3DBackward0",
    "by each class in the margin: + at it, − at the target": "MultiMarginLossBackward0",
    "1 / C for each pair in the margin: + at the wrong class, − at the target": "MultilabelMarginLossBackward0",
    "1 where taken": "NarrowCopyBackward0",
    "none: PyTorch has no derivative of it": "NextafterBackward0 NotImplemented",
    (_REFLECTIONS, _REFLECTIONS, "qᵀ g, q the product of the reflections"): "OrmqrBackward0",
    "1, back at its place in the padded sequence": "PackPaddedSequenceBackward0",
    ("g along the direction of out", "g across the direction of out, times its length"): "PolarBackward0",
    "g scaled as the row was, less the part along a row that was cut to its length": "RenormBackward0",
    "1 where the input is above 0, else the slope that was drawn": "RreluWithNoiseBackward0",
    ("beta", "alpha · g yᵀ, where elements are", "alpha · xᵀ g, where elements are"): "SparseSampledAddmmBackward0",
    "how the drawn number moves with its distribution": "StandardGammaBackward0 _DirichletBackward",
    "through the gates of the cell": "ThnnFusedGruCellBackward0 ThnnFusedLstmCellBackward0",
    "1, transposed": "TransposeBackward1",
    ("A⁻ᵀ g, A the triangle", "−A⁻ᵀ g outᵀ, its triangle"): "TriangularSolveBackward0",
    "1, moved": "UnbindBackward0",
    "1 where taken, summed": "UnsafeMaskedIndexBackward0",
    ("1", "1, taken"): "UnsafeMaskedIndexPutAccumulateBackward0",
    "the weights of its pixels, summed": "UpsampleBicubic2DAaBackward0 UpsampleBilinear2DAaBackward0",
    "g as pairs of real numbers": "ViewAsComplexBackward0",
    "g as complex numbers": "ViewAsRealBackward0",
    ("the part of g across v, times new length / length", "the part of g along v"): "WeightNormInterfaceBackward0",
}  # fmt: skip
_TEXTS = {name: text for text, names in _NODES.items() for name in names.split()}
_AGAIN = re.compile(r"(\w+?)Backward(?:Data)?Backward\d")
_GENERATED = "GeneratedBackwardFor_"
_ATTENTION = "ScaledDotProduct"
_BATCH_NORMS = ("BatchNormWithUpdateBackward0", "NativeBatchNormLegitBackward0", "NativeBatchNormLegitBackward1")


def in_words(name: str, edges: int) -> Rule:
    """The rule of a node with this name, in words for each of its edges; NO_RULE if none is known."""
    if name.startswith(_ATTENTION):
        return Rule(_OF_ATTENTION[:edges])
    if name in _BATCH_NORMS:
        return Rule(_OF_BATCH_NORM[:edges])
    texts = _TEXTS.get(name, "")
    again = _AGAIN.fullmatch(name)
    if again is not None:
        texts = f"through {again[1]}Backward0, differentiated again"
    elif name.startswith(_GENERATED):
        texts = "by the backward that the operator brings along"
    if not texts:
        return NO_RULE
    if isinstance(texts, str):
        return Rule((("", texts),) * edges)
    return Rule(tuple(("", text) for text in texts[:edges]))


_FILE = Path(__file__).parent.parent / "formulas.json"
_PLAIN = (int, float, str, bool, type(None))
_DEFAULTS = {"ord": 2, "reduction": "mean"}  # defaults of arguments that a formula depends on
_DEFAULTS_OF: dict[str, dict[str, Any]] = {"clamp": {"min": None, "max": None}}  # by op
_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
_ALIASES = {"clip": "clamp", "clip_": "clamp"}
_TARGET = "target"
_TENSORS = {"condition", "indices", _TARGET}  # arguments that are never numbers
_OF_CROSS_ENTROPY = Rule((("x", "(softmax(x) − one-hot) / N"), ("target", "")))
_PLAIN_LOSS = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
_UNKNOWN: Any = object()
_ALSO_CALLED = {"ord": ("p",)}  # what nodes call an argument
_WORDS_OF = {"reduction": ("none", "mean", "sum"), "mode": ("sum", "mean", "max")}  # nodes keep their numbers


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    """The rows of each op, with the formulas of the installed version."""
    rows_of = json.loads(_FILE.read_text(encoding="utf-8"))
    version = tuple(int(part) for part in VERSION.split(".")[:2])
    return {name: rows_in(version, rows) for name, rows in rows_of.items()}


def rows_in(version: tuple[int, ...], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a version of PyTorch: a row that has come `since` then replaces the row before it."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if "since" in row:
            if tuple(row["since"]) > version:
                continue
            kept.pop()
        kept.append(row)
    return kept


def rule_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: int) -> Rule:
    """The rule of an op for a call with these arguments and so many inputs."""
    if name == "cross_entropy":
        return _OF_CROSS_ENTROPY if _is_plain_loss(args, kwargs) else NO_RULE
    if name == "rpow" and len(args) == 2:
        name, args = "pow", args[::-1]
    name = _ALIASES.get(name, name)
    if name.rstrip("_") == "clamp" and inputs == 2 and _only_max(args, kwargs):
        name = "clamp_max"
    rows = _table().get(name) or _table().get(name.rstrip("_"))
    if rows is None:
        return NO_RULE
    plain_args = tuple(arg for arg in args if isinstance(arg, _PLAIN))
    named: dict[str, Any] = {key: value for key, value in kwargs.items() if isinstance(value, _PLAIN)}
    if name in ("norm", "vector_norm") and "p" in named:
        named = {"ord": 2 if named["p"] == "fro" else named["p"]}
    of_number = bool(args) and isinstance(args[0], (int, float))
    row = _row(rows, inputs, of_number, named)
    if row is not None and not plain_args and not named:
        named.update((argument, value) for argument, value in _DEFAULTS.items() if argument in row["args"])
    defaults = _DEFAULTS_OF.get(name.rstrip("_"), {})
    rule = NO_RULE if row is None else _filled(row, plain_args, named, defaults)
    if not any(text for _, text in rule.inputs):
        return NO_RULE  # it depends on what the call does not say, but perhaps the node
    return _of_mean(rule) if name == "nll_loss" and _is_plain_loss(args, kwargs) else rule


def _only_max(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a clamp has a tensor as its upper bound, and no lower one."""
    least, most = [kwargs.get(name, args[i] if len(args) > i else None) for i, name in enumerate(("min", "max"), 1)]
    return least is None and most is not None


def _is_plain_loss(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a cross_entropy has class targets, equal weights, and the mean as its reduction."""
    if len(args) != 2 or is_floating_point(args[1]):
        return False
    return all(value is None or value == _PLAIN_LOSS.get(name, ...) for name, value in kwargs.items())


@cache
def _by_node() -> dict[str, list[dict[str, Any]]]:
    """The rows by the names of their nodes."""
    return grouped((row["node"], row) for rows in _table().values() for row in rows)


def rule_of_node(fn: Any, name: str, edges: int, of: Rule = NO_RULE) -> Rule:
    """The rule of a node by its name, if its op does not determine it: the op made several nodes, or has another name
    (`x[0]` makes SelectBackward0). `of` is the rule of that op. Arguments that a formula depends on are read from the
    node."""
    name = name.removesuffix("_copy")  # the suffix of views that torch.func makes
    asked = _asked_of(name, edges)
    kept = tuple((argument, _kept(fn, argument)) for argument in asked) if asked else ()
    return _rule_of_kind(name, edges, of, kept)


@cache
def _asked_of(name: str, edges: int) -> tuple[str, ...]:
    """The arguments that the formulas of a kind of node depend on."""
    row = _row(_by_node().get(name, []), edges, False, {})
    texts = () if row is None else row["texts"]
    return tuple(row["args"]) if row is not None and not all(isinstance(text, str) for text in texts) else ()


def _kept(fn: Any, argument: str) -> Any:
    """An argument of the op of a node, as the node has it; _UNKNOWN if it has none that is plain."""
    for name in (argument, *_ALSO_CALLED.get(argument, ())):
        if hasattr(fn, f"_raw_saved_{name}"):  # a tensor: to read it would call the program's hooks
            continue
        value = getattr(fn, f"_saved_{name}", _UNKNOWN)
        if value is not _UNKNOWN and isinstance(value, _PLAIN):
            words = _WORDS_OF.get(argument, ())
            return words[value] if isinstance(value, int) and 0 <= value < len(words) else value
    return _UNKNOWN


@cache
def _rule_of_kind(name: str, edges: int, of: Rule, kept: tuple[tuple[str, Any], ...]) -> Rule:
    row = _row(_by_node().get(name, []), edges, False, {})
    known = {argument: value for argument, value in kept if value is not _UNKNOWN}
    rule = NO_RULE if row is None else _filled(row, (), known)
    if not all(text for argument, text in rule.inputs if argument != _TARGET) or not rule.inputs:
        rule = in_words(name, edges)
    return _of_mean(rule) if of == _OF_CROSS_ENTROPY else rule


def rule_in_derivative(name: str, edges: int, numbers: Mapping[str, Any]) -> Rule:
    """The rule of a node in the graph of a derivative, by its name and by the numbers that it keeps."""
    values = dict(numbers) | ({"number": numbers["other"]} if "other" in numbers else {})
    row = _row(_by_node().get(name, []), edges, False, values)
    return in_words(name, edges) if row is None else _filled(row, (), values)


def _of_mean(rule: Rule) -> Rule:
    """The rule of a classification loss that is the mean with equal weights."""
    texts = tuple((name, text.replace("share", "1/N")) for name, text in rule.inputs)
    return rule._replace(inputs=texts)


def _row(
    rows: Sequence[dict[str, Any]], inputs: int, of_number: bool, named: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The row for so many inputs that has the most of the arguments; `of_number` means that a number stands before
    the tensor, as in 2 ** x."""
    fitting = [
        row for row in rows if (row["variadic"] or inputs in _counts(row)) and ("base" in row["args"]) == of_number
    ]
    return max(fitting, key=lambda row: len(named.keys() & {*row["args"]}), default=None)


def _counts(row: dict[str, Any]) -> tuple[int, int]:
    """The numbers of inputs that an op of a row may have: without and with the target of a loss, which comes last."""
    count = len(row["inputs"])
    return count, count + (_TARGET in row["args"])


def _filled(
    row: dict[str, Any], given: Sequence[Any], named: dict[str, Any], defaults: Mapping[str, Any] = _NO_DEFAULTS
) -> Rule:
    """The formulas of a row for these arguments; `defaults` are the values of omitted arguments."""
    known = {name: value for name, value in named.items() if name in row["args"]}
    plain = (name for name in row["args"] if name not in _TENSORS)
    values = {**defaults, **dict(zip(plain, given, strict=False)), **known}
    pairs = zip(row["inputs"], row["texts"], strict=True)
    formulas = tuple((name, with_values(_chosen(text, values), values)) for name, text in pairs)
    target = ((_TARGET, ""),) if _TARGET in row["args"] else ()
    return Rule(formulas + target, row["elementwise"])


def _chosen(text: Any, values: Mapping[str, Any]) -> str:
    """The formula for these arguments; empty if it depends on an unknown argument."""
    while not isinstance(text, str):
        argument, cases, otherwise = text
        value = values.get(argument, _UNKNOWN)
        if value is _UNKNOWN:
            return ""
        text = next((branch for case, branch in cases if case == value), otherwise)
    return text


@cache
def rules_of_linear() -> tuple[Rule, Rule]:
    """The rules of the transpose and of `addmm`, which `linear` consists of."""
    return rule_of("t", (), {}, 1), rule_of("addmm", (), {}, 3)


_MOST = 2000  # calls that are cached
_SIGNED = {float, complex}  # 0.0 and -0.0 are equal, but have different texts
_LISTS = {tuple, list, torch.Size}
_TENSOR = repeat(torch.Tensor)
_known: dict[tuple[Any, ...], tuple[str, Rule]] = {}


def described(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], floating: bool, inputs: int
) -> tuple[str, Rule]:
    """The arguments of a call that are not tensors, as text, and its rule. `floating` is whether the call computes
    with floating-point numbers, `inputs` the number of its inputs."""
    if name == "cross_entropy":  # its rule depends on the dtype of the target
        return text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
    key: list[Any] = [name, floating, inputs, len(args)]
    if kwargs or not all(map(isinstance, args, _TENSOR)):
        if not (_told(args, key) and _told(kwargs.values(), key)):
            return text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
        key += kwargs
    text_and_rule = _known.get(tuple(key))
    if text_and_rule is None:
        if len(_known) > _MOST:
            _known.clear()
        text_and_rule = text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
        _known[tuple(key)] = text_and_rule
    return text_and_rule


def _told(values: Iterable[Any], key: list[Any]) -> bool:
    """Add the arguments to a cache key; a tensor only by its class. False if an argument is not simple enough."""
    for value in values:
        kind = type(value)
        if kind in CONSTANTS:
            key += (kind, repr(value) if kind in _SIGNED else value)
        elif isinstance(value, torch.Tensor):
            key.append(torch.Tensor)
        elif kind in _LISTS and all(type(part) is int for part in value):
            key += (kind, tuple(value))
        else:
            return False
    return True
