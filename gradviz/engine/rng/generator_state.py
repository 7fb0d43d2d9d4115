"""The state of a generator as bytes, in the layout of PyTorch's `Generator.get_state()`.

The layout is that of `CPUGeneratorImplState` (aten/src/ATen/CPUGeneratorImpl.cpp). It has the state of the Mersenne
Twister as PyTorch counts it. It also has the second of two normal draws, if only the first one was taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WORDS = 624  # words in the state of the twister
LAYOUT = np.dtype(
    [
        ("seed", "<u8"), ("left", "<i4"), ("seeded", "<i4"), ("next", "<u8"), ("words", "<u8", _WORDS),
        ("normal_x", "<f8"), ("normal_y", "<f8"), ("normal_rho", "<f8"), ("has_normal", "<i4"), ("pad", "<i4"),
        ("next_float", "<f4"), ("has_float", "?"), ("end", "V3"),
    ]
)  # fmt: skip


def packed(seed: int, bits: np.random.MT19937, next_normal: float | None) -> np.ndarray:
    """The state as 5056 bytes."""
    state: Any = bits.state["state"]
    taken = int(state["pos"]) % _WORDS
    whole = np.zeros(1, LAYOUT)
    whole["seed"], whole["seeded"], whole["words"] = seed % 2**64, 1, state["key"]
    whole["next"], whole["left"] = taken, _WORDS + 1 - taken if taken else 1
    if next_normal is not None:
        whole["normal_y"], whole["has_normal"] = next_normal, 1
    return whole.view(np.uint8)


def unpacked(state: np.ndarray) -> tuple[int, np.random.MT19937, float | None]:
    """The seed, the twister and the saved normal draw. Raises RuntimeError for an invalid state."""
    if state.size != LAYOUT.itemsize:
        raise RuntimeError(
            f"Expected a CPUGeneratorImplState of size {LAYOUT.itemsize} but found the input RNG state size to be "
            f"{state.size}"
        )
    (whole,) = np.ascontiguousarray(state).view(LAYOUT)
    left = int(whole["left"])
    if not 1 <= left <= _WORDS or not whole["seeded"]:
        raise RuntimeError("Invalid mt19937 state")
    bits = np.random.MT19937()
    position = _WORDS if left == 1 else _WORDS + 1 - left
    words = whole["words"].astype(np.uint32)
    bits.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": position}}
    return int(whole["seed"]), bits, float(whole["normal_y"]) if whole["has_normal"] else None
