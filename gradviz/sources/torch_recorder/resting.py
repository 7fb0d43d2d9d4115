"""Rest between passes that are recorded: nothing of the program is watched but the beginning and the end of its passes,
and the steps of its optimizers, from which a few numbers are taken.

What happens meanwhile is not known. At its end it is emitted which tensors are others than before, and which gradients:
so what the trace says of them from there on is true."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from gradviz.events.counters import next_pass_number
from gradviz.events.kinds import UNWATCHED
from gradviz.sources.operands import Operand
from gradviz.sources.torch_recorder.backward import how_of, pass_of, roots_of
from gradviz.sources.torch_recorder.known_things import is_leaf
from gradviz.sources.torch_recorder.live_passes import LivePasses, giver
from gradviz.sources.torch_recorder.pass_numbers import PassNumbers
from gradviz.sources.torch_recorder.pass_signs import Signs
from gradviz.sources.torch_recorder.shared import Source, safely, users_frame
from gradviz.sources.torch_recorder.tensor_values import unheard
from gradviz.sources.torch_recorder.watching import Replaced, Watching

_Plain = torch._C.DisableTorchFunction
_MOST_FAILURES = 8  # passes whose graphs are emitted behind an exception


class Resting:
    """The rests of a recording. `replaced` are the functions that are replaced only where a pass is watched."""

    def __init__(self, source: Source, watching: Watching, replaced: Replaced, numbers: PassNumbers) -> None:
        self.source, self.watching, self.replaced, self.numbers = source, watching, replaced, numbers
        self.is_on = False
        self.is_step_wanted = False  # whether the step behind the last pass is recorded, as the pass was
        self.is_forbidden = False  # once the program does what a rest would not bear
        self.thread = 0  # the thread that rests
        self.below = 0  # the modes of the program that were below ours
        self.taken_out: list[tuple[Any, str, Any, Any]] = []  # ...with what is in their place meanwhile
        self.live = LivePasses(source)
        # for each leaf, as the trace has it: its gradient, and whether it requires grad
        self.leaves: dict[int, tuple[int, bool]] = {}
        self.failures = 0  # the passes whose graphs were emitted behind an exception
        self.begun: tuple[Any, ...] | None = None  # the beginning of the pass, put off
        self.signs = Signs()

    # --- begin and end

    @safely
    def begin_if_due(self) -> bool:
        """Rest from now on if the listener does; returns whether that is so. PyTorch takes a mode out while its handler
        runs, and puts it back then: so a rest cannot begin in a pass, but where a module is called or an optimizer
        steps."""
        if not self.is_on and self._may_begin():
            self._begin()
        return self.is_on

    def _may_begin(self) -> bool:
        listener, thread = self.source.listener, self.source.thread
        return (
            listener is not None
            and listener.rests
            and not (self.is_forbidden or thread.passes or thread.unseen or thread.in_collective)
            and thread.stepping is None
            and self.watching.is_on()
        )

    @safely
    def _begin(self) -> None:
        identity = self.source.identity
        with _Plain():
            identity.tell_pending()
            leaves = dict(self._leaves())
            self.leaves = {number: (self._grad_of(leaf), leaf.requires_grad) for number, leaf in leaves.items()}
            self.signs.watch(leaves.values())
        self.thread = threading.get_ident()
        self.is_on = True
        self.taken_out = [(owner, name, ours, vars(owner).get(name)) for owner, name, ours in self.replaced.put_back()]
        self.below = self.watching.take_out()

    @safely
    def end(self) -> None:
        """Watch again, and emit what has changed. Only the thread that rests can end its rest."""
        if not self.is_on or threading.get_ident() != self.thread:
            return
        self.is_on = False
        for owner, name, ours, meanwhile in reversed(self.taken_out):
            if vars(owner).get(name) is meanwhile:  # the program has not replaced it itself
                self.replaced.put(owner, name, ours)
        self.taken_out = []
        self.watching.push(self.below)
        if self.source.listener is not None:
            self._tell_changes()

    def end_if_due(self) -> None:
        """Watch again if the listener rests no more."""
        if self.is_on:
            self._tell_begun()
            listener = self.source.listener
            if listener is not None and (self.is_forbidden or not listener.rests):
                self.end()

    # --- what has changed

    def _leaves(self) -> Iterator[tuple[int, Any]]:
        """The known leaves that are alive, by number."""
        for known in list(self.source.identity.known.values()):
            tensor = known()
            if tensor is not None and is_leaf(tensor):
                yield known.number, tensor

    def _grad_of(self, leaf: torch.Tensor) -> int:
        return 0 if leaf.grad is None else self.source.identity.number_of(leaf.grad)

    def _tell_changes(self) -> None:
        """Emit the tensors that were written to, and the gradients that are others than before."""
        source = self.source
        with _Plain():
            if written := source.identity.written_over():
                source.listener.all_mutated(None, UNWATCHED, [source.identity.state_of(t) for t in written])
            self._tell_leaves()
        self.leaves = {}

    def _tell_leaves(self) -> None:
        """Emit the leaves that require grad and did not before, or the other way around, and the new gradients."""
        listener = self.source.listener
        for number, leaf in self._leaves():
            grad = self._grad_of(leaf)
            before, required = self.leaves.get(number, (grad, leaf.requires_grad))
            if leaf.requires_grad != required:
                listener.requires_grad_changed(None, self.source.identity.state_of(leaf))
            if grad != before:
                listener.grad_assigned(None, number, grad)

    # --- a pass, and a step

    @safely
    def watched(self, number: int, roots: Any) -> None:
        """Note the beginning of a pass that is watched, and whether the step behind it is, too."""
        self.is_step_wanted = self.source.follows_passes
        self._look_for_signs(roots)
        self.numbers.began(number, self.loss_of(roots))

    @safely
    def loss_of(self, roots: Any) -> torch.Tensor | float | None:
        """The loss that a pass begins from, if its numbers are wanted."""
        with _Plain():
            return self.numbers.loss_of(roots) if self.numbers.are_wanted else None

    @safely
    def wakes(self, roots: Any, loss: torch.Tensor | float | None) -> bool:
        """End the rest and emit the graph of the pass that begins, if its loss or gradient is of interest."""
        if not self._is_here() or not isinstance(loss, float):
            return False
        roots = roots_of(roots)
        loss = math.nan if self.live.is_of_interest(roots) else loss
        return self._wakes(loss, roots, users_frame(sys._getframe()))

    def _is_here(self) -> bool:
        return self.is_on and self.source.listener is not None and threading.get_ident() == self.thread

    def _wakes(self, loss: float | None, roots: Sequence[Any], frame: FrameType | None) -> bool:
        """End the rest and emit a graph, if the listener wants that for this loss (None: for an exception)."""
        if not self.source.listener.wakes(loss):
            return False
        self.end()
        with _Plain(), unheard():
            self.live.tell(roots, frame)
        return True

    @safely
    def raised(self, operands: Sequence[Operand]) -> None:
        """End the rest and emit what an exception is about that leaves the program: its operands, and the graph behind
        them."""
        with _Plain(), unheard():
            roots = [one.tensor for one in operands if one.tensor.grad_fn is not None]
            if self._is_here() and self._wakes(None, roots, operands[0].frame):
                for one in operands:
                    self.source.identity.number_of(one.tensor, giver(one.tensor, one.frame), UNWATCHED)

    def passed(self, engine: Callable[..., Any], roots: Any, args: Any, kwargs: Any, loss: Any) -> Any:
        """The result of a pass that is not watched: its beginning, its end and its loss are emitted."""
        number, is_told = self._began(roots, args, kwargs, loss), None
        try:
            return engine(roots, *args, **kwargs)
        except Exception as error:
            is_told = self._failed(number, roots, args, kwargs, error)
            raise
        finally:
            if not is_told:
                self._ended(number)

    @safely
    def _began(self, roots: Any, args: Any, kwargs: Any, loss: Any) -> int:
        if threading.get_ident() != self.thread:
            self.is_forbidden = True  # what several threads do at once is watched
        if self._look_for_signs(roots):
            self.source.listener.suspects()
        number = next_pass_number()
        self.is_step_wanted = False
        self.numbers.began(number, loss)
        how, where = how_of(args, kwargs), self.source.place(sys._getframe())
        self.begun = where, number, how, time.time(), bool(args[1]), bool(args[2]), (), ()
        if self.is_forbidden:
            self._tell_begun()
        return number

    @safely
    def _look_for_signs(self, roots: Any) -> bool:
        """Whether the passes behind the one that begins are recorded for what is seen without watching."""
        with _Plain():
            return self.numbers.are_wanted and self.signs.pass_begins(roots_of(roots))

    def _tell_begun(self) -> None:
        """Emit the beginning of the pass under way, if that was put off."""
        begun, self.begun = self.begun, None
        if begun is not None and self.source.listener is not None:
            self.source.listener.pass_began(*begun)

    @safely
    def _failed(self, number: int | None, roots: Any, args: Any, kwargs: Any, error: Exception) -> bool:
        """Emit an exception that left a pass; or the whole pass, up to its end, if nothing was emitted since it began:
        with the graph that it has left behind. Returns whether that is so."""
        listener = self.source.listener
        if listener is None or number is None:
            return True
        is_wanted = self.begun is not None and self._is_here() and self.failures < _MOST_FAILURES
        if not is_wanted or not self._wakes(None, roots_of(roots), users_frame(sys._getframe())):
            self._tell_begun()
            listener.error(error.__traceback__, type(error).__name__, str(error), 0, number)
            return False
        self.failures, self.begun = self.failures + 1, None
        current = pass_of(self.source, roots, args, kwargs, number)
        current.begin()
        with _Plain(), unheard():
            self.live.tell_change(error, users_frame(sys._getframe()), number)
        current.failed(error, was_watched=False)
        self.numbers.ended()
        current.end()
        return True

    @safely
    def _ended(self, number: int | None) -> None:
        listener = self.source.listener
        if listener is not None and number is not None:
            self._tell_begun()
            self.numbers.ended()
            listener.pass_ended(number)
            self.end_if_due()

    def stepping(self, optimizer: Any, has_closure: bool) -> bool:
        """Note the numbers of the pass before a step; a closure, which runs passes inside the step, has to be watched.
        Returns whether the numbers of the step are wanted, too."""
        self._tell_begun()
        is_summed = bool(self.numbers.stepping(optimizer)) and not has_closure
        self.is_forbidden |= has_closure
        self.end_if_due()
        if not self.is_step_wanted:
            self.begin_if_due()
        if self.numbers.are_wanted:
            with _Plain():
                self.signs.stepping(optimizer, self.numbers.are_due[1])
        return is_summed
