"""One file for one run: written while it runs, read at any place."""

from gradviz.tracefile.chosen import AutoPasses, Budget, Passes, passes_of
from gradviz.tracefile.database import TraceError
from gradviz.tracefile.opening import newest_trace, open_trace
from gradviz.tracefile.part import for_moments, if_long, part_of
from gradviz.tracefile.pass_rows import ErrorInfo, PassInfo
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.recorder import Recorder
from gradviz.tracefile.sites import Site, Sites
from gradviz.tracefile.states import Snapshot

__all__ = [
    "AutoPasses",
    "Budget",
    "ErrorInfo",
    "PassInfo",
    "Passes",
    "Recorder",
    "Site",
    "Sites",
    "Snapshot",
    "Trace",
    "TraceError",
    "for_moments",
    "if_long",
    "newest_trace",
    "open_trace",
    "part_of",
    "passes_of",
]
