"""Rearranging the elements of images."""

from __future__ import annotations

from typing import Any

import numpy as np


def shuffled_pixels(x: Any, r: int) -> Any:
    """(..., C r², H, W) as (..., C, H r, W r)."""
    *lead, channels, height, width = x.shape
    n, c = len(lead), channels // (r * r)
    apart = x.reshape((*lead, c, r, r, height, width))
    turned = np.transpose(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return turned.reshape((*lead, c, height * r, width * r))


def unshuffled_pixels(x: Any, r: int) -> Any:
    """(..., C, H r, W r) as (..., C r², H, W)."""
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = x.reshape((*lead, channels, height // r, r, width // r, r))
    turned = np.transpose(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return turned.reshape((*lead, channels * r * r, height // r, width // r))


def shuffled_channels(x: Any, groups: int) -> Any:
    """The channels of (N, C, ...) in `groups` equal parts, taken in turn from each part."""
    n, channels, *rest = x.shape
    apart = x.reshape((n, groups, channels // groups, *rest))
    return np.swapaxes(apart, 1, 2).reshape(x.shape)
