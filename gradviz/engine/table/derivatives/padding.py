"""Borders. Their gradients flow to the elements that they were made of."""

from __future__ import annotations

from gradviz.engine.core.derivative import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear

# fmt: off

general("constant_pad_nd", k.padded, args="before after value",
    x=d("1 inside the border", lambda g, before, after: k.padded_with_zeros(
        g, tuple(-b for b in before), tuple(-a for a in after))))
linear("padded_with_zeros", k.padded_with_zeros, name="constant_pad_nd", args="before after",
    x=d("1 inside the border", lambda g, before, after: k.padded_with_zeros(
        g, tuple(-b for b in before), tuple(-a for a in after))))
for mode in ("reflection", "replication"):
    for dims in (1, 2, 3):
        linear(f"{mode}_pad{dims}d", k.from_places, args="places", frees_args=True,
            node_name=f"{mode.capitalize()}Pad{dims}DBackward0",
            x=d("1 for each copy, summed", lambda g, x, places: k.put_back(g, x.shape, k.wrapped(places))))

# fmt: on
