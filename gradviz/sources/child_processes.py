"""Records the processes that a program starts.

Programs that start ranks (`torchrun`, `mp.spawn`, a script) need no change: their environment makes each Python
process that they start import `child_start/sitecustomize.py` first. A rank that runs a script becomes `gradviz trace
SCRIPT`; a process of `multiprocessing` is recorded around its target."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from gradviz.sources.output_tap import OutputTap
from gradviz.sources.ranks_here import RANKS, of_rank

SETTINGS = "GRADVIZ_RANKS"  # the variable in which the processes of a program find their settings
_STARTER = "GRADVIZ_STARTER"  # the process whose children are recorded, if no variable marks them as ranks
_BASE = "trace"  # the key, among the settings, of the trace of the process that starts others
_STARTS = Path(__file__).parent / "child_start"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of the interpreter
# Libraries whose processes compute nothing that is differentiated.
_HELPERS = ("torch.utils.data", "multiprocessing", "concurrent", "joblib", "torch.distributed")


# --- in the process that starts them


def record_children(settings: Mapping[str, Any], trace: Path | None = None, starts_one: bool = False) -> None:
    """Record the processes that this process starts from now on. Each rank gets its own file, named after `trace`, or
    after its script. `settings` are those of `gradviz trace`, by the names of its options. With `starts_one`, also
    record the script that a launcher runs itself, though it is no rank."""
    chosen = {name: value for name, value in {**settings, _BASE: trace}.items() if value not in (None, False)}
    chosen |= {name: path.absolute() for name, path in chosen.items() if isinstance(path, Path)}
    os.environ[SETTINGS] = json.dumps(chosen, default=str)
    paths = [str(_STARTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if starts_one:
        os.environ[_STARTER] = f"above {os.getpid()}"
    _record_targets()


# --- in the started processes


def begin_in_child() -> None:
    """Record this process, which a program has just started. A rank that runs a script becomes `gradviz trace`; in a
    process of `multiprocessing` the target is recorded."""
    try:
        options, what = _command(sys.orig_argv)
        is_rank = any(name in os.environ for name, _ in RANKS)
        if what[:1] == ["-c"]:
            if any("multiprocessing.spawn" in part or "multiprocessing.forkserver" in part for part in what):
                _record_targets()
        elif what and what[:2] != ["-m", "gradviz"] and (is_rank or _is_only_one()):
            traced = ["-m", "gradviz", "trace", *_as_options(_settings()), *what]
            os.execv(sys.executable, [sys.executable, *options, *traced])
    except (OSError, ValueError) as error:
        print(f"gradviz: a process is not recorded: {error!r}", file=sys.stderr)


def _is_only_one() -> bool:
    """Whether a launcher has started this process itself. The launcher writes into the environment which process it
    is."""
    starter = os.environ.get(_STARTER, "")
    if starter == f"above {os.getppid()}":
        os.environ[_STARTER] = str(os.getpid())
        return False
    return starter == str(os.getppid())


def _settings() -> dict[str, Any]:
    settings = json.loads(os.environ.get(SETTINGS, ""))
    if not isinstance(settings, dict):
        raise ValueError(f"{SETTINGS} holds no settings")
    return settings


def _as_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a command line has them: `--values stats --aten`."""
    options = []
    for name, value in settings.items():
        if name == _BASE:
            continue
        option = "-o" if name == "output" else f"--{name.replace('_', '-')}"
        options += [option] if value is True else [option, str(value)]
    return options


def _command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of the interpreter, and its command with the arguments: `-c CODE`, `-m MODULE`, a script."""
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-c", "-m", "-"):
        at += 2 if argv[at] in _WITH_VALUE else 1
    return list(argv[1:at]), list(argv[at:])


def _record_targets() -> None:
    """Record the targets of `multiprocessing`: in this process, and in the processes that it forks."""
    from multiprocessing import process as processes  # stays unloaded where no ranks are recorded

    base: Any = processes.BaseProcess
    if not hasattr(base._bootstrap, "__wrapped__"):
        base._bootstrap = _recorded(base._bootstrap)


def _recorded(bootstrap: Callable[..., int]) -> Callable[..., int]:
    @wraps(bootstrap)
    def run(process: Any, *args: Any, **kwargs: Any) -> int:
        target = getattr(getattr(process, "_target", None), "__module__", None) or type(process).__module__
        is_spawned = target == "torch.multiprocessing.spawn"
        if SETTINGS not in os.environ or (target.startswith(_HELPERS) and not is_spawned):
            return bootstrap(process, *args, **kwargs)
        rank = str(process._identity[-1] - 1)  # the process that is started first is rank 0
        settings = _settings()
        recording = _recording(rank, settings)
        with recording, OutputTap(recording) if "printed" in settings else nullcontext():
            return bootstrap(process, *args, **kwargs)

    return run


def _recording(rank: str, settings: Mapping[str, Any]) -> Any:
    """The `record` of a rank, with the settings of the program that started it."""
    from gradviz.sources.record import record
    from gradviz.tracefile.chosen import passes_of

    chosen = {
        name: settings[name]
        for name in ("values", "scope", "last", "aten", "check_functions", "profile", "histograms")
        if name in settings
    }
    passes = passes_of(settings["passes"]) if "passes" in settings else None
    source = "no_source" not in settings
    trace = settings.get("output") or settings.get(_BASE) or f"{Path(sys.argv[0]).stem or 'run'}.gradviz"
    return record(of_rank(trace, rank), passes=passes, meta={"rank": rank}, source=source, **chosen)
