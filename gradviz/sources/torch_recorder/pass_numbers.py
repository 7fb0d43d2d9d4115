"""A few numbers of each pass, where some passes are left out: its loss, the norms of the gradients that a step of an
optimizer uses, and how much the step changes the parameters. On a device they are computed there, and read some passes
later: the program never waits for them."""

import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gradviz.sources.torch_recorder.fetching import current_stream, streams_of
from gradviz.sources.torch_recorder.memory import bytes_of, check_room
from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    clone,
    detach,
    is_complex,
    item,
    no_grad,
    numel,
    reshape,
    tolist,
)
from gradviz.sources.torch_recorder.shared import Source, is_capturing, safely
from gradviz.sources.torch_recorder.step_changes import Change
from gradviz.sources.torch_recorder.tensor_values import PLAIN, innermost, unheard

_HALVES = (torch.float16, torch.bfloat16)
_QUIET = 64  # norms in a row that show nothing unusual, after which they are read one step less often
_FARTHEST = 8  # steps
_OF_CHANGES = 16  # steps, of which at most one has its changes read
_UNUSUAL = 4  # so many times the last loss or norm that was read


class Spacing:
    """Decides at which steps norms are read: at each of the first 64, then ever fewer, at last at one of eight, and
    again at each from where a loss or a norm is not finite, or more than four times what was read last. How much a step
    changes the parameters takes three times as long: it is read at one of sixteen steps at most, where norms are."""

    def __init__(self) -> None:
        self.quiet = 0
        self.since = 0  # the steps since norms were read
        self.since_changes = _OF_CHANGES - 1  # ...and since changes were
        self.are_changes_due = False  # whether the change of the present step is read
        self.loss = self.norm = math.inf  # what was read last

    def is_due(self, loss: float | None) -> bool:
        """Whether norms are read at a step behind a pass with this loss, which is None where it is not known yet."""
        self.came(loss)
        self.since += 1
        is_due = self.since > min(self.quiet // _QUIET, _FARTHEST - 1)
        self.since_changes += 1
        self.are_changes_due = is_due and self.since_changes >= _OF_CHANGES
        if is_due:
            self.since = 0
        if self.are_changes_due:
            self.since_changes = 0
        return is_due

    def came(self, loss: float | None) -> None:
        """Note a loss that is known now."""
        if loss is not None and not abs(loss) <= _UNUSUAL * self.loss:
            self.quiet = 0

    def read(self, loss: float | None, norm: float) -> None:
        """Note the norm of all gradients that was read, and the loss of the pass."""
        self.came(loss)
        self.quiet = self.quiet + 1 if norm <= _UNUSUAL * self.norm else 0
        self.norm = norm
        if loss is not None:
            self.loss = abs(loss)


def norms_of(gradients: Sequence[torch.Tensor]) -> list[float] | torch.Tensor | None:
    """The norm of each gradient, read, or as one tensor on their device. None if they are on several, or if one has no
    elements that can be read: it is sparse, or of a class of its own."""
    devices = {gradient.device for gradient in gradients}
    is_plain = PLAIN.issuperset(map(type, gradients)) and {gradient.layout for gradient in gradients} == {torch.strided}
    if not is_plain or len(devices) > 1 or any(map(is_complex, gradients)) or gradients[0].is_meta:
        return None
    if devices.pop().type != "cpu":
        # a sum of squares may be too large for float32 where no element is
        wide = torch.float32 if gradients[0].is_mps else torch.float64
        return torch.stack([TENSORS.to(norm, wide) for norm in torch._foreach_norm(list(gradients), 2, dtype=wide)])
    places: defaultdict[torch.dtype, list[int]] = defaultdict(list)
    for at, gradient in enumerate(gradients):
        places[gradient.dtype].append(at)
    norms = [0.0] * len(gradients)
    for dtype, own in places.items():
        each = torch._foreach_norm([gradients[at] for at in own], 2, dtype=torch.float32 if dtype in _HALVES else None)
        for at, norm in zip(own, map(item, each), strict=True):
            # of finite elements the sum of squares may be too large for float32
            norms[at] = norm if norm != math.inf else item(torch.linalg.vector_norm(gradients[at], dtype=torch.float64))
    return norms


_UNKNOWN = -1.0
_READ_IN_PLACE = {torch.float32: struct.Struct("f").unpack, torch.float64: struct.Struct("d").unpack}
_LATER = 4  # the passes after which numbers are read from a device without streams


class _Late(NamedTuple):
    """Numbers that are on their way from a device, and what is called with them."""

    numbers: torch.Tensor
    tell: Callable[[list[float]], None]
    # the event of the device behind which the numbers are there; None where the device has no events
    done: Any


class PassNumbers:
    """Emits the numbers of passes to a source's listener, if it wants them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.in_pass = 0
        self.loss: torch.Tensor | float | None = None
        self.is_due = False  # whether the numbers of the last pass are yet to be emitted
        # The parameters whose gradients of the last pass were counted, by `id`, and those whose changes behind it were:
        self.counted: set[int] = set()
        self.changed: set[int] = set()
        self.steps = True  # whether an optimizer stepped with the gradients of the pass before
        self.late: deque[_Late] = deque()
        self.spacing = Spacing()
        self.are_due = (0, True)  # the last pass behind which a step came, and whether its norms are read

    @property
    def are_wanted(self) -> bool:
        """Whether the listener wants the numbers."""
        listener = self.source.listener
        return listener is not None and listener.sums

    @safely
    def began(self, in_pass: int, loss: torch.Tensor | float | None) -> None:
        """Note the loss of a pass that has begun: read, or on its device."""
        if not self.are_wanted:
            return
        if self.is_due:
            self.steps = False
            self._flush()
        self.in_pass, self.is_due = in_pass, True
        self.counted.clear()
        self.changed.clear()
        self.loss = loss
        self._read_late()

    @staticmethod
    def loss_of(roots: Any) -> torch.Tensor | float | None:
        """The number that a pass begins at: read, if it lies on the CPU. None for several roots, or several
        elements."""
        if not isinstance(roots, torch.Tensor):
            if len(roots) != 1:
                return None
            (roots,) = roots
        roots = innermost(roots)
        if (
            type(roots) not in PLAIN
            or roots.layout is not torch.strided
            or numel(roots) != 1
            or is_complex(roots)
            or roots.is_meta
        ):
            return None
        if roots.is_cpu and roots.dtype in _READ_IN_PLACE:
            return _READ_IN_PLACE[roots.dtype](bytes_of(roots))[0]
        with unheard(), no_grad():
            check_room(roots)
            return float(item(roots)) if roots.is_cpu else clone(detach(roots))

    @safely
    def ended(self) -> None:
        """Emit the loss of the pass, if no optimizer stepped with the gradients of the pass before."""
        if self.are_wanted and not self.steps:
            self._flush()

    @safely
    def stepping(self, optimizer: Any) -> bool:
        """Emit the numbers of the last pass: an optimizer is about to step with its gradients. Gradients that a step
        before has counted are left out, as those of an optimizer that steps inside another. Returns whether the numbers
        of the step are wanted."""
        if not self.are_wanted or not self.in_pass or is_capturing():
            return False
        self.steps = True
        if not self.is_due:
            self.loss = None  # it was emitted
        if not self._are_norms_due():
            self._flush()
            return False
        self.is_due = False
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            gradients = [
                (parameter, gradient)
                for group in optimizer.param_groups
                for parameter in group["params"]
                if id(parameter) not in self.counted and (gradient := parameter.grad) is not None
            ]
            if not gradients and self.counted:
                return self.spacing.are_changes_due
            parameters = [parameter for parameter, _ in gradients]
            self.counted.update(map(id, parameters))
            self._emit(parameters, norms_of([gradient for _, gradient in gradients]))
        return self.spacing.are_changes_due

    @safely
    def stepped(self, optimizer: int, parameters: Sequence[torch.Tensor], changes: Sequence[Change]) -> None:
        """Emit how much an optimizer, by its number, has changed parameters, if all changes are known. Of
        optimizers that step inside one another, the innermost counts."""
        own_ids = set(map(id, parameters))
        if not self.are_wanted or not changes or self.changed & own_ids:
            return
        self.changed |= own_ids
        in_pass, number_of = self.in_pass, self.source.identity.number_of
        known: list[Any] = [part for change in changes for part in change[1:]]
        are_here = not any(isinstance(part, torch.Tensor) for part in known)
        with torch._C.DisableTorchFunction(), unheard(), no_grad():
            if len(changes) < sum(numel(parameter) > 0 for parameter in parameters):
                return
            if are_here:
                self._tell_step(in_pass, optimizer, known, lambda at: number_of(parameters[changes[at].place]))
            elif len({part.device if isinstance(part, torch.Tensor) else None for part in known}) == 1:
                own = [number_of(parameters[change.place]) for change in changes]
                self._send_for(
                    torch.stack(known), lambda numbers: self._tell_step(in_pass, optimizer, numbers, own.__getitem__)
                )

    def _tell_step(
        self, in_pass: int, optimizer: int, numbers: Sequence[float], number_at: Callable[[int], int]
    ) -> None:
        """Emit how much a step has changed tensors, by their changes and sizes in turn."""
        changes, sizes = numbers[::2], numbers[1::2]
        total = _together(changes)
        ratios = [norm / size if size > 0 else _UNKNOWN for norm, size in zip(changes, sizes, strict=True)]
        largest = max(ratios) if math.isfinite(total) else _UNKNOWN
        at = ratios.index(largest) if math.isfinite(total) else _first_bad(changes)
        tensor = 0 if largest == _UNKNOWN and math.isfinite(total) else number_at(at)
        self.source.listener.step_summed(in_pass, optimizer, tensor, total, _together(sizes), largest)

    def _are_norms_due(self) -> bool:
        """Whether the norms of the gradients are read, for all optimizers that step behind the pass. Of what waits on a
        device the spacing learns when it has arrived."""
        if self.are_due[0] != self.in_pass:
            loss = None if isinstance(self.loss, torch.Tensor) else self.loss
            self.are_due = self.in_pass, self.spacing.is_due(loss)
        return self.are_due[1]

    @safely
    def end(self) -> None:
        """Emit what is left: the recording ends."""
        if not self.are_wanted:
            return
        self._flush()
        while self.late:
            self._emit_late(self.late.popleft())

    # --- emitting

    def _flush(self) -> None:
        """Emit the loss of a pass after which no optimizer stepped."""
        if self.is_due:
            self.is_due = False
            if not isinstance(self.loss, torch.Tensor):
                self._tell(self.in_pass, self.loss, [], None)
                return
            with torch._C.DisableTorchFunction(), unheard(), no_grad():
                self._emit([], None)

    def _emit(self, parameters: Sequence[torch.Tensor], norms: list[float] | torch.Tensor | None) -> None:
        loss = self.loss
        waiting = next((part for part in (loss, norms) if isinstance(part, torch.Tensor)), None)
        number_of = self.source.identity.number_of
        if waiting is None:
            self._tell(self.in_pass, loss, norms or [], lambda at: number_of(parameters[at]))  # type: ignore[arg-type]
            return
        parts = [
            reshape(torch.as_tensor(part, device=waiting.device), -1) for part in (loss, norms) if part is not None
        ]
        in_pass, has_loss = self.in_pass, loss is not None
        own = [] if norms is None else list(map(number_of, parameters))

        def tell(numbers: list[float]) -> None:
            self._tell(in_pass, numbers.pop(0) if has_loss else None, numbers, own.__getitem__)

        self._send_for(torch.cat(parts), tell)

    def _send_for(self, numbers: torch.Tensor, tell: Callable[[list[float]], None]) -> None:
        """Begin to copy numbers from a device."""
        streams, done = streams_of(numbers.device), None
        if streams is not None:
            stream = current_stream(streams, numbers.device)
            numbers = TENSORS.to(numbers, "cpu", non_blocking=True)
            done = streams.Event()
            done.record(stream)
        self.late.append(_Late(numbers, tell, done))

    def _read_late(self) -> None:
        """Emit the numbers that have arrived from a device."""
        while self.late:
            first = self.late[0]
            is_there = len(self.late) > _LATER if first.done is None else first.done.query()
            if not is_there:
                return
            self._emit_late(self.late.popleft())

    def _emit_late(self, late: _Late) -> None:
        if late.done is not None:
            late.done.synchronize()
        with torch._C.DisableTorchFunction(), unheard():
            numbers = tolist(late.numbers)
        late.tell(numbers)

    def _tell(self, in_pass: int, loss: float | None, norms: list[float], number_at: Any) -> None:
        """Emit the numbers of a pass."""
        listener = self.source.listener
        if not norms:
            self.spacing.came(loss)
            listener.summed(in_pass, loss, _UNKNOWN, _UNKNOWN, 0)
            return
        total = _together(norms)
        at = norms.index(max(norms)) if math.isfinite(total) else _first_bad(norms)
        self.spacing.read(loss, total)
        listener.summed(in_pass, loss, total, norms[at], number_at(at))


def _together(norms: Sequence[float]) -> float:
    """The norm of all together, from the norms of parts; NaN if one is, also beside an infinity."""
    return math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)


def _first_bad(norms: Sequence[float]) -> int:
    return next((at for at, norm in enumerate(norms) if not math.isfinite(norm)), 0)
