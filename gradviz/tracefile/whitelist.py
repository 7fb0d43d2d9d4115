"""The parts of the texts of a trace that may be shared: what is known to be harmless stays, everything else becomes
`…`.

Each text field of the table of events has its filter in `TEXTS`; a field without a filter loses its text. Every filter
leaves its own results unchanged."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradviz.events.handles import device_of_part, part_of, whole_device
from gradviz.events.kinds import TIED, Kind
from gradviz.tracefile.sound import nested

GONE = "…"
_DIGITS = 3  # the most digits of a whole number that stays in a text


# A text may have been cut off: then it ends without a quote.
_QUOTED = r"""\w*(?:'(?:[^'\\]|\\.?)*(?:'|\Z)|"(?:[^"\\]|\\.?)*(?:"|\Z))"""
_NEVER = "(?!)"


def _tokens_of(quoted: str, number: str) -> re.Pattern[str]:
    """The pattern of the tokens of a text, with these patterns for quoted texts and numbers."""
    return re.compile(rf"(?P<quoted>{quoted})|(?P<number>{number})|(?P<word>\w+)|(?P<blank>\s)|(?P<sign>.)", re.DOTALL)


_TOKEN = _tokens_of(_QUOTED, r"[0-9](?:[\w.]|(?<=[eE])[+−-](?=[0-9]))*")
# 0.5 is a number in an index, and two parts of a path elsewhere, as in net.0.weight.
_TOKEN_OF_NAME = _tokens_of(_QUOTED, r"(?<=[\[ ])[0-9]+\.[0-9][\w.]*|[0-9]\w*")
# no string stands in a formula
_TOKEN_OF_FORMULA = _tokens_of(_NEVER, r"[0-9]+(?:\.[0-9]+)?(?:e[+−-]?[0-9]+)?")
_SIGNS = frozenset("!#$%&()*+,-./:;<=>?@[]^_`{|}~…")
_SIGNS_OF_NAMES = frozenset(".:,-*/<>[]…")
_SIGNS_OF_FORMULAS = _SIGNS | frozenset("'∂·×∏√∞−≤≥⌊⌋⁻\u0302")
_INDICES = "¹²³ᵀᵢⱼ₀₁ₑ"
_CONSTANTS_OF_FORMULAS = frozenset(("0.134145", "0.044715"))  # of gelu


# --- texts


def nothing(text: str) -> str:
    """`…` in place of any text."""
    return GONE if text else ""


def name(text: str) -> str:
    """A name of identifiers, dots and indices: `net.0.weight`, `f.<locals>.g`, `params[…]` with a quoted key left
    out."""
    parts, depth = [], 0
    for kind, token in _tokens(text, _TOKEN_OF_NAME):
        depth += (token == "[") - (token == "]")
        if kind == "blank" and token == " " and depth > 0:
            parts.append(token)
        elif kind == "blank" or (kind == "sign" and token not in _SIGNS_OF_NAMES):
            return GONE
        else:
            parts.append(_kept(kind, token, _SIGNS_OF_NAMES))
    return "".join(parts)


def arguments(text: str) -> str:
    """The arguments of an op: words, small whole numbers and punctuation, without quoted texts and other numbers."""
    return "".join(_kept(kind, token, _SIGNS) for kind, token in _tokens(text))


def formula(text: str) -> str:
    """A formula, in which numbers of the program may occur."""
    return "".join(
        token if _is_of_formulas(kind, token) else _kept(kind, token, _SIGNS_OF_FORMULAS)
        for kind, token in _tokens(text, _TOKEN_OF_FORMULA)
    )


def role(text: str) -> str:
    """The role of a named tensor in its module."""
    return text if text in ("parameter", "buffer", TIED) else ""


def _tokens(text: str, pattern: re.Pattern[str] = _TOKEN) -> Iterator[tuple[str, str]]:
    """The tokens of a text, each with its kind."""
    return ((str(match.lastgroup), match[0]) for match in pattern.finditer(text))


def _kept(kind: str, token: str, signs: frozenset[str]) -> str:
    """A token if it may stay, else `…`."""
    if kind == "word":
        stays = token.isidentifier()
    elif kind == "number":
        stays = token.isascii() and token.isdigit() and len(token) <= _DIGITS
    elif kind == "blank":
        return " "
    else:
        stays = kind == "sign" and token in signs
    return token if stays else GONE


def _is_of_formulas(kind: str, token: str) -> bool:
    """Whether formulas have this constant, or this word with an index or an exponent: `x²`, `λᵢ`, `xᵀ`."""
    if kind == "number":
        return token in _CONSTANTS_OF_FORMULAS
    letters = token.rstrip(_INDICES)
    return kind == "word" and (not letters or letters.isidentifier())


# --- settings and rates

# Settings of PyTorch's optimizers and of their schedulers, as far as their values are numbers.
_SETTINGS = frozenset(
    """
    lr initial_lr base_lr max_lr min_lr momentum base_momentum max_momentum dampening weight_decay
    decoupled_weight_decay nesterov maximize foreach capturable differentiable fused betas eps amsgrad alpha centered
    rho lambd t0 initial_accumulator_value lr_decay etas step_sizes momentum_decay max_iter max_eval tolerance_grad
    tolerance_change history_size
    """.split()
)


def settings(text: str) -> str:
    """The settings of a parameter group: numbers and truth values of settings that optimizers have."""
    values = _json(text)
    known = values.items() if isinstance(values, dict) else ()
    return json.dumps({key: value for key, value in known if key in _SETTINGS and _is_plain(value)})


def rates(text: str) -> str:
    """The learning rates that a scheduler set."""
    values = _json(text)
    return json.dumps(values if isinstance(values, list) and all(map(_is_number, values)) else [])


def _json(text: str) -> Any:
    try:
        return nested(text, is_strict=False)
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_number, value))
    return value is None or isinstance(value, bool) or _is_number(value)


# --- paths


def path(text: str) -> str:
    """A path inside the working folder as it is; for any other path its last component: `…/helper.py`."""
    parts = re.split(r"[\\/]", text)
    if len(parts) == 1 and ":" not in text:
        return text
    inside = not any(part in ("", "..", "~", GONE) or ":" in part for part in parts)
    if inside or re.fullmatch(rf"{GONE}/[^\\/:]+", text):
        return text
    last = parts[-1].rpartition(":")[2]
    return f"{GONE}/{last}" if last not in ("", "..", "~") else GONE


# --- notes about a run

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+(cpu|cu[0-9]+|rocm[0-9.]+)\Z)?")


def _version(text: str) -> str:
    match = _VERSION.match(text)
    return match[0] if match is not None else GONE


def _ending(text: str) -> str:
    if text in ("ok", "error", "") or re.fullmatch(r"exit -?[0-9]{1,10}", text):
        return text
    return f"exit {GONE}"


def _stopped(text: str) -> str:
    match = re.search(r"; complete up to event [0-9]+\Z", text)
    return GONE + match[0] if match is not None else nothing(text)


_META: dict[str, Callable[[str], str]] = {
    "engine": lambda text: text if text in ("numpy", "torch") else GONE,
    "values": lambda text: "none" if text == "none" else "stats",
    "passes": lambda text: text if re.fullmatch(r"[a-z0-9:,-]{1,1000}", text) else GONE,
    "ended": _ending,
    "stopped": _stopped,
    **dict.fromkeys(("gradviz", "python", "numpy", "torch"), _version),
    **dict.fromkeys(("script", "error_file"), path),
    **dict.fromkeys(("scope", "error_type"), name),
    **dict.fromkeys(
        ("last", "rank", "world", "error_line", "left_out"),
        lambda text: text if re.fullmatch(r"[0-9]{1,10}", text) else "",
    ),
    **dict.fromkeys(("check_functions", "profile", "histograms", "no_source", "children"), lambda text: "1"),
}


def meta_of(meta: Mapping[str, str]) -> dict[str, str]:
    """The notes about a run that may be shared, with a note that the rest is gone."""
    shared = {key: keep(meta[key]) for key, keep in _META.items() if key in meta}
    if "error" in meta:
        shared["error"] = f"{shared.get('error_type', GONE)}: {GONE}"
    return {**shared, "redacted": "1"}


# --- forms


def dtype(text: str) -> str:
    """The name of a dtype."""
    return text if re.fullmatch(r"[a-z]{1,10}[0-9a-z_]{0,14}", text) else "unknown"


def device(text: str) -> str:
    """The name of a device, with the part of a tensor that a rank has."""
    if part := part_of(text):
        return device_of_part(device(whole_device(text)), *part)
    return text if re.fullmatch(r"[a-z]{1,16}(:[0-9]{1,3})?", text) else "unknown"


# --- events

# The text fields that each filter is for, and the texts in the elements of a list.
_FIELDS: dict[Callable[[str], str], dict[Kind, str]] = {
    name: {
        Kind.TENSOR: "how", Kind.OP: "op", Kind.NODE: "grad_fn", Kind.MUTATED: "how", Kind.NUMBER_READ: "how",
        Kind.GRADS_CLEARED: "how", Kind.NAMED: "name", Kind.SCOPE_ENTERED: "kind name type", Kind.TANGENT: "how",
        Kind.PASS_BEGAN: "how", Kind.RECEIVED: "grad_fn", Kind.KERNEL: "op", Kind.MEASURED: "op",
        Kind.BINNED: "what module", Kind.SUMMED: "why", Kind.COMPARED: "function argument", Kind.HOOKED: "hook",
        Kind.HOLDS: "type", Kind.CLIPPED: "how", Kind.COLLECTIVE: "how", Kind.KEPT: "how", Kind.CALLED: "function",
        Kind.STEPPED: "type", Kind.SCHEDULED: "type", Kind.ERROR: "type",
    },
    nothing: {
        Kind.KERNEL: "args result", Kind.COMPARED: "why_not", Kind.COLLECTIVE: "args",
        Kind.CALLED: "arguments context", Kind.ERROR: "message",
    },
    settings: {Kind.HOLDS: "groups.settings", Kind.STEPPED: "groups.settings"},
    arguments: {Kind.OP: "args"},
    role: {Kind.NAMED: "role"},
    rates: {Kind.SCHEDULED: "rates"},
}  # fmt: skip
TEXTS = {(kind, field): keep for keep, of in _FIELDS.items() for kind, fields in of.items() for field in fields.split()}
# The fields with a real number that keep it. A number that is computed from elements is not kept.
REALS = {
    (Kind.PASS_BEGAN, "time"),
    (Kind.STEPPED, "time"),
    *((Kind.MEASURED, field) for field in ("seconds", "made", "flops")),
    (Kind.STORAGE_SAVED, "bytes"),
}
# What stands in the place of a number that is not kept, where NaN would be taken for the number.
UNKNOWN = {
    (Kind.SUMMED, "loss"): 0.0,
    **dict.fromkeys(((Kind.SUMMED, "norm"), (Kind.SUMMED, "largest")), -1.0),
    **{(Kind.STEP_SUMMED, field): -1.0 for field in ("change", "size", "largest")},
}
# The flags that say of a number that it is known, if it is not kept.
UNSET = {(Kind.SUMMED, "has_loss")}


def filter_of(kind: Kind, field: str) -> Callable[[str], str]:
    """The filter of a text field; for a field without one, the filter that leaves nothing."""
    return TEXTS.get((kind, field), nothing)
