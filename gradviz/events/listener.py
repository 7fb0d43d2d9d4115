"""What a source tells of a run: one call an event, with raw values.

A source (gradviz's engine, PyTorch) calls these methods while the script runs; whoever wants to know derives
from `Listener` and overrides what it needs. Nothing is built for an event: arguments are plain numbers,
strings and arrays that the source has at hand anyway.

Identity is a number that counts up from 1 and is never used again: tensors (gradients and tangents are
tensors too) share one count, nodes have another, passes a third. 0 stands for "none". An *edge* is
`(node, output_nr)`, as in PyTorch's `next_functions`, with node 0 where no gradient is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np

LEAF = 1
REQUIRES_GRAD = 2
VIEW = 4


def op_links(
    inputs: Sequence[int], outputs: Sequence[int], edges: Sequence[int], saved: Sequence[int]
) -> tuple[int, ...]:
    """What an op is linked to, in one row: how many inputs, outputs and edge numbers there are, then those, then
    what was saved. Among the inputs 0 stands for a number; edges and saved tensors belong to the node: edges as
    `node, output_nr, ...`, saved as `tensor, version, ...`."""
    return (len(inputs), len(outputs), len(edges), *inputs, *outputs, *edges, *saved)


class Listener:
    """Hears every event and does nothing with it."""

    __slots__ = ()

    def tensor(self, number: int, array: np.ndarray, flags: int, how: str, base: int, version: int) -> None:
        """A tensor came to be other than by an op. `how` is its maker (`ones`, `Variable`, `data`);
        `base` is the tensor whose memory it shares, or 0."""

    def op(
        self,
        name: str,
        arrays: Sequence[np.ndarray | None],
        flags: int,
        args: str,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
    ) -> None:
        """An op ran. `arrays` (None: unknown) and `flags` are those of its outputs; `args` are the non-tensor
        arguments as text; `links` are the numbers that `op_links` puts in a row."""

    def mutated(
        self, number: int, array: np.ndarray, flags: int, version: int, how: str, source: int
    ) -> None:
        """A tensor's value was written over in place; `version` is its version afterwards, `source` the
        tensor whose value it took (the result of the op that worked in place), or 0."""

    def requires_grad_changed(self, number: int, flags: int) -> None:
        """`requires_grad_()` or an assignment changed whether a tensor requires grad."""

    def grad_assigned(self, number: int, grad: int) -> None:
        """`tensor.grad = grad`; 0 for None (as `zero_grad` leaves it)."""

    def named(self, number: int, name: str) -> None:
        """A tensor got a name: a parameter's path in its module."""

    def scope_entered(self, scope: int, kind: str, name: str) -> None:
        """A module's forward, or a custom Function's, was entered."""

    def scope_left(self, scope: int) -> None:
        """...and left, by return or by exception."""

    def pass_began(
        self,
        number: int,
        how: str,
        roots: Sequence[int],
        root_tensors: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray],
        inputs: Sequence[int],
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        """A backward pass began (`how`: `backward` or `grad`) at nodes `roots`, the edges of
        `root_tensors`, with `gradients` (values `arrays`); `inputs` are the tensors whose gradients are
        asked for, none for "all leaves"."""

    def received(
        self, node: int, grad_fn: str, gradients: Sequence[int], arrays: Sequence[np.ndarray | None]
    ) -> None:
        """A node was given the sum of the gradients of its outputs (one an output, 0 where none came) and is
        about to run. `arrays` holds the values not told before, None for the others."""

    def produced(
        self,
        node: int,
        targets: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        """A node has run: `gradients` go along its edges to nodes `targets`."""

    def ran(
        self,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
        array: np.ndarray | None,
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        """`received` and `produced` of a node of one output, told together once it has run. A source may do so
        where nothing can have happened between the two. `links` are the gradient that it received (value
        `array`), then its targets, then the gradients that it produced (values `arrays`)."""
        n = len(arrays)
        self.received(node, grad_fn, links[:1], (array,))
        self.produced(node, links[1 : 1 + n], links[1 + n :], arrays)

    def accumulated(
        self, number: int, node: int, gradient: int, grad: int, array: np.ndarray, version: int
    ) -> None:
        """A leaf's `.grad` took in `gradient`, and is now tensor `grad` with value `array`."""

    def retained(self, number: int, node: int, grad: int) -> None:
        """A non-leaf that called `retain_grad()` kept its gradient: its `.grad` is now tensor `grad`."""

    def hooked(self, number: int, node: int, hook: str, before: int, after: int, array: np.ndarray) -> None:
        """A hook on tensor `number` (0: on the node itself) replaced gradient `before` by `after`."""

    def pass_ended(self, number: int) -> None:
        """The pass is over, its buffers are freed unless it retains them."""

    def tangent(self, number: int, tangent: int, array: np.ndarray, how: str) -> None:
        """Forward mode: a tensor got a tangent, from `make_dual` or pushed through an op (`how`)."""

    def stepped(self, optimizer: str, args: str, parameters: Sequence[int]) -> None:
        """An optimizer is about to step; the mutations of its parameters follow."""

    def error(self, kind: str, message: str, node: int, raised: TracebackType | None = None) -> None:
        """An exception left a backward pass; `node` is the one that was running, or 0. Or it left the program:
        then `raised` says where it came from."""
