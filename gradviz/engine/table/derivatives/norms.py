"""Norms and distances. Each order has a formula of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradviz.engine.core.derivative import Choice, by, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general


def _by_order(argument: str, x: str, ending: str, rule: Callable[[Callable], Callable]) -> Choice:
    """The derivative of a norm of `x` for each order. `rule` makes a rule from the slope of a norm,
    `slope(x, out, ord, dim)`, and `ending` says in words what the rule does besides."""
    extreme = f"sign({x}) where |{x}| is the {{}}, shared by ties{ending}"
    power = f"sign({x}) · |{x}|^({argument}−1) / norm^({argument}−1)"
    whole = f"({x})" if " " in x else x
    return by(
        argument,
        {
            0: d(f"0{ending}", rule(k.slope_of_count)),
            1: d(f"sign({x}){ending}", rule(k.slope_of_sum)),
            2: d(f"{whole} / norm{ending}", rule(k.slope_of_length)),
            np.inf: d(extreme.format("maximum"), rule(k.slope_of_extreme)),
            -np.inf: d(extreme.format("minimum"), rule(k.slope_of_extreme)),
        },
        d(f"{power}{ending}", rule(k.slope_of_norm)),
    )


# fmt: off

for key, node_name in ("vector_norm", "LinalgVectorNormBackward0"), ("norm", "NormBackward1"):
    general(key, k.vector_norm, node_name=node_name, args="ord dim keepdim",
        x=_by_order("ord", "x", ", spread", lambda slope: lambda g, x, out, ord, dim, keepdim:
            k.norm_back(slope, g, x, out, ord, dim, keepdim)))
general("dist", k.dist, args="p",
    x=_by_order("p", "x − y", ", spread", lambda slope: lambda g, x, y, out, p:
        k.sum_to(k.norm_back(slope, g, x - y, out, p, None, False), x.shape)),
    y=_by_order("p", "y − x", ", spread", lambda slope: lambda g, x, y, out, p:
        k.sum_to(-k.norm_back(slope, g, x - y, out, p, None, False), y.shape)))
general("cdist", k.cdist, args="p",
    x=_by_order("p", "x − y", ", for each pair of rows, summed", lambda slope: lambda g, x, y, out, p:
        k.sum_to(np.sum(k.cdist_back(slope, g, x, y, out, p), axis=-2), x.shape)),
    y=_by_order("p", "y − x", ", for each pair of rows, summed", lambda slope: lambda g, x, y, out, p:
        k.sum_to(-np.sum(k.cdist_back(slope, g, x, y, out, p), axis=-3), y.shape)))
general("pdist", k.pdist, args="p",
    x=_by_order("p", "x − y", ", for each pair of rows x and y, summed", lambda slope:
        lambda g, x, out, p: k.pdist_back(slope, g, x, out, p)))

# fmt: on
