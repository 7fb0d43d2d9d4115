"""The values that a replay has, while a run is recorded with `--values inputs`: the kept values, and the values that
follow from them by recorded calls. A value that enters a call without having been made by such a call is kept at that
time.

Calls without grad mode give constants. In the first segment that has such calls on values that require a gradient,
the calls are recorded too, so that a replay can compute the gradient that grad mode would have given. Their results
are still kept where they are used.

Writes to a tensor are found by its version, by the groups of tensors that calls have made on one memory, and by the
recorder's list `written`: writes through `.data` count no version."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from gradviz.events.counters import next_tensor_number
from gradviz.events.listener import Where
from gradviz.query.replayable_functions import is_random, is_without_grad, without_grad
from gradviz.tracefile.recorder import InputsRecorder

# calls without grad mode that are recorded: an evaluation may come before all training
_MOST_WITHOUT_GRAD = 500


class Tensors(Protocol):
    """The methods of a library's tensors that HeldValues needs."""

    def version(self, tensor: Any) -> int:
        """The number of in-place writes to a tensor."""

    def has_node(self, tensor: Any) -> bool:
        """Whether a tensor was computed from something that requires a gradient."""

    def reference(self, tensor: Any) -> Callable[[], Any]:
        """A weak reference to a tensor."""

    def keep(self, where: Where, how: str, number: int, copy: int, value: Any) -> None:
        """Have the recorder keep the value of a tensor, under the number `copy`."""

    def source(self, call: "CallBegun", output: Any) -> int:
        """The number of the tensor whose memory a result of a call shares; 0 where it has its own."""

    def random_state(self, tensor: Any) -> Any:
        """The state of the random numbers that a call on this tensor draws from."""

    @property
    def listener(self) -> Any:
        """The listener of the recording."""


class CallBegun(NamedTuple):
    """A call that is about to be made: its place, its function and arguments as recorded, the state that it depends on
    besides its arguments, the copy of the random numbers' state (0: none), and the tensors that enter it, with their
    numbers and versions."""

    where: Where
    function: str
    arguments: str
    context: str
    generator: int
    tensors: list[Any]
    numbers: list[int]
    versions: list[int]


class _Here:
    """A tensor whose value a replay has: the `version` that has this value, the segment since which a replay has it,
    whether the value was kept (or made by a call), and the tensor whose memory it shares."""

    __slots__ = ("group", "is_kept", "reference", "segment", "version")

    def __init__(self, reference: Callable[[], Any], version: int, is_kept: bool, segment: int, group: int) -> None:
        self.reference, self.version, self.is_kept = reference, version, is_kept
        self.segment, self.group = segment, group


class HeldValues:
    """The values that a replay has, by the numbers of tensors. A segment is the time between the beginnings of two
    passes."""

    def __init__(self, recorder: InputsRecorder, tensors: Tensors) -> None:
        self.recorder, self.tensors = recorder, tensors
        self.here: dict[int, _Here] = {}
        self.segment = 0
        self.without_grad: dict[int, int] = {}  # the results of recorded calls without grad mode: number and version
        self.calls_without_grad = 0
        self.segment_without_grad: int | None = None

    def note_silent_write(self, numbers: Iterable[int]) -> None:
        """Note that tensors were written to, in a way that is not recorded."""
        self.recorder.written += numbers

    def look_around(self) -> None:
        """Before a call: forget the tensors that were written to, and begin another segment if a pass has begun."""
        if self.recorder.written:
            self._forget(self.recorder.take_written())
        if self.segment != self.recorder.passes_begun:
            self._begin_segment()

    def have(self, tensor: Any, number: int, where: Where) -> int:
        """Keep the value of a tensor, unless a replay has it; returns the tensor's version."""
        entry, version = self.here.get(number), self.tensors.version(tensor)
        is_valid = entry is not None and entry.version == version and number not in self.recorder.written
        if entry is not None and is_valid and (entry.is_kept or entry.segment == self.segment):
            return version
        has_node = self.tensors.has_node(tensor)
        how = ("carried" if is_valid else "cut") if has_node else "leaf" if tensor.requires_grad else "data"
        self.keep(how, tensor, number, where)
        reference = self.tensors.reference(tensor)
        self.here[number] = _Here(reference, version, not has_node, self.segment, number)
        return version

    def begin(
        self, where: Where, function: str, arguments: str, context: str, tensors: list[Any], numbers: list[int],
        has_grad_mode: bool = True,
    ) -> CallBegun | None:  # fmt: skip
        """A call that is about to be made, after keeping the values that enter it. None for a call without grad mode
        that is not recorded."""
        if has_grad_mode:
            versions = self.have_all(tensors, numbers, where)
        elif self._follows_without_grad(tensors, numbers):
            versions, context = self._have_all_without_grad(tensors, numbers, where), without_grad(context)
        else:
            return None
        draws = is_random(function) and tensors
        generator = self.keep("generator", self.tensors.random_state(tensors[0]), 0, where) if draws else 0
        return CallBegun(where, function, arguments, context, generator, tensors, numbers, versions)

    def have_all(self, tensors: Sequence[Any], numbers: Sequence[int], where: Where) -> list[int]:
        """Keep the values of tensors that a replay does not have; returns the tensors' versions."""
        return [self.have(tensor, number, where) for tensor, number in zip(tensors, numbers, strict=True)]

    def _follows_without_grad(self, tensors: Sequence[Any], numbers: Sequence[int]) -> bool:
        """Whether a call without grad mode on these tensors is recorded."""
        is_on_the_way = any(
            number in self.without_grad or tensor.requires_grad for tensor, number in zip(tensors, numbers, strict=True)
        )
        is_inside = bool(self.recorder.functions)
        if not is_on_the_way or is_inside or self.calls_without_grad == _MOST_WITHOUT_GRAD:
            return False
        if self.segment_without_grad is None:
            self.segment_without_grad = self.recorder.passes_begun
        return self.segment_without_grad == self.recorder.passes_begun

    def _have_all_without_grad(self, tensors: Sequence[Any], numbers: Sequence[int], where: Where) -> list[int]:
        """As `have_all`, for a call without grad mode. Results of earlier recorded calls without grad mode are not
        kept again."""
        versions = [self.tensors.version(tensor) for tensor in tensors]
        for tensor, number, version in zip(tensors, numbers, versions, strict=True):
            if self.without_grad.get(number) != version:
                self.have(tensor, number, where)
        return versions

    def changed_by(self, call: CallBegun) -> set[int]:
        """The tensors that entered a call and have been written to since."""
        entered = zip(call.tensors, call.numbers, call.versions, strict=True)
        return {number for tensor, number, version in entered if self.tensors.version(tensor) != version}

    def note_call(self, call: CallBegun, outputs: Sequence[Any], numbers: Sequence[int], changed: set[int]) -> None:
        """Record a call that has been made, with its results. `changed` are the tensors that it wrote to, without
        those that only share their memory."""
        if is_without_grad(call.context):
            if not changed and numbers:
                self.calls_without_grad += 1
                self._record(call, numbers, ())
                self.without_grad.update(zip(numbers, map(self.tensors.version, outputs), strict=True))
            return
        written = self.all_written(changed)
        if not numbers and not written:
            return
        self._record(call, numbers, sorted(written))
        self.note_written(written)
        for output, number in zip(outputs, numbers, strict=True):
            if number not in written and number not in call.numbers:
                group = self.group_of(self.tensors.source(call, output))
                self.note_made(output, number, number if group is None else group)

    def _record(self, call: CallBegun, outputs: Sequence[int], written: Sequence[int]) -> None:
        """Record a call, with the tensors that it returned and those that it wrote to."""
        self.tensors.listener.called(
            call.where, call.function, call.arguments, call.context, call.generator, call.numbers, outputs, written
        )

    def keep(self, how: str, tensor: Any, number: int, where: Where) -> int:
        """Keep the value of a tensor; returns the number of the copy."""
        copy = next_tensor_number()
        self.tensors.keep(where, how, number, copy, tensor)
        return copy

    def drop(self, number: int) -> None:
        """Forget a tensor: its value is kept anew where it is used next."""
        self.here.pop(number, None)

    def all_written(self, changed: Iterable[int]) -> set[int]:
        """The tensors that a call wrote to, given those that it `changed`: all that share their memory. Other tensors
        that were written to meanwhile are forgotten."""
        written = set(changed)
        if groups := {self.here[number].group for number in written if number in self.here}:
            written.update(number for number, entry in self.here.items() if entry.group in groups)
        if self.recorder.written:
            self._forget(set(self.recorder.take_written()) - written)
        return written

    def note_written(self, written: Iterable[int]) -> None:
        """Note that a call has made the present values of these tensors."""
        for number in written:
            entry = self.here.get(number)
            tensor = None if entry is None else entry.reference()
            if entry is not None and tensor is not None:
                self.note_made(tensor, number, entry.group)

    def note_made(self, tensor: Any, number: int, group: int) -> None:
        """Note that a call has made the present value of a tensor; `group` is the tensor whose memory it shares, or
        the tensor itself."""
        reference, version = self.tensors.reference(tensor), self.tensors.version(tensor)
        self.here[number] = _Here(reference, version, False, self.segment, group)

    def group_of(self, number: int) -> int | None:
        """The tensor whose memory a tensor shares; None if a replay does not have the tensor."""
        entry = self.here.get(number)
        return None if entry is None else entry.group

    def _forget(self, written: Collection[int]) -> None:
        """Forget tensors that were written to outside recorded calls, and all that share their memory."""
        if groups := {self.here[number].group for number in written if number in self.here}:
            self.here = {number: entry for number, entry in self.here.items() if entry.group not in groups}

    def _begin_segment(self) -> None:
        """Begin a segment: forget values that calls made from constants, so that they are kept anew where they are
        used, and tensors that are gone. A ring that drops its oldest passes keeps no value for more than one
        segment."""
        self.segment = self.recorder.passes_begun
        self.without_grad.clear()
        is_ring = self.recorder.writer.ring is not None
        self.here = {
            number: entry
            for number, entry in self.here.items()
            if (tensor := entry.reference()) is not None
            and (not is_ring if entry.is_kept else self.tensors.has_node(tensor))
        }


class CallsAlone(HeldValues):
    """The calls of a run that is recorded with `--values full`. The trace has all values, so that of those only the
    state of the random numbers is kept, and a call without grad mode, which has no node, is not recorded."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def note_silent_write(self, numbers: Iterable[int]) -> None:
        """Do nothing: the value after the write is recorded where it is used."""

    def look_around(self) -> None:
        """Do nothing: no value is held."""

    def have(self, tensor: Any, number: int, where: Where) -> int:
        """The version of a tensor."""
        return self.tensors.version(tensor)

    def _follows_without_grad(self, tensors: Sequence[Any], numbers: Sequence[int]) -> bool:
        """False: such a call is not recorded."""
        return False

    def note_call(self, call: CallBegun, outputs: Sequence[Any], numbers: Sequence[int], changed: set[int]) -> None:
        """Record a call that has been made, with its results."""
        if numbers or changed:
            self._record(call, numbers, sorted(changed))

    def drop(self, number: int) -> None:
        """Do nothing: no value is held."""
