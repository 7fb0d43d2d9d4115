"""The infinities that the program wrote itself, as the −inf of a mask: they are no fault, nor are their copies."""

from __future__ import annotations

from collections.abc import Iterable

from gradviz.events.kinds import REQUIRES_GRAD


class WrittenInfinities:
    """Follows written infinities from event to event, in order. `tensors` are the tensors all of whose infinities were
    written. Each method is about an event that gave a tensor an infinity, and returns whether that was written."""

    def __init__(self) -> None:
        self.tensors: set[int] = set()

    def by_op(self, args: str, infinite: Iterable[int], outputs: Iterable[int]) -> bool:
        """Whether an infinity that an op made, with arguments `args`, was written; `infinite` are the inputs that had
        an infinity before."""
        infinite = set(infinite)
        is_written = self.tensors.issuperset(infinite) if infinite else "inf" in args
        return self._note(is_written, outputs)

    def by_maker(self, tensor: int, how: str, flags: int) -> bool:
        """Whether the infinity of a new tensor, as of `torch.full`, was written."""
        return self._note(not flags & REQUIRES_GRAD and how != "gradient", (tensor,))

    def by_write(self, tensor: int, source: int) -> bool:
        """Whether an infinity that was written into a tensor was written by the program: `source` is the tensor whose
        memory it shares, or whose value it took."""
        return self._note(source in self.tensors, (tensor,))

    def _note(self, is_written: bool, tensors: Iterable[int]) -> bool:
        if is_written:
            self.tensors.update(tensor for tensor in tensors if tensor)
        else:
            self.tensors.difference_update(tensors)
        return is_written
