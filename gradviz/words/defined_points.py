"""The gradient that PyTorch defines at a point without a derivative, in words: `at (0, 0)`, `PyTorch 2.13`, `0`."""

import numpy as np

from gradviz.query.at_points import Point
from gradviz.words.numbers import number


def called(version: str) -> str:
    """A version in a sentence: `PyTorch 2.13`."""
    return "PyTorch " + ".".join(version.split(".")[:2])


def place(point: Point) -> str:
    """A point in a sentence: `at 0`, `at (0, 0)`, `for zeros`, `for equal elements`."""
    if any(isinstance(one, list) for one in point.inputs):
        return "for equal elements" if any(map(np.any, point.inputs)) else "for zeros"
    inside = ", ".join(_brief(float(one)) for one in point.inputs)
    return f"at ({inside})" if len(point.inputs) > 1 else f"at {inside}"


def gradients(point: Point, version: str) -> str:
    """The gradients of the inputs of an op at a point: `0`, `1 and 0`, `NaN`; empty where they are not known, or depend
    on the number of elements."""
    texts: list[str] = []
    for given in point.gradients(version):
        is_of_any_size = given.ndim == 0 or not np.any(given[np.isfinite(given)])
        if not given.size or not is_of_any_size or len(each := {_brief(one) for one in given.flat}) > 1:
            return ""
        texts += each
    return " and ".join(texts if len(set(texts)) > 1 else texts[:1])


def _brief(value: float) -> str:
    """A number with three digits; −0 as 0."""
    return "NaN" if np.isnan(value) else number(value, 3).replace("inf", "∞").replace("-", "−")
