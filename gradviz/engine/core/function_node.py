"""The node of a custom Function."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics import errors
from gradviz.engine.core.broadcasting import sum_to
from gradviz.engine.core.node import Edge, Node, output_edge
from gradviz.engine.core.packing import Packed
from gradviz.engine.core.state import next_node_number, no_grad, state
from gradviz.engine.core.tensor import Tensor, counter_of, new_tensor, node_of, saved_version


class FunctionNode(Node):
    """The node of a custom Function. Programs see its `ctx` instead, whose attributes are the program's own."""

    function: Any  # the class that the program wrote
    takes_tensors = True
    arity = 0

    def __init__(self) -> None:
        self.number = next_node_number()
        self.rare = None
        self.attributes: dict[str, Any] = {}  # what the program put into ctx
        self._ctx: weakref.ref[Any] | None = None
        self._edges: tuple[Edge, ...] = ()
        self._of_tensors: tuple[bool, ...] = ()  # which edges belong to tensors
        self._to_save: tuple = ()
        self._saved: list[tuple[Any, Any, int]] | None = []
        self._dirty: tuple = ()
        self._constant: set[int] = set()
        self._materialize = True
        self._shapes: list[Any] = []  # and dtypes, of the outputs
        self._input_shapes: tuple[Any, ...] = ()  # None for an argument that is no tensor
        self.plain_arguments: tuple[Any, ...] = ()  # those that are no tensors; None in the place of a tensor
        self.needs_input_grad: tuple[bool, ...] = ()
        self.outputs = 1

    def as_shown(self) -> Any:
        """The ctx. It is the same object as long as somebody holds it."""
        ctx = None if self._ctx is None else self._ctx()
        if ctx is None:
            ctx = self.function._ctx_class(self)
            self._ctx = weakref.ref(ctx)
        return ctx

    # --- what is saved

    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The saved tensors. Raises RuntimeError where they are freed, or where one was modified in place since."""
        if self._saved is None:
            raise errors.backward_twice(self.name())
        return tuple(self._unpack(*entry) for entry in self._saved)

    def _unpack(self, tensor: Any, counter: Any, version: int) -> Tensor | None:
        if counter is not None and counter.n != version:
            maker, array = (node_of(tensor), tensor.array) if isinstance(tensor, Tensor) else (self, tensor[1])
            raise errors.mutated_since_saved(self, maker, array, version, counter.n)
        if isinstance(tensor, Packed):
            return tensor.unpacked(self)
        if isinstance(tensor, tuple):  # an output of this node: its tensor would make a cycle
            nr, array = tensor
            output = new_tensor(array, output_edge(self, nr))
            if state.forward_mode is not None:
                state.forward_mode.restore(output, self, nr)
            return output
        return tensor

    def _keep(self, results: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._saved = []
        for tensor in self._to_save:
            if tensor is None:
                self._saved.append((None, None, 0))
                continue
            saved_version(tensor)  # raises for a tensor made in inference mode
            nr = next((i for i, result in enumerate(results) if result is tensor), None)
            kept = tensor if nr is None else (nr, tensor.array)
            hooks = state.modes.saved_tensors_hooks
            if hooks:
                shown = tensor if nr is None else new_tensor(tensor.array, outputs[nr]._edge)
                self._saved.append((Packed(shown, hooks[-1], nr), None, 0))
                continue
            counter = counter_of(tensor if nr is None else outputs[nr])
            self._saved.append((kept, counter, counter.n))
        self._to_save = ()

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The edges as `(node, output_nr)`, one for each tensor argument."""
        return tuple(itertools.compress(super().next_functions, self._of_tensors))

    # --- what a pass calls

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self._edges

    def release(self) -> None:
        self._saved = None if self._saved else self._saved

    def saved(self) -> list[tuple[Tensor | None, int]]:
        return [(entry[0], entry[2]) for entry in self._saved or () if isinstance(entry[0], Tensor)]

    def vjp_recorded(self, gradients: tuple) -> tuple[Tensor | None, ...]:
        """Call the program's backward with Tensors. Returns one gradient for each edge.

        Raises RuntimeError for the wrong number or shape of gradients, TypeError for what is neither a Tensor nor
        None."""
        if self._materialize:
            gradients = tuple(
                new_tensor(np.zeros(*shape)) if g is None else g
                for g, shape in zip(gradients, self._shapes, strict=True)
            )
        results = self.function.backward(self.as_shown(), *gradients)
        results = results if isinstance(results, tuple) else (results,)
        extra = results[len(self._edges) :]
        if len(results) < len(self._edges) or any(result is not None for result in extra):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients "
                f"(expected {len(self._edges)}, got {len(results)})"
            )
        return tuple(
            None if edge is None else self._checked(i, result)
            for i, (edge, result) in enumerate(zip(self._edges, results, strict=False))
        )

    def _checked(self, position: int, gradient: Any) -> Tensor | None:
        if gradient is None:
            return None
        if not isinstance(gradient, Tensor):
            raise TypeError(
                f"expected Variable or None (got {type(gradient).__name__}) from {self.name()} at {position}"
            )
        shape = self._input_shapes[position]
        return gradient if gradient.array.shape == shape else self._summed(position, gradient, shape)

    def _summed(self, position: int, gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A gradient, summed to the shape of its input. Raises RuntimeError where the input cannot be expanded to the
        gradient's shape, as PyTorch does."""
        try:
            fits = np.broadcast_shapes(shape, gradient.array.shape) == gradient.array.shape
        except ValueError:
            fits = False
        if not fits:
            raise RuntimeError(
                f"Function {self.name()} returned an invalid gradient at index {position} - got "
                f"{list(gradient.array.shape)} but expected shape compatible with {list(shape)}"
            )
        return sum_to(gradient, shape)

    def vjp(self, gradient: Any) -> tuple[Any, ...]:
        """`vjp_recorded` on arrays."""
        given = gradient if isinstance(gradient, (tuple, list)) else (gradient,)
        tensors = tuple(None if g is None else new_tensor(np.asarray(g)) for g in given)
        with no_grad():
            return tuple(None if r is None else r.array for r in self.vjp_recorded(tensors))

    def __repr__(self) -> str:
        return f"<torch.autograd.function.{self.name()} object at {hex(id(self))}>"
