"""A stand-in for Windows and for macOS, in a process on Linux.

A copy of this file is the `sitecustomize.py` of the process, and GRADVIZ_STAND_IN names the system. Gradviz's own
modules then see neither the modules nor the names that this system lacks, and `sys.platform` is that system's; NumPy,
PyTorch and the script see what there is. Nobody sees `/proc` and, for Windows, `/dev/tty`. For Windows, a file that
the process holds open cannot be deleted, renamed or replaced, and `spawn` is the start method of `multiprocessing`.

What it does not show: paths with backslashes, SQLite's locks there, the console, other processes that hold a file."""

from __future__ import annotations

import builtins
import errno
import fcntl
import functools
import io
import os
import shutil
import signal
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

PLATFORMS = {"windows": "win32", "macos": "darwin"}
# What Python's documentation says is not there ("Availability: Unix", "not WASI"), and is there on Linux.
HIDDEN_MODULES = {
    "windows": set("curses fcntl grp nis ossaudiodev posix pty pwd readline resource spwd syslog termios tty".split()),
    "macos": {"nis", "ossaudiodev", "spwd"},
}
_ONLY_LINUX = """
    eventfd eventfd_read eventfd_write getrandom memfd_create pidfd_open posix_fadvise posix_fallocate
    sched_getaffinity sched_setaffinity setns splice unshare copy_file_range getxattr listxattr setxattr O_TMPFILE
    O_PATH O_DIRECT O_NOATIME
"""
_ONLY_UNIX = """
    chown chroot confstr ctermid fchdir fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid
    getgroups getloadavg getpgid getpgrp getpriority getresgid getresuid getsid getuid grantpt initgroups killpg lchown
    major makedev minor mkfifo mknod nice openpty pathconf pipe2 posix_openpt posix_spawn posix_spawnp pread preadv
    ptsname pwrite pwritev readv register_at_fork sched_yield sendfile setegid seteuid setgid setgroups setpgid
    setpriority setregid setreuid setsid setuid statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname unlockpt wait
    wait3 wait4 waitid writev environb getenvb fsync_range WNOHANG WIFEXITED WIFSIGNALED WEXITSTATUS WTERMSIG O_CLOEXEC
    O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_NOCTTY O_SYNC O_DSYNC
"""
_SIGNALS = "SIGABRT SIGFPE SIGILL SIGINT SIGSEGV SIGTERM SIG_DFL SIG_IGN".split()  # of Windows
_ONLY_UNIX_SIGNAL = """
    ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL alarm getitimer pause pidfd_send_signal pthread_kill pthread_sigmask
    setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
"""
HIDDEN_NAMES = {
    "windows": {
        "os": {*_ONLY_LINUX.split(), *_ONLY_UNIX.split()},
        "signal": {
            *_ONLY_UNIX_SIGNAL.split(),
            *(name for name in dir(signal) if name.startswith("SIG") and name not in _SIGNALS),
        },
    },
    "macos": {"os": set(_ONLY_LINUX.split()), "signal": {"SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "SIGPOLL"}},
}
HIDDEN_PLACES = {"windows": ("/proc", "/dev/tty", "/dev/fd"), "macos": ("/proc",)}
_real_readlink, _real_listdir = os.readlink, os.listdir


class Seen:
    """A module as gradviz sees it: without what is hidden, and with values of its own. What is assigned to it is
    assigned to the module."""

    def __init__(self, module: ModuleType, hidden: set[str], values: dict[str, Any]) -> None:
        self.__dict__.update(_module=module, _hidden=hidden, **values)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)


def _locking(descriptor: int, how: int, count: int) -> None:
    """`msvcrt.locking`, by locks of Linux that belong to a descriptor. (Of a file that is open for reading it is one
    that readers share.)"""
    writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    kind = fcntl.F_UNLCK if not how else fcntl.F_WRLCK if writes else fcntl.F_RDLCK
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0))
    except OSError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def _to_main_thread(number: int) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _msvcrt() -> ModuleType:
    module = ModuleType("msvcrt")
    module.__dict__.update(LK_UNLCK=0, LK_NBLCK=2, locking=_locking)
    return module


def hide_names(system: str, of: Callable[[str], bool]) -> None:
    """Show modules for whose names `of` holds the modules that the system has, and the names in these."""
    hidden, names = HIDDEN_MODULES[system], HIDDEN_NAMES[system]
    values: dict[str, dict[str, Any]] = {"sys": {"platform": PLATFORMS[system]}}
    if system == "windows":
        values["os"] = {"name": "nt"}
        values["signal"] = {"raise_signal": _to_main_thread}  # where Python's handler of SIGINT wakes the main thread
    seen: dict[str, Any] = {
        module.__name__: Seen(module, names.get(module.__name__, set()), values.get(module.__name__, {}))
        for module in (os, signal, sys)
    }
    if system == "windows":
        seen["msvcrt"] = _msvcrt()
    plain = builtins.__import__

    @functools.wraps(plain)
    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or not of((globals or {}).get("__name__", "")):
            return plain(name, globals, locals, fromlist, level)
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in seen:
            return seen[name]
        found = plain(name, globals, locals, fromlist, level)
        return seen.get(found.__name__, found) if not fromlist else found

    builtins.__import__ = imported


def hide_places(places: tuple[str, ...]) -> None:
    """Let these places not exist. The terminal is called as on Windows."""

    def is_hidden(path: Any) -> bool:
        if isinstance(path, int):
            return False
        text = os.fsdecode(path)
        return any(text == place or text.startswith(f"{place}/") for place in places)

    def without(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def look(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if is_hidden(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return plain("/dev/tty" if path == "CONOUT$" else path, *arguments, **options)

        return look

    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access"):
        setattr(os, name, without(getattr(os, name)))
    builtins.open = io.open = without(io.open)  # type: ignore[assignment]


def hold_open_files() -> None:
    """Let no file be deleted, renamed or replaced that this process has open, nor the directory that it is in."""

    def is_open(path: str) -> bool:
        for number in _real_listdir("/proc/self/fd"):
            try:
                if _real_readlink(f"/proc/self/fd/{number}") == path:
                    return True
            except FileNotFoundError:  # of the listing itself
                continue
        return path == os.getcwd()

    def held(plain: Callable[..., Any], count: int) -> Callable[..., Any]:
        @functools.wraps(plain)
        def change(*paths: Any, **options: Any) -> Any:
            for path in paths[:count]:
                if is_open(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))):
                    raise PermissionError(errno.EACCES, "it is being used by another process", path)
            return plain(*paths, **options)

        return change

    for name, count in (("unlink", 1), ("remove", 1), ("rmdir", 1), ("rename", 2), ("replace", 2)):
        setattr(os, name, held(getattr(os, name), count))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]


def spawn_processes() -> None:
    """Let `spawn` be the start method."""
    from multiprocessing import context

    context._default_context._default_context = context._concrete_contexts["spawn"]  # type: ignore[attr-defined]


def stand_in_for(system: str, of: Callable[[str], bool]) -> None:
    """Make this process look like one of the system to modules for whose names `of` holds."""
    if system == "windows":
        spawn_processes()
        hold_open_files()
    hide_places(HIDDEN_PLACES[system])
    hide_names(system, of)


def environment(system: str, folder: Path) -> dict[str, str]:
    """What the environment of a process has, in addition, that is to look like one of the system. `folder` is empty."""
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    return {
        "GRADVIZ_STAND_IN": system,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
    }


if __name__ == "sitecustomize":
    stand_in_for(os.environ["GRADVIZ_STAND_IN"], lambda name: name.partition(".")[0] == "gradviz")
