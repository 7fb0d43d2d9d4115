"""Recurrent networks: cells, and networks of several layers in one or both directions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.linear import empty_parameter
from gradviz.engine.nn.module import Module
from gradviz.engine.table import ops
from gradviz.engine.tensors.creation import made

State = Any  # h, or (h, c) of an LSTM


def rnn_step(from_x: Tensor, from_h: Tensor, state: State, nonlinearity: str) -> State:
    """tanh (or relu) of the sum."""
    total = ops.add(from_h, from_x)
    return ops.tanh(total) if nonlinearity == "tanh" else ops.relu(total)


def lstm_step(from_x: Tensor, from_h: Tensor, state: State, _: str) -> State:
    """Input, forget and output gates around the cell (Hochreiter and Schmidhuber 1997)."""
    i, f, g, o = ops.unsafe_chunk(ops.add(from_h, from_x), 4, -1)
    kept = ops.mul(ops.sigmoid(f), state[1])
    cell = ops.add(kept, ops.mul(ops.sigmoid(i), ops.tanh(g)))
    return ops.mul(ops.sigmoid(o), ops.tanh(cell)), cell


def gru_step(from_x: Tensor, from_h: Tensor, state: State, _: str) -> State:
    """Reset and update gates (Cho et al. 2014). The reset gate is applied after the product, as in PyTorch."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (ops.unsafe_chunk(part, 3, -1) for part in (from_x, from_h))
    reset, update = ops.sigmoid(ops.add(r_h, r_x)), ops.sigmoid(ops.add(z_h, z_x))
    new = ops.tanh(ops.add(n_x, ops.mul(n_h, reset)))
    return ops.add(ops.mul(ops.sub(state, new), update), new)


_STEPS = {"RNN": (rnn_step, 1), "LSTM": (lstm_step, 4), "GRU": (gru_step, 3)}


def _hidden(state: State) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def _zeros(x: Tensor, *size: int) -> Tensor:
    return made(np.zeros(size, x.array.dtype), "zeros")


class _Cell(Module):
    kind: str
    nonlinearity = "tanh"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = _STEPS[self.kind][1] * hidden_size
        self.weight_ih = empty_parameter(gates, input_size)
        self.weight_hh = empty_parameter(gates, hidden_size)
        self.register_parameter("bias_ih", empty_parameter(gates) if bias else None)
        self.register_parameter("bias_hh", empty_parameter(gates) if bias else None)
        _draw(self, hidden_size)

    def forward(self, input: Tensor, state: State = None) -> State:
        if input.array.ndim not in (1, 2):
            raise ValueError(f"{type(self).__name__}: Expected input to be 1D or 2D, got {input.array.ndim}D instead")
        if input.array.ndim == 1:
            whole = self.forward(ops.unsqueeze(input, 0), _each(state, lambda h: ops.unsqueeze(h, 0)))
            return _each(whole, lambda h: ops.squeeze(h, 0))
        if state is None:
            h = _zeros(input, input.array.shape[0], self.hidden_size)
            state = (h, h) if self.kind == "LSTM" else h
        from_x = F.linear(input, self.weight_ih, self.bias_ih)
        from_h = F.linear(_hidden(state), self.weight_hh, self.bias_hh)
        return _STEPS[self.kind][0](from_x, from_h, state, self.nonlinearity)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        text = text if self.bias else f"{text}, bias={self.bias}"
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


def _each(state: State, function: Any) -> State:
    """A function of each tensor of a state. None stays None."""
    if state is None:
        return None
    return tuple(function(part) for part in state) if isinstance(state, tuple) else function(state)


def _draw(module: Module, hidden_size: int) -> None:
    """Fill all parameters uniformly within ±1/√hidden."""
    bound = 1 / math.sqrt(hidden_size) if hidden_size else 0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class RNNCell(_Cell):
    """One step: tanh (or relu) of W x + b + W h + b."""

    kind = "RNN"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity: {nonlinearity}")
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity


class LSTMCell(_Cell):
    """One step of an LSTM: a new (h, c) from x and (h, c)."""

    kind = "LSTM"


class GRUCell(_Cell):
    """One step of a GRU."""

    kind = "GRU"


class _Recurrent(Module):
    kind: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        if proj_size:
            raise NotImplementedError("gradviz's LSTM has no projections (proj_size).")
        if num_layers < 1 or hidden_size < 1:
            raise ValueError("num_layers and hidden_size must be greater than zero")
        if not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1]")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        gates = _STEPS[self.kind][1] * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                setattr(self, f"weight_ih_{suffix}", empty_parameter(gates, width))
                setattr(self, f"weight_hh_{suffix}", empty_parameter(gates, hidden_size))
                if bias:
                    setattr(self, f"bias_ih_{suffix}", empty_parameter(gates))
                    setattr(self, f"bias_hh_{suffix}", empty_parameter(gates))
        _draw(self, hidden_size)

    nonlinearity = "tanh"

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: self._directions]

    def flatten_parameters(self) -> None:
        """Do nothing: the memory layout of the weights matters on a GPU only."""

    def forward(self, input: Tensor, state: State = None) -> tuple[Tensor, State]:
        if input.array.ndim not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.array.ndim}D instead")
        if input.array.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.array.shape[-1]}"
            )
        if input.array.ndim == 2:
            batch = 0 if self.batch_first else 1
            out, last = self.forward(ops.unsqueeze(input, batch), _each(state, lambda h: ops.unsqueeze(h, 1)))
            return ops.squeeze(out, batch), _each(last, lambda h: ops.squeeze(h, 1))
        input = ops.transpose(input, 0, 1) if self.batch_first else input
        out, last = self._run(input, self._first_state(input) if state is None else self._checked(state, input))
        return (ops.transpose(out, 0, 1) if self.batch_first else out), last

    def _first_state(self, x: Tensor) -> State:
        h = _zeros(x, self.num_layers * self._directions, x.array.shape[1], self.hidden_size)
        return (h, h) if self.kind == "LSTM" else h

    def _checked(self, state: State, x: Tensor) -> State:
        expected = (self.num_layers * self._directions, x.array.shape[1], self.hidden_size)
        for part in state if isinstance(state, tuple) else (state,):
            if part.array.shape != expected:
                raise RuntimeError(f"Expected hidden size {expected}, got {list(part.shape)}")
        return state

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Run all layers over (L, N, width). Returns the output of the last layer, and the last states of all
        layers."""
        lasts = []
        if isinstance(state, tuple):
            firsts: Any = list(zip(*(ops.unbind(part) for part in state), strict=True))
        else:
            firsts = ops.unbind(state)
        for layer in range(self.num_layers):
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                first = firsts[layer * self._directions + direction]
                out, last = self._one_way(x, first, suffix, backwards=direction == 1)
                outputs.append(out)
                lasts.append(last)
            x = outputs[0] if len(outputs) == 1 else ops.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        if self.kind == "LSTM":
            return x, (ops.stack([h for h, _ in lasts]), ops.stack([c for _, c in lasts]))
        return x, ops.stack(lasts)

    def _one_way(self, x: Tensor, state: State, suffix: str, backwards: bool) -> tuple[Tensor, State]:
        """Run one layer in one direction over all steps."""
        own: dict[str, Any] = self._parameters
        from_x = F.linear(x, own[f"weight_ih_{suffix}"], own.get(f"bias_ih_{suffix}"))
        w_h, b_h = own[f"weight_hh_{suffix}"], own.get(f"bias_hh_{suffix}")
        step, length = _STEPS[self.kind][0], x.array.shape[0]
        parts = ops.unbind(from_x)
        outputs: list[Any] = [None] * length
        for t in reversed(range(length)) if backwards else range(length):
            from_h = F.linear(_hidden(state), w_h, b_h)
            state = step(parts[t], from_h, state, self.nonlinearity)
            outputs[t] = _hidden(state)
        return ops.stack(outputs), state

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        changed = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        for name, default in changed.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(_Recurrent):
    """A network of RNN cells. Returns the output (L, N, hidden) and the last h."""

    kind = "RNN"

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **settings: Any) -> None:
        if len(args) > 3:  # the fourth positional argument is the nonlinearity
            nonlinearity, args = args[3], (*args[:3], *args[4:])
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(*args, **settings)
        self.nonlinearity = nonlinearity


class LSTM(_Recurrent):
    """A network of LSTM cells. Returns the output (L, N, hidden) and the last (h, c)."""

    kind = "LSTM"


class GRU(_Recurrent):
    """A network of GRU cells. Returns the output (L, N, hidden) and the last h."""

    kind = "GRU"
