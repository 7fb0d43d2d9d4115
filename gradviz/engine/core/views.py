"""Views, and what becomes of them when the memory that they share is modified in place.

A view knows its base, and the base knows its views by weak references. When one of them is modified, the `grad_fn` of
the base becomes CopySlices, or the op that modified it. The `grad_fn` of each view becomes AsStridedBackward0 of the
base. For some views this would be ambiguous or wrong. Such a view is spoiled: using it raises RuntimeError, as in
PyTorch.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from gradviz.engine.basics.printing import format_array
from gradviz.engine.core.op import Op
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, TensorRare, counter_of, number_of, tensor_rare

SEVERAL = {"split", "split_with_sizes", "chunk", "unbind"}

MADE_WITHOUT_GRAD = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both "
    "the view and the inplace either both inside the no_grad block (if you don't want the inplace to be tracked) or "
    "both outside (if you want the inplace to be tracked)."
)
ONE_OF_SEVERAL = (
    "This view is the output of a function that returns multiple views. Such functions do not allow the output views "
    "to be modified inplace. You should replace the inplace operation by an out-of-place one."
)
PART_OF_COMPLEX = "gradviz does not differentiate writes to the parts of complex numbers: compute a new tensor instead."
MADE_IN_FUNCTION = (
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic "
    "to handle view+inplace would override the custom backward associated with the custom Function, leading to "
    "incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)


def share_memory(op: Op, source: Tensor, view: Tensor) -> None:
    """Make `view` a view of `source` where their arrays share memory: they get one version counter and one base."""
    if not _is_seen_in(source.array, view.array):
        return
    rare = tensor_rare(view)
    rare.counter, rare.inference = counter_of(source), source.is_inference()
    if state.special and state.listener is not None:
        rare.alias_of, rare.alias_whole = number_of(source), _shows_all(source.array, view.array)
    if not op.derivatives:  # detach shares the memory, but the result is no view for autograd
        return
    of_source: TensorRare = source._rare  # type: ignore[assignment]  # it has a counter
    rare.base = base = source if of_source.base is None else of_source.base
    if state.special and not state.modes.grad_enabled:
        rare.view_kind = MADE_WITHOUT_GRAD
    elif op.name == "view_as_real":
        rare.view_kind = PART_OF_COMPLEX
    elif op.name in SEVERAL:
        rare.view_kind = ONE_OF_SEVERAL
    elif of_source.view_kind:
        rare.view_kind = of_source.view_kind
    # who hears of a write to a leaf hears of its views, and one of several views cannot be used any more
    if base._edge is not LEAF_EDGE or state.listener is not None or rare.view_kind is ONE_OF_SEVERAL:
        remember(base, view)


def _shows_all(source: np.ndarray, view: np.ndarray) -> bool:
    """Whether a view shows all elements of its source in their order."""
    if view.size != source.size:
        return False
    if view.flags.c_contiguous and source.flags.c_contiguous:
        return True
    return _steps(source) == _steps(view)


def _steps(array: np.ndarray) -> list[tuple[int, int]]:
    """The lengths and strides of the dimensions that have more than one place."""
    return [pair for pair in zip(array.shape, array.strides, strict=True) if pair[0] > 1]


def _is_seen_in(source: np.ndarray, array: np.ndarray) -> bool:
    """Whether two arrays share memory. Mostly the attribute `base` of one of them tells."""
    memory = array.base
    if array is source or (memory is not None and (memory is source or memory is source.base)):
        return True
    return np.may_share_memory(array, source)


def view_of_input(view: Tensor, source: Tensor) -> None:
    """Make an output of a custom Function a view of its input. Modifying that view raises an error."""
    rare = tensor_rare(view)
    rare.counter, rare.view_kind = counter_of(source), MADE_IN_FUNCTION
    rare.base = source if source._base is None else source._base
    remember(rare.base, view)


def remember(base: Tensor, view: Tensor) -> None:
    """Let the base know its view for as long as the view lives."""
    rare = tensor_rare(base)
    if rare.views is None:
        rare.views = []
    views = rare.views
    views.append(weakref.ref(view))
    if len(views) >= 16 and not len(views) & (len(views) - 1):  # at 16, 32, 64 ...: forget the dead
        rare.views = [known for known in views if known() is not None]


def views_of(base: Tensor) -> list[Tensor]:
    """The views of a tensor that still exist."""
    rare = base._rare
    if rare is None or rare.views is None:
        return []
    return [view for known in rare.views if (view := known()) is not None]


def complaint(view: Tensor, what: str) -> str:
    """Why autograd cannot follow an in-place operation on a view, or "" where it can. `what` says what happens to the
    view."""
    rare = tensor_rare(view)
    if not rare.view_kind:
        return ""
    made = _maker(view)
    if made and rare.view_kind is not MADE_WITHOUT_GRAD:
        return f"{made} is a view and {what} modified inplace. {rare.view_kind}"
    which = f"{made} is a view of a view which was" if made else "A view was"
    return f"{which} created in no_grad mode and {what} modified inplace with grad mode enabled. {rare.view_kind}"


def _maker(view: Tensor) -> str:
    """Which output of which node a view is: `Output 0 of Split`. "" where no node made it."""
    if isinstance(view, SpoiledView):
        return tensor_rare(view).maker
    edge: Any = view._edge
    nr, node = (edge.nr, edge.node) if hasattr(edge, "nr") else (0, edge)
    return "" if node is None or node is LEAF_EDGE else f"Output {nr} of {node.label.partition('Backward')[0]}"


class SpoiledView(Tensor):
    """A view that cannot be differentiated any more. Using its place in the graph raises RuntimeError, which says
    why. Its values can be read."""

    __slots__ = ()

    @property
    def _edge(self) -> Any:
        raise RuntimeError(tensor_rare(self).spoiled)

    requires_grad = property(lambda self: True)  # although it cannot be used
    grad = property(lambda self: None)

    def __repr__(self) -> str:
        return format_array(self.array, suffixes=["grad_fn=<Invalid>"])


SpoiledView.__name__ = SpoiledView.__qualname__ = "Tensor"


WRITTEN = "its base or another view of its base has been"


def spoil_several(base: Tensor) -> None:
    """Make those views unusable that a function returned with others, after a write of which the graph does not
    know."""
    for view in views_of(base):
        if tensor_rare(view).view_kind is ONE_OF_SEVERAL and not isinstance(view, SpoiledView) and view._edge:
            spoil(view, complaint(view, WRITTEN))


def spoil(view: Tensor, why: str) -> None:
    """Make a view unusable for autograd."""
    rare = tensor_rare(view)
    rare.spoiled, rare.maker = why, _maker(view)
    if not isinstance(view, SpoiledView):
        view._edge = None
        view.__class__ = SpoiledView
