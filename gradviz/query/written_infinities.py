"""Which infinities the program wrote down, as the −inf of a mask: they are no fault, nor is what only hands them on."""

from __future__ import annotations

from collections.abc import Iterable

from gradviz.events.kinds import REQUIRES_GRAD


class WrittenInfinities:
    """Follows them from event to event, in order: `tensors` have infinities that were written down, and no others. Each
    method is about an event that gave a tensor an infinity, and returns whether that was written down."""

    def __init__(self) -> None:
        self.tensors: set[int] = set()

    def by_op(self, args: str, infinite: Iterable[int], outputs: Iterable[int]) -> bool:
        """An op made it, with arguments `args`; `infinite` are those of its inputs that had an infinity before."""
        infinite = set(infinite)
        is_written = self.tensors.issuperset(infinite) if infinite else "inf" in args
        return self._note(is_written, outputs)

    def by_maker(self, tensor: int, how: str, flags: int) -> bool:
        """The tensor came to be with it, as by `torch.full`."""
        return self._note(not flags & REQUIRES_GRAD and how != "gradient", (tensor,))

    def by_write(self, tensor: int, source: int) -> bool:
        """It was written into the tensor, whose memory tensor `source` shares, or whose value it took."""
        return self._note(source in self.tensors, (tensor,))

    def _note(self, is_written: bool, tensors: Iterable[int]) -> bool:
        if is_written:
            self.tensors.update(tensor for tensor in tensors if tensor)
        else:
            self.tensors.difference_update(tensors)
        return is_written
