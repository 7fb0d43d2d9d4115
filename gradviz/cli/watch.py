"""Checks a run while it goes on, reports the findings that are certain, and ends the run if that is wanted."""

import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console
from rich.text import Text

from gradviz.background import Background
from gradviz.cli.common import one_line
from gradviz.cli.findings import hint
from gradviz.diagnose import check
from gradviz.diagnose.finding import SEVERITIES, Finding
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.run_rules import Sure
from gradviz.errors import GradvizError
from gradviz.sources.script import STATUS, Stopper
from gradviz.system.descriptors import write
from gradviz.system.signs import encoded
from gradviz.tracefile import open_trace

_EVERY = 0.5  # seconds between two checks, if they take little time
_SHARE = 20  # checking takes at most one part in so many of the time
_MOST_NEW = 200  # the most passes that are checked because they show something new
_GROWTH = 2  # other passes are checked when their number has grown by one part in so many


@contextmanager
def watched(path: Path, settings: Settings, stop_on: str | None) -> Iterator["Watch"]:
    """A context in which the trace at `path` is checked, and each finding is reported on stderr when it first becomes
    certain. A finding of severity `stop_on` or higher ends the run through its Stopper."""
    watch = Watch(path.absolute(), settings, stop_on)
    watch.thread.start()
    try:
        yield watch
    finally:
        watch.end()


class Watch:
    """A thread that checks: now and then; or, if findings are to end the run, while the script waits at the end of a
    pass. The choice of these passes depends only on the run, not on the time: passes that show something new, the
    pass after each of them, which shows the effect of its step, and fewer and fewer of the others. `said` are the
    findings that were reported."""

    def __init__(self, path: Path, settings: Settings, stop_on: str | None) -> None:
        self.settings = settings
        self.path = path
        self.stopping = SEVERITIES[: SEVERITIES.index(stop_on) + 1] if stop_on is not None else ()
        self.stopper = Stopper(self._pass_ended if self.stopping else None)
        self.passes = self.next = self.of_news = 0
        self.was_new = False
        self.sure = Sure()
        self.said: list[Finding] = []
        self.seen = 0, 0  # the number of events at the last check, and the last pass
        # a script may close the original
        self.terminal, self.encoding = os.dup(sys.stderr.fileno()), sys.stderr.encoding
        self.coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        # Not an Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.asked: SimpleQueue[bool] = SimpleQueue()  # True: check now; False: end
        self.answered: SimpleQueue[None] = SimpleQueue()
        self.thread = Background(self._run)

    def end(self) -> None:
        """Stop checking."""
        self.asked.put(False)
        self.thread.join()
        os.close(self.terminal)

    def _pass_ended(self, is_new: bool) -> None:
        """Make the thread check, if this pass is to be checked, and wait for it. Called on the script's thread."""
        self.passes += 1
        follows, self.was_new = self.was_new, is_new and self.of_news < _MOST_NEW
        self.of_news += is_new
        if not (self.was_new or follows or self.passes >= self.next):
            return
        self.next = max(self.next, self.passes + max(1, self.passes // _GROWTH))
        self.asked.put(True)
        while self.thread.is_running:
            with suppress(Empty):
                self.answered.get(timeout=_EVERY)
                return

    def _run(self) -> None:
        pause = _EVERY
        while self._is_to_check(None if self.stopper.looks is not None else pause):
            began = time.thread_time()
            try:
                self._check()
            except GradvizError:
                pass  # the file is being written; the next check comes soon
            except Exception as error:  # whatever the error is, the script must go on, and its user must know
                self._say(Text(f"gradviz: an error ended the watching of the run: {one_line(repr(error))}"))
                return
            pause = max(_EVERY, _SHARE * (time.thread_time() - began))
            if self.stopper.looks is not None:
                self.answered.put(None)

    def _is_to_check(self, seconds: float | None) -> bool:
        """Wait until a check is due: a request, or at the latest after some seconds (None: only a request). Returns
        False when checking ends."""
        try:
            return self.asked.get(timeout=seconds)
        except Empty:
            return True

    def _check(self) -> None:
        with open_trace(self.path) as trace:
            # with --last, passes leave the file
            last = max((backward_pass.number for backward_pass in trace.passes), default=0)
            if (trace.count, last) == self.seen:
                return
            self.seen = trace.count, last
            self._tell(self.sure.new(check(trace, settings=self.settings), last))

    def _tell(self, findings: Iterable[Finding]) -> None:
        """Report new findings, up to the finding that ends the run."""
        for finding in findings:
            self.said.append(finding)
            self._say(hint(finding))
            if finding.severity in self.stopping:
                self.stopping = ()
                self._say(Text(f"gradviz: stop because of {finding.rule}: the run ends with status {STATUS}"))
                self.stopper.stop()
                return

    def _say(self, line: Text) -> None:
        shown = io.StringIO()
        Console(file=shown, force_terminal=self.coloured, soft_wrap=True, highlight=False).print(line)
        with suppress(OSError):
            write(self.terminal, encoded(shown.getvalue(), self.encoding))
