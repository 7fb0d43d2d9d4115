"""Callbacks for transformers' Trainer, Lightning and accelerate.

They name a recorded run, mark the trainer's steps, micro-batches and phases in it, as lines beside those that the
program prints, and check it while it goes on. Recording works without them; without a recording they do nothing."""

import sys
import warnings
from importlib import import_module
from typing import Any

from gradviz.diagnose import check
from gradviz.diagnose.run_rules import Sure
from gradviz.errors import GradvizError
from gradviz.sources.record import under_way
from gradviz.sources.tracebacks import fault
from gradviz.tracefile import open_trace


class StoppedByFinding(GradvizError):
    """A finding is to stop a training whose loop is the program's own."""


class Marks:
    """The marks of one training. `name` is that of the run; `on_finding` says whether a finding only warns, or also
    stops the training."""

    def __init__(self, name: str = "", on_finding: str = "warn") -> None:
        if on_finding not in ("warn", "stop"):
            raise ValueError(f"on_finding is warn or stop, not {on_finding!r}")
        self.name, self.on_finding = name, on_finding
        self.sure, self.steps, self.stops = Sure(), 0, ""

    def mark(self, text: str) -> None:
        """Mark a point of the run: the next event is the first behind it."""
        running = under_way()
        if running is not None and running.recorder is not None:
            if self.name:
                running.recorder.note(run=self.name)
                self.name = ""  # a note wakes the writer: once is enough
            running.recorder.print_piece(sys._getframe(1), f"[{text}]\n")

    def stepped(self) -> bool:
        """Note that a step has ended, and check the run at steps 1, 2, 4, 8 and so on. Returns whether the training is
        to stop."""
        self.steps += 1
        running = under_way()
        if self.steps & (self.steps - 1) or running is None or running.recorder is None:
            return bool(self.stops)
        try:
            running.recorder.flush()
            with open_trace(running.path) as trace:
                found = [*self.sure.new(check(trace), len(trace.passes))]
        except Exception as error:  # whatever it is, the training goes on
            warnings.warn(f"gradviz: this step was not checked, by {fault(error)}", stacklevel=3)
            return bool(self.stops)
        for finding in found:
            text = f"{finding.file}:{finding.line}: {finding.rule}: {finding.message}; fix: {finding.fix}"
            warnings.warn(text, stacklevel=3)
            self.stops = self.stops or (text if self.on_finding == "stop" else "")
        return bool(self.stops)


def _base(module: str, name: str) -> Any:
    """A class of a library that may not be installed. Raises GradvizError, in one line, where it is not."""
    try:
        return getattr(import_module(module), name)
    except ImportError:
        package = module.partition(".")[0]
        text = f"this callback needs {package}, which is not installed: pip install {package}"
        raise GradvizError(text) from None


def for_trainer(name: str = "", on_finding: str = "warn") -> Any:
    """A callback for `transformers.Trainer(callbacks=[...])`."""
    marks = Marks(name, on_finding)

    class Callback(_base("transformers", "TrainerCallback")):  # type: ignore[misc]
        """Marks the steps of a Trainer, their micro-batches, and evaluations."""

        is_evaluating, micro_batch = False, 1

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.micro_batch = 1
            marks.mark(f"step {state.global_step + 1}")

        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.micro_batch += 1
            marks.mark(f"step {state.global_step + 1}, micro-batch {self.micro_batch}")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= marks.stepped()

        def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self.is_evaluating:
                marks.mark("evaluation")
            self.is_evaluating = True

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.is_evaluating = False
            marks.mark("evaluation ended")

    return Callback()


def for_lightning(name: str = "", on_finding: str = "warn") -> Any:
    """A callback for `lightning.Trainer(callbacks=[...])`."""
    marks = Marks(name, on_finding)

    class Callback(_base("lightning", "Callback")):  # type: ignore[misc]
        """Marks the steps of a Trainer, their micro-batches, and validations."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            micro_batch = number % trainer.accumulate_grad_batches + 1
            marks.mark(f"step {trainer.global_step + 1}, micro-batch {micro_batch}")

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop |= marks.stepped()

        def on_validation_start(self, *_: Any) -> None:
            marks.mark("validation")

        def on_validation_end(self, *_: Any) -> None:
            marks.mark("validation ended")

    return Callback()


def for_accelerate(name: str = "", on_finding: str = "warn") -> Any:
    """A tracker for `Accelerator(log_with=...)`: `accelerator.log(values, step)` marks the end of a step, and raises
    StoppedByFinding if the training is to stop, since its loop is the program's own."""
    marks = Marks(name, on_finding)

    class Tracker(_base("accelerate.tracking", "GeneralTracker")):  # type: ignore[misc]
        """Marks the steps that a program logs."""

        name, requires_logging_directory, tracker = "gradviz", False, marks

        def log(self, values: Any, step: int | None = None, **_: Any) -> None:
            marks.mark(f"step {step} ended")
            if marks.stepped():
                raise StoppedByFinding(marks.stops)

    return Tracker()
