"""The local derivative of a node: its formula, and its number where one can be told from the gradients."""

from __future__ import annotations

import re

import numpy as np

from gradviz.events.kinds import OpRan
from gradviz.step.numbers import SHOWN, clean, elements, nested
from gradviz.tracefile import Snapshot

# Nodes whose derivative is one number for each element, so that downstream / upstream tells it.
_ELEMENTWISE = (
    "Add Sub Rsub Mul Div Pow Neg Abs Reciprocal Maximum Minimum Clamp Exp Log Log1p Log2 Log10 Expm1 Sqrt Rsqrt "
    "Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Sigmoid Relu Softplus Clone Alias Silu Gelu Elu"
)
ELEMENTWISE = frozenset(f"{name}Backward{version}" for name in _ELEMENTWISE.split() for version in (0, 1))
_LONGEST = 32  # a name of up to so many characters is put into the formula


def formulas(text: str, op: OpRan, called: list[str]) -> list[tuple[str, str]]:
    """For each input of an op the name it has in the formula and the formula, by a node's text
    (`∂/∂x = y, ∂/∂y = x`); the inputs' own names (`called`) take the places of x and y. An input of which the
    text says nothing is left empty."""
    parts = [part.split(" = ", 1) for part in re.split(r",\s*(?=∂/∂)", clean(text)) if " = " in part]
    if not parts:
        return [("", "")] * len(called)
    symbols = [head.removeprefix("∂/∂").strip() for head, _ in parts]
    if len(parts) == 1 and len(called) > 1 and len(op.inputs) == len(called):
        return [(name, parts[0][1]) for name in called]
    names = {symbol: name for symbol, name in zip(symbols, called, strict=False) if len(name) <= _LONGEST}
    names["g"] = "upstream"
    exponent = re.search(r"exponent=([^,\s]+)", op.args)
    if exponent:
        names["n"] = clean(exponent[1])
    told = [
        (names.get(symbol, symbol), _with_names(formula, names))
        for symbol, (_, formula) in zip(symbols, parts, strict=True)
    ]
    return [*told[: len(called)], *[("", "")] * (len(called) - len(told))]


def _with_names(text: str, names: dict[str, str]) -> str:
    """A formula with the names of a program for its own, all at once."""

    def put(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        return name if match[0] == text or re.fullmatch(r"[\w.]+", name) else f"({name})"

    return re.sub(r"[A-Za-z]+", put, text)


def local_number(grad_fn: str, upstream: Snapshot | None, downstream: Snapshot | None) -> str:
    """The local derivative as numbers: downstream / upstream where both are scalars, or elementwise; else empty."""
    up, down = elements(upstream), elements(downstream)
    if up is None or down is None or up.shape != down.shape or up.size > SHOWN or up.dtype.kind not in "f":
        return ""
    if up.ndim and up.size > 1 and grad_fn not in ELEMENTWISE:
        return ""
    with np.errstate(all="ignore"):
        ratio = down.astype(np.float64) / up.astype(np.float64)
    if not np.all(np.isfinite(ratio)):
        return ""
    return nested(np.array([float(f"{v:.5g}") for v in ratio.reshape(-1)]).reshape(ratio.shape))
