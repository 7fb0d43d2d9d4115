"""Brings the values that wait on a device to the CPU: on the writer's thread, never on the program's.

On a device with streams (CUDA), our own stream waits for an event behind the program's stream and copies into pinned
memory, piece by piece. A second event is waited for before that memory is read. The fetched tensors are held until
then, so that their memory is not given away. While a stream is being captured, this thread leaves the device alone
too: a capture forbids calls of all threads."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch

from gradviz.sources.torch_recorder.device_values import MOST_COPIES, Copied, OnDevice, Reductions, Room, groups_of
from gradviz.sources.torch_recorder.pytorchs_own import TENSORS, no_grad, numel, reshape, to_cpu, to_numpy
from gradviz.system.turns import new_turn

PIECE = 64 << 20  # the most bytes of pinned memory
_TOGETHER = 1 << 20  # bytes of parts that are joined on the device first
_PATIENCE = 30  # seconds to wait for a capture
Waiting = Copied | OnDevice
OutOfMemory = torch.OutOfMemoryError


def streams_of(device: torch.device) -> Any:
    """The module with the streams and events of a device; None if the device has no streams."""
    return torch.cuda if device.type == "cuda" else None


_streams: dict[tuple[int, int], Any] = {}  # by device and address
_address_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(streams: Any, device: torch.device) -> Any:
    """The stream on which this thread launches on a device. PyTorch makes an object at each question, which takes
    longer than the launch."""
    if streams is not torch.cuda or _address_of is None:
        return streams.current_stream(device)
    index = device.index
    key = (index, _address_of(index))
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = streams.current_stream(device)
    return stream


class Fetcher:
    """Fetches from all devices. `copies` counts the copies, `left_out` the values that were lost for lack of device
    memory."""

    def __init__(self) -> None:
        self._use = threading.Lock()  # held while fetching, and while streams are being captured
        self._captures, self._counting = 0, new_turn()
        self.copies = self.left_out = 0
        self.rooms: dict[torch.device, Room] = {}
        self._lines: dict[torch.device, _Line] = {}

    def room(self, device: torch.device) -> Room:
        """The room for copies on a device."""
        room = self.rooms.get(device)
        if room is None:
            room = self.rooms.setdefault(device, Room())
        return room

    def fetch(self, waiting: Sequence[Waiting]) -> list[bytes | None]:
        """The bytes of values that wait on one device. None for values that found no device memory, or that an
        unending capture kept waiting."""
        if not self._use.acquire(timeout=_PATIENCE):
            return [None] * len(waiting)
        try:
            return self._fetch(waiting)
        except OutOfMemory:
            self.left_out += len(waiting)
            return [None] * len(waiting)
        finally:
            self._use.release()

    def leave_alone(self) -> None:
        """Fetch nothing until `use_again`: a stream is about to be captured."""
        with self._counting:
            self._captures += 1
            if self._captures == 1:
                self._use.acquire()

    def use_again(self) -> None:
        """Fetch again: a stream is no longer captured."""
        with self._counting:
            self._captures -= 1
            if not self._captures:
                self._use.release()

    def _fetch(self, waiting: Sequence[Waiting]) -> list[bytes | None]:
        device = waiting[0].device
        line = self._line(device)
        with torch._C.DisableTorchFunction(), no_grad(), line.behind(waiting):
            copies = [one for one in waiting if isinstance(one, Copied)]
            groups = [Reductions(group) for group in groups_of(copies, PIECE)]
            others = [one for one in waiting if isinstance(one, OnDevice)]
            parts = chain(*(one.parts for one in groups), *(one.parts for one in others))
            data = iter(self._read(line, [_bytes_in(part) for part in parts]))

            def read(tensor: torch.Tensor) -> bytes:
                return self._read(line, [_bytes_in(tensor)])[0]

            found: dict[int, bytes] = {}
            for group in groups:
                statistics = group.finish(list(islice(data, len(group.parts))), read)
                found.update(zip(map(id, group.copies), statistics, strict=True))
            found.update((id(one), one.finish(list(islice(data, len(one.parts))))) for one in others)
            line.note_room(self.room(device))
        return [found[id(one)] for one in waiting]

    def _line(self, device: torch.device) -> "_Line":
        line = self._lines.get(device)
        if line is None:
            line = self._lines[device] = _Line(device)
        return line

    def _read(self, line: "_Line", parts: Sequence[torch.Tensor]) -> list[bytes]:
        """The bytes of byte tensors. Small tensors are read together."""
        data: list[bytes] = []
        together: list[torch.Tensor] = []
        size = 0
        for part in [*parts, None]:
            if together and (part is None or size + numel(part) > _TOGETHER):
                data += self._read_together(line, together)
                together, size = [], 0
            if part is None:
                break
            if numel(part) > _TOGETHER:
                data.append(self._read_one(line, part))
            else:
                together.append(part)
                size += numel(part)
        return data

    def _read_together(self, line: "_Line", parts: Sequence[torch.Tensor]) -> list[bytes]:
        data = self._read_one(line, torch.cat(list(parts)) if len(parts) > 1 else parts[0])
        found, start = [], 0
        for part in parts:
            found.append(data[start : start + numel(part)])
            start += numel(part)
        return found

    def _read_one(self, line: "_Line", part: torch.Tensor) -> bytes:
        pieces = []
        for piece in torch.split(part, PIECE):
            self.copies += 1
            pieces.append(line.read(piece))
        return b"".join(pieces)


def _bytes_in(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, as a tensor."""
    return TENSORS.view(reshape(tensor, -1), torch.uint8)


class _Line:
    """The connection to one device: our own stream, and pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.streams = streams_of(device)
        self.stream: Any = None if self.streams is None else self.streams.Stream(device)
        self.pinned: torch.Tensor | None = None

    @contextmanager
    def behind(self, waiting: Sequence[Waiting]) -> Iterator[None]:
        """A context in which our stream is the current stream of this thread, behind the present work of the
        program's streams."""
        if self.streams is None:
            yield
            return
        for stream in {one.stream for one in waiting}:
            reached = self.streams.Event()
            reached.record(stream)
            self.stream.wait_event(reached)
        with self.streams.stream(self.stream):
            yield

    def read(self, piece: torch.Tensor) -> bytes:
        """The bytes of a tensor of at most `PIECE` bytes."""
        if self.streams is None:
            return to_numpy(to_cpu(piece)).tobytes()
        if self.pinned is None or numel(self.pinned) < numel(piece):
            size = min(PIECE, max(1 << 20, 2 * numel(piece)))
            self.pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        target = self.pinned[: numel(piece)]
        target.copy_(piece, non_blocking=True)
        done = self.streams.Event()
        done.record(self.stream)
        done.synchronize()
        return to_numpy(target).tobytes()

    def note_room(self, room: Room) -> None:
        """Limit the copies to a sixteenth of the free device memory, and leave the rest to the program."""
        if self.streams is not None:
            free, _ = self.streams.mem_get_info(self.device)
            room.limit = min(MOST_COPIES, free // 16)


FETCHER = Fetcher()
