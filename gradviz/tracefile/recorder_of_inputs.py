"""The recorder of `--values inputs`. Of large tensors it keeps the elements from which a pass can be run again, and the
statistics of the gradients of leaves, against which the second run is checked. Small tensors are kept in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradviz.events.counters import next_tensor_number
from gradviz.events.handles import READERS, reader_of
from gradviz.events.kinds import Kind
from gradviz.events.listener import State, Where
from gradviz.events.values import GRADIENT, INPUTS, LARGEST, SMALL
from gradviz.tracefile.packing import pack_state
from gradviz.tracefile.recorder import Recorder


class InputsRecorder(Recorder):
    """A Recorder that keeps the elements of a large tensor only if a KEPT event asks for it. `written` are the tensors
    that were written to, other than by an op on them, since the last `take_written`; `functions` are the open scopes of
    custom Functions, whose forwards run without grad mode."""

    def __init__(self, path: Path | str, *settings: Any) -> None:
        self.written: list[int] = []
        self.functions: set[int] = set()
        self._keeping = ""  # how the next value is kept, if a KEPT event asks for it
        super().__init__(path, INPUTS, *settings)
        self._preparations[Kind.MUTATED] = self._prepare_write
        self._preparations[Kind.KEPT] = self._prepare_kept

    @property
    def rests(self) -> bool:  # type: ignore[override]
        """False: what a pass needs to run again may come to be in the passes before it."""
        return False

    def take_written(self) -> list[int]:
        """The tensors that have been written to since the last call."""
        written, self.written = self.written, []
        return written

    def scope_entered(
        self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False
    ) -> None:
        super().scope_entered(where, scope, kind, name, type, training)
        if kind == "function":
            self.functions.add(scope)

    def scope_left(self, scope: int) -> None:
        super().scope_left(scope)
        self.functions.discard(scope)

    def leaf_ran(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        super().leaf_ran(tensor, node, in_pass, gradient, state)
        self._keep_gradient(gradient, state)

    def accumulated(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        super().accumulated(tensor, node, in_pass, gradient, state)
        self._keep_gradient(gradient, state)

    def _keep_gradient(self, gradient: int, state: State) -> None:
        """Keep the gradient that a leaf received, if it is the whole `.grad`: else its value is not at hand."""
        if self.detailed and state.tensor == gradient and not state.version:
            self.kept(None, GRADIENT, gradient, State(next_tensor_number(), state.value))

    def _prepare_write(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self.written.append(values[0])
        return 0, states

    def _prepare_kept(self, values: tuple[Any, ...], states: Sequence[State]) -> tuple[int, Sequence[State]]:
        self._keeping = values[0]
        return 0, states

    def _state(self, tensor: int, value: Any, flags: int, version: int, base: int, later: int = 0) -> None:
        how, self._keeping = self._keeping, ""
        if not how and value is not None and self.keeps_values:
            reader = READERS.get(type(value)) or reader_of(value)
            if reader.size(value) > SMALL:  # its elements are not read
                form = self._form(value, reader)
                self.batch.states += pack_state(tensor, version, base, form, flags, 0, self.count + later)
                return
        self.most_elements = SMALL if how in ("", GRADIENT) else LARGEST
        super()._state(tensor, value, flags, version, base, later)

    def _produced_gradient(self, number: int, value: Any, later: int) -> None:
        self._state(number, value, 0, 0, 0, later)
