"""What a rule needs: one object for each of its parameters.

A rule is a function `lambda g, x, out, dim: ...`. The names of its parameters say what it gets besides the upstream
gradient `g`. Each name stands for one `Need`. The need says where a node keeps it, how the derivative fetches it, how
forward mode finds it, and what `grad_fn._saved_self` shows.

- `x`, the name of an input: that input, which the node saves
- `out`: the output, which the node saves; a tuple of several outputs
- `chosen`: the indices of an op that gives (values, indices); the node saves them and not the values
- `dim`, the name of an argument: that argument
- `x_shape`, `x_dtype`: the shape or dtype of input `x`; the node keeps nothing else of it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradviz.engine.basics.errors import backward_twice
from gradviz.engine.core.node import ManyInputsNode, output_edge, unchanged, unpack_out
from gradviz.engine.core.tensor import Tensor, new_tensor

_SLOTS = ("x", "y")  # the slots of a node of one or two inputs


@dataclass(frozen=True, slots=True)
class Need:
    """The parameter `name` of a rule. `nr` is the number of the input, output or argument that it stands for."""

    name: str
    nr: int = 0
    is_tensor: ClassVar[bool] = False  # whether nodes keep it as a tensor, which hooks can pack

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        """The source lines that assign it to its name. The node is `n`.

        `many` says that the node is a ManyInputsNode, `recorded` that the rule gets Tensors."""
        raise NotImplementedError

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        """Its value in a run of the op with these inputs, this output (a tuple of several) and these arguments."""
        raise NotImplementedError

    def kept(self, node: Any) -> Any:
        """What a node keeps: a Tensor, another value, or None where it kept nothing.

        Raises RuntimeError where it is freed, or was modified in place since."""
        raise NotImplementedError

    def put(self, node: Any, tensor: Tensor | None) -> None:
        """Replace the tensor that a node keeps, or remove it. Only for what is kept as a tensor."""
        raise NotImplementedError


class Input(Need):
    """An input."""

    __slots__ = ()
    is_tensor = True

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        if many:
            return [f"{self.name} = unpack_nth(n, {self.nr})" + ("" if recorded else ".array")]
        name, slot = self.name, _SLOTS[self.nr]
        if recorded:
            return [f"{name} = unpack(n, '{slot}')"]
        return [
            f"{name} = n.{slot}",
            f"{name} = {name}.array if {name} is not None and "
            f"({name}._rare is None or {name}._rare.counter is None) else unpack(n, '{slot}').array",
        ]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return inputs[self.nr]

    def kept(self, node: Any) -> Tensor | None:
        if isinstance(node, ManyInputsNode):
            if node.tensors is None:
                raise backward_twice(node.name())
            tensor, version = node.tensors[self.nr], node.versions[self.nr]
            return None if tensor is None else unchanged(node, tensor, version)
        slot = _SLOTS[self.nr]
        if not hasattr(node, slot):
            return None
        if getattr(node, slot) is None:
            raise backward_twice(node.name())
        return unchanged(node, getattr(node, slot), getattr(node, f"{slot}_version", 0))

    def put(self, node: Any, tensor: Tensor | None) -> None:
        version = 0 if tensor is None else tensor._writes
        if isinstance(node, ManyInputsNode):
            node.tensors = _with(node.tensors or (), self.nr, tensor)
            node.versions = _with(node.versions, self.nr, version)
            return
        setattr(node, _SLOTS[self.nr], tensor)
        setattr(node, f"{_SLOTS[self.nr]}_version", version)


class AllInputs(Need):
    """The inputs of an op of any number of tensors, as a list."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        array = "" if recorded else ".array"
        return [f"{self.name} = [unpack_nth(n, i){array} for i in range(len(n.spec))]"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return list(inputs)


class Output(Need):
    """The output. Of several outputs: all of them, as a tuple."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        if recorded:
            return ["out = out_tensor(n, unpack_out(n))"]
        return ["out = n.out if n.out is not None and n.out_counter is None else unpack_out(n)"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return out


class Indices(Need):
    """The second of two outputs: the indices of an op that gives (values, indices)."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        return [f"{self.name} = unpack_indices(n)"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return getattr(out[1], "array", out[1])


class OneOutput(Need):
    """One output, as a node shows it. No rule asks for it."""

    __slots__ = ()
    is_tensor = True

    def kept(self, node: Any) -> Tensor:
        out = unpack_out(node)
        array = out[self.nr] if isinstance(out, tuple) else out
        return new_tensor(array, output_edge(node, self.nr) if array.dtype.kind in "fc" else None)

    def put(self, node: Any, tensor: Tensor | None) -> None:
        array = None if tensor is None else tensor.array
        node.out = array if node.outputs == 1 else _with(node.out, self.nr, array)
        node.out_counter = None


class Argument(Need):
    """An argument that is no tensor in PyTorch."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        return [f"{self.name} = n.args[{self.nr}]"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return args[self.nr]

    def kept(self, node: Any) -> Any:
        if node.args is None:
            raise backward_twice(node.name())
        value = node.args[self.nr]
        return new_tensor(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


class ArrayArgument(Argument):
    """An argument that is an array here, and a saved tensor in PyTorch."""

    __slots__ = ()
    is_tensor = True

    def put(self, node: Any, tensor: Tensor | None) -> None:
        node.args = _with(node.args, self.nr, None if tensor is None else tensor.array)


class Shape(Need):
    """The shape of an input."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        return [f"{self.name} = n.spec[{self.nr}][0]"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return inputs[self.nr].shape

    def kept(self, node: Any) -> tuple[int, ...]:
        return node.spec[self.nr][0]


class AllShapes(Need):
    """The shapes of the inputs of an op of any number of tensors, as a list."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        return [f"{self.name} = [spec[0] for spec in n.spec]"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return [value.shape for value in inputs]


class Dtype(Need):
    """The dtype of an input."""

    __slots__ = ()

    def fetch(self, many: bool, recorded: bool) -> list[str]:
        return [f"{self.name} = n.spec[{self.nr}][1]"]

    def of_run(self, inputs: Sequence[Any], out: Any, args: tuple) -> Any:
        return inputs[self.nr].dtype


def needs_by_name(inputs: Sequence[str], args: Sequence[str], variadic: bool) -> dict[str, Need]:
    """The needs by the names that parameters of rules can have, for an op with these inputs and arguments."""
    known: dict[str, Need] = {"out": Output("out"), "chosen": Indices("chosen", 1)}
    for nr, name in enumerate(inputs):
        of_input = AllInputs(name) if variadic else Input(name, nr)
        shape = AllShapes(f"{name}_shape") if variadic else Shape(f"{name}_shape", nr)
        known |= {name: of_input, shape.name: shape, f"{name}_dtype": Dtype(f"{name}_dtype", nr)}
    return known | {name: Argument(name, nr) for nr, name in enumerate(args)}


def _with(things: tuple, nr: int, thing: Any) -> tuple:
    return (*things[:nr], thing, *things[nr + 1 :])
