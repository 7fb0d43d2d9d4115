"""Checkpoints: what a function saves is not kept, but computed again when backward needs it.

This saves memory and costs time (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). See PyTorch's
`torch.utils.checkpoint`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from gradviz.engine.autograd.graph import saved_tensors_hooks
from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.backward import backward
from gradviz.engine.core.function import Function
from gradviz.engine.core.state import enable_grad, state
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import Sequential
from gradviz.engine.random import fork_rng, get_rng_state, set_rng_state

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential"]

_UNSAID = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. Starting in PyTorch 2.9, calling "
    "checkpoint without use_reentrant will raise an exception. use_reentrant=False is recommended, but if you need to "
    "preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for more details on the "
    "differences between the two variants."
)
_NOT_BACKWARD = (
    "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` parameter to "
    ".backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() without passing "
    "the `inputs` argument."
)


class CheckpointError(RuntimeError):
    """The second run did not save the same tensors as the first."""


def checkpoint(
    function: Callable,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = lambda: (nullcontext(), nullcontext()),
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Run `function(*args, **kwargs)` so that backward computes again what the function would save.

    With `use_reentrant` the function runs without a graph and is one node. Its backward runs the function again with
    a graph. This works for `backward()` only. Otherwise hooks on saved tensors do it, which work for `grad` and for
    gradients of gradients too. `context_fn` returns the contexts of the two runs. With `preserve_rng_state` both runs
    draw the same random numbers.

    Raises CheckpointError where the second run saves other tensors, and ValueError for options that do not fit."""
    if use_reentrant is None:
        warnings.warn(_UNSAID, UserWarning, stacklevel=2)
        use_reentrant = True
    if not use_reentrant:
        again = _Again(function, args, kwargs, preserve_rng_state, early_stop, determinism_check != "none")
        first, again.context = context_fn()
        with first, again.packing():
            return function(*args, **kwargs)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", UserWarning, stacklevel=2)
    return CheckpointFunction.apply(function, preserve_rng_state, *args)


def checkpoint_sequential(
    functions: Sequential | Sequence[Callable],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Run functions one after another, in `segments` parts. All parts but the last are checkpoints."""
    steps: list[Any] = list(functions)
    size = len(steps) // segments
    starts = range(0, size * (segments - 1), size) if size else ()
    for start in starts:
        input = checkpoint(
            _one_after_another(steps[start : start + size]), input, use_reentrant=use_reentrant, **kwargs
        )
    return _one_after_another(steps[len(starts) * size :])(input)


def _one_after_another(steps: Sequence[Callable]) -> Callable:
    def run(input: Any) -> Any:
        for step in steps:
            input = step(input)
        return input

    return run


# --- by hooks


class _Enough(Exception):
    """All tensors that the first run saved are there again."""


class _Again:
    """A call that can run again for what it saves. A tensor is identified by its position among those that are
    saved."""

    def __init__(
        self, function: Callable, args: tuple, kwargs: dict, keeps_draws: bool, stops_early: bool, checks: bool
    ) -> None:
        self.call: Callable[[], Any] = lambda: function(*args, **kwargs)
        self.draws = get_rng_state() if keeps_draws else None
        self.stops_early, self.checks = stops_early, checks
        self.context: Any = nullcontext()
        self.saved: list[tuple] = []  # shape and dtype of each
        self.computed: dict[int, dict[int, Tensor]] = {}  # by the pass that asked for them

    def packing(self) -> saved_tensors_hooks:
        """The hooks of the first run. They keep only the order of the tensors."""
        return saved_tensors_hooks(self._note, self._fetch)

    def _note(self, tensor: Tensor) -> int:
        self.saved.append(_form(tensor))
        return len(self.saved) - 1

    def _fetch(self, position: int) -> Tensor:
        run = state.modes.running
        asker = 0 if run is None else run.number
        if position not in self.computed.get(asker, ()):
            self.computed[asker] = self._compute()
        return self.computed[asker].pop(position)

    def _compute(self) -> dict[int, Tensor]:
        found: list[Tensor] = []

        def keep(tensor: Tensor) -> None:
            found.append(tensor.detach())
            if self.stops_early and len(found) == len(self.saved):
                raise _Enough

        hooks = saved_tensors_hooks(keep, _not_unpacked)
        with suppress(_Enough), enable_grad(), self.context, _draws_again(self.draws), hooks:
            self.call()
        if self.checks:
            self._check(found)
        return dict(enumerate(found))

    def _check(self, found: Sequence[Tensor]) -> None:
        if len(found) != len(self.saved):
            raise CheckpointError(
                "torch.utils.checkpoint: A different number of tensors was saved during the original forward and "
                f"recomputation.\nNumber of tensors saved during forward: {len(self.saved)}\nNumber of tensors saved "
                f"during recomputation: {len(found)}."
            )
        for position, (before, tensor) in enumerate(zip(self.saved, found, strict=True)):
            if _form(tensor) != before:
                raise CheckpointError(
                    "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata "
                    f"than during the forward pass.\ntensor at position {position}:\nsaved metadata: {before}\n"
                    f"recomputed metadata: {_form(tensor)}"
                )


def _form(tensor: Tensor) -> tuple:
    return tuple(tensor.shape), tensor.dtype


def _not_unpacked(_: Any) -> Tensor:
    raise AssertionError("what is computed again is not differentiated")


@contextmanager
def _draws_again(draws: Tensor | None) -> Iterator[None]:
    """Draw the same random numbers in the block as the first run did."""
    with fork_rng(enabled=draws is not None):
        if draws is not None:
            set_rng_state(draws)
        yield


# --- as one node


class CheckpointFunction(Function):
    """A Function that runs without a graph. Its backward runs it again with a graph."""

    @staticmethod
    def forward(ctx: Any, function: Callable, keeps_draws: bool, *args: Any) -> Any:
        """Run the function."""
        ctx.function, ctx.draws = function, get_rng_state() if keeps_draws else None
        ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg if isinstance(arg, Tensor) else None for arg in args))
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple:
        """Run the function again, and differentiate it. Raises RuntimeError in a pass that is not a plain
        `backward()`."""
        run = state.modes.running
        if run is not None and (run.how != "backward" or run.wanted):
            raise RuntimeError(_NOT_BACKWARD)
        args = [
            other if tensor is None else tensor.detach().requires_grad_(tensor.requires_grad)
            for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        with enable_grad(), _draws_again(ctx.draws):
            outputs = ctx.function(*args)
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(listed, gradients, strict=True)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        return (None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args))


__getattr__ = says_what_is_missing(__name__, globals())
