"""Small programs that look at what a program can see of the interpreter that runs it.

Each has to do under `gradviz trace` and `gradviz debug` what it does under `python`: the same output, the same exit
status, the same files (tests/whole/test_odd_scripts.py)."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Odd:
    """A program: its text, the words behind `python`, standard input, other files, and how a shell starts it."""

    name: str
    text: str
    words: tuple[str, ...] = ("script.py",)
    stdin: str = ""
    files: dict[str, str | bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    shell: str = 'exec "$@"'
    setup: str = ""  # shell commands that make what cannot be a text
    engine: bool = False  # whether it differentiates, with the engine that `torch` is then
    since: tuple[int, int] = (3, 11)
    before: tuple[int, int] = (4, 0)  # the first version of Python that it is not for

    @property
    def source(self) -> str:
        return textwrap.dedent(self.text).lstrip("\n")


ENGINE = "import gradviz.engine as torch\n"
STEP = "x = torch.ones(3, requires_grad=True)\n(x * x).sum().backward()\nprint(x.grad.tolist())\n"


def _odd(name: str, text: str, *words: str, **settings: object) -> Odd:
    return Odd(name, text, ("script.py", *words), **settings)  # type: ignore[arg-type]


def _differentiates(name: str, text: str, **settings: object) -> Odd:
    return Odd(name, ENGINE + STEP + textwrap.dedent(text), engine=True, **settings)  # type: ignore[arg-type]


ENDINGS = [
    _odd(f"exit {number}", f"import sys\nprint('out')\nsys.exit({code})")
    for number, code in enumerate(
        (
            "",
            "None",
            "0",
            "3",
            "256",
            "-1",
            "255",
            "-2**70",
            "True",
            "1.5",
            "'said'",
            "('a', 1)",
            "''",
            "[]",
            r"'\udc80'",
            "b'x'",
        )
    )
] + [
    _odd("raise SystemExit", "raise SystemExit"),
    _odd("raise SystemExit of two", "raise SystemExit(1, 2)"),
    _odd("a SystemExit of one's own", "class E(SystemExit):\n    pass\nraise E(7)"),
    _odd(
        "a SystemExit whose code cannot be shown",
        """
        class Odd:
            def __str__(self): raise ValueError('no text')
        raise SystemExit(Odd())
        """,
        before=(3, 13),  # which stumbles over the error later
    ),
    _odd("quit", "quit(4)"),
    _odd("os._exit", "import os\nprint('lost?', flush=True)\nos._exit(9)"),
    _odd("os._exit without a flush", "import os\nprint('lost')\nos._exit(9)", shell='exec "$@" > kept.txt'),
    _odd("abort", "import os\nos.abort()", setup="ulimit -c 0", shell='ulimit -c 0; exec "$@"'),
    _odd("SIGSEGV", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", shell='ulimit -c 0; exec "$@"'),
    _odd("raises", "def f(n):\n    return 1 / n\n\nf(0)\n"),
    _odd(
        "raises with a chain",
        """
        try:
            {}['a']
        except KeyError as error:
            raise ValueError('bad') from error
        """,
    ),
    _odd("raises with a note", "e = ValueError('x')\ne.add_note('a note')\nraise e"),
    _odd("raises a group", "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])"),
    _odd("raises a BaseException", "class B(BaseException): pass\nraise B('x')"),
    _odd("raises GeneratorExit", "raise GeneratorExit"),
    _odd(
        "an exception whose text cannot be had",
        """
        class E(Exception):
            def __str__(self): raise RuntimeError('no')
        raise E
        """,
    ),
    _odd("an exception with a lone surrogate", r"raise ValueError('\udc80 \ud800')"),
    _odd("a class with a lone surrogate", r"raise type('E\udc80', (Exception,), {})('x')"),
    Odd(
        "a file name that is not UTF-8",
        "",
        ("caf\udce9.py",),
        setup="printf 'print(ascii(__name__))\\nraise ValueError(__file__ and 1)\\n' > \"$(printf 'caf\\351.py')\"",
    ),
    _odd("a syntax error", "x = = 1\n"),
    _odd("an indentation error", "if 1:\nx = 1\n"),
    _odd("a syntax error in an import", "import broken", files={"broken.py": "x = (\n"}),
    _odd("a null byte", "", setup="printf 'print(1)\\n\\0' > script.py"),
    _odd(
        "an encoding declared", "", setup="printf '# -*- coding: latin-1 -*-\\nprint(ascii(\"\\351\"))\\n' > script.py"
    ),
    _odd("an encoding that is wrong", "", setup="printf 'print(\"\\351\")\\n' > script.py"),
    _odd("an encoding that does not exist", "# -*- coding: nonsense -*-\nprint(1)\n"),
    _odd("a byte order mark", "", setup="printf '\\357\\273\\277print(1)\\n' > script.py"),
    _odd("an empty script", ""),
    _odd("recursion without end", "def f(): f()\nf()\n"),
    _odd("MemoryError", "raise MemoryError"),
    _odd("interrupted", "raise KeyboardInterrupt"),
    _odd("SIGINT", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(2)"),
    _odd(
        "SIGINT while it waits for a thread",
        """
        import _thread, os, signal, threading, time
        def late():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        threading.Thread(target=late).start()
        """,
    ),
    _odd("SIGTERM", "import os, signal\nprint('a', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)"),
    _odd(
        "SIGTERM with a handler",
        """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda n, f: sys.exit(5))
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    ),
    _odd("SIGKILL", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    _odd(
        "SIGINT ignored",
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nos.kill(os.getpid(), signal.SIGINT)\nprint(1)",
    ),
    _odd(
        "interrupted with a handler of exceptions",
        "import sys\nsys.excepthook = lambda *a: print(a[0])\nraise KeyboardInterrupt",
    ),
    _odd(
        "alarm",
        """
        import signal, time
        def ring(number, frame): raise TimeoutError('late')
        signal.signal(signal.SIGALRM, ring)
        signal.alarm(1)
        time.sleep(5)
        """,
    ),
    _odd("alarm without a handler", "import signal, time\nsignal.alarm(1)\ntime.sleep(5)"),
    _odd("signal handlers", "import signal\nfor s in sorted(signal.valid_signals()): print(s, signal.getsignal(s))"),
    _odd(
        "setitimer",
        """
        import signal, time
        hits = []
        signal.signal(signal.SIGALRM, lambda n, f: hits.append(f.f_code.co_name))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        while len(hits) < 5: pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(set(hits) - {'<lambda>'})  # the handler may interrupt itself
        """,
    ),
    _odd("SIGPIPE", "import sys\nfor _ in range(100000): print('x' * 100)", shell='"$@" | head -n 1'),
]

HOOKS = [
    _odd("an excepthook", "import sys\nsys.excepthook = lambda t, v, b: print('hooked', t, v, b.tb_lineno)\n1 / 0"),
    _odd("an excepthook that raises", "import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\n1 / 0"),
    _odd("an excepthook that exits", "import sys\nsys.excepthook = lambda *a: sys.exit(6)\n1 / 0"),
    _odd("an excepthook deleted", "import sys\ndel sys.excepthook\n1 / 0"),
    _odd("an excepthook that is None", "import sys\nsys.excepthook = None\n1 / 0"),
    _odd(
        "the excepthook is Python's",
        "import sys\nprint(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__, sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__)",
    ),
    _odd("a traceback limit", "import sys\nsys.tracebacklimit = 1\ndef f(): 1 / 0\nf()"),
    _odd(
        "sys.last_value at exit",
        "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value), sys.last_type, sys.last_traceback.tb_lineno))\n1 / 0",
    ),
    _odd(
        "a frame's whole stack in a hook",
        """
        import sys, traceback
        def hook(kind, value, trace):
            print([(f.name, f.lineno) for f in traceback.extract_tb(trace)])
        sys.excepthook = hook
        def f(): 1 / 0
        f()
        """,
    ),
    _odd("an unraisable exception", "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a\nprint('on')"),
    _odd(
        "an unraisablehook",
        "import sys\nsys.unraisablehook = lambda a: print('un', a.exc_type)\nclass A:\n    def __del__(self): 1 / 0\na = A()\ndel a",
    ),
    _odd(
        "a thread that raises",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start()\nt.join()\nprint('on')",
    ),
    _odd(
        "a threading.excepthook",
        "import threading\nthreading.excepthook = lambda a: print('t', a.exc_type)\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    ),
    _odd(
        "an audit hook",
        """
        import sys
        seen = []
        sys.addaudithook(lambda event, args: seen.append(event) if event.startswith(('sys.excepthook', 'os.')) else None)
        import os
        os.listdir('.')
        print(seen)
        """,
    ),
    _odd(
        "sys.settrace",
        """
        import sys
        calls = []
        def trace(frame, event, arg):
            calls.append((frame.f_code.co_name, event))
            return trace
        print(sys.gettrace())
        def f():
            return 1
        sys.settrace(trace)
        f()
        sys.settrace(None)
        print(calls)
        """,
    ),
    _odd(
        "sys.settrace to the end",
        """
        import sys
        def trace(frame, event, arg):
            print(frame.f_code.co_name, event) if frame.f_globals.get('__name__') == '__main__' else None
        sys.settrace(trace)
        def f(): pass
        f()
        """,
    ),
    _odd(
        "sys.setprofile",
        """
        import sys
        calls = []
        sys.setprofile(lambda frame, event, arg: calls.append((frame.f_code.co_name, event)))
        def f(): return len('a')
        f()
        sys.setprofile(None)
        print(calls)
        """,
    ),
    _odd(
        "cProfile",
        "import cProfile\ndef f(): return 1\np = cProfile.Profile()\np.runcall(f)\nprint(sorted(e.code.co_name for e in p.getstats() if not isinstance(e.code, str)))",
    ),
    _odd(
        "tracemalloc",
        "import tracemalloc\nprint(tracemalloc.is_tracing())\ntracemalloc.start()\nx = [bytes(1000) for _ in range(100)]\nprint(tracemalloc.get_traced_memory()[0] > 100_000)",
    ),
    _odd("faulthandler", "import faulthandler\nprint(faulthandler.is_enabled())\nfaulthandler.enable()"),
    _odd("sys.monitoring", "import sys\nprint([sys.monitoring.get_tool(n) for n in range(6)])", since=(3, 12)),
    _odd("meta_path and hooks", "import sys\nprint(len(sys.path_hooks), sys.path_importer_cache is not None)"),
]

ATEXIT = [
    _odd("atexit", "import atexit\natexit.register(print, 'one')\natexit.register(print, 'two')\nprint('main')"),
    _odd("atexit that raises", "import atexit\natexit.register(lambda: 1 / 0)\natexit.register(print, 'two')"),
    _odd("atexit that exits", "import atexit, sys\natexit.register(lambda: sys.exit(4))\nprint('main')"),
    _odd("atexit by os._exit", "import atexit, os\natexit.register(lambda: os._exit(4))\nprint('main', flush=True)"),
    _odd("atexit after an exception", "import atexit\natexit.register(print, 'bye')\n1 / 0"),
    _odd("atexit after sys.exit", "import atexit, sys\natexit.register(print, 'bye')\nsys.exit(3)"),
    _odd(
        "atexit pickles what is __main__'s",
        """
        import atexit, pickle
        class Thing:
            pass
        def save():
            print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
        atexit.register(save)
        """,
    ),
    _odd(
        "atexit sees __main__",
        "import atexit, sys\nhere = 5\natexit.register(lambda: print(sys.modules['__main__'].here, sys.argv, __file__[-9:]))",
    ),
    _odd(
        "atexit and threads",
        """
        import atexit, threading, time
        atexit.register(lambda: print('atexit', threading.active_count(), threading.main_thread().is_alive()))
        def late():
            time.sleep(0.1)
            print('thread')
        threading.Thread(target=late).start()
        print('main')
        """,
    ),
    _odd("atexit registers atexit", "import atexit\natexit.register(lambda: atexit.register(print, 'inner'))"),
    _odd("atexit that was taken back", "import atexit\natexit.register(print, 'no')\natexit.unregister(print)"),
    _odd(
        "atexit counts",
        "import atexit\nn = atexit._ncallbacks()\natexit.register(print)\nprint(atexit._ncallbacks() - n)",
    ),
    _odd(
        "the traceback of atexit",
        "import atexit, traceback\ndef f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        traceback.print_exc()\natexit.register(f)",
    ),
    _odd(
        "weakref.finalize", "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'gone')\nprint('main')"
    ),
    _odd("__del__ at exit", "class A:\n    def __del__(self): print('del')\na = A()\nprint('main')"),
    _odd(
        "__del__ at exit sees globals",
        "import os\nclass A:\n    def __del__(self, os=os): print('del', os.name, A is not None, __name__)\na = A()",
    ),
    _odd(
        "__del__ after an exception",
        "class A:\n    def __del__(self): print('del')\ndef f():\n    a = A()\n    1 / 0\nf()",
    ),
    _odd(
        "a generator that is closed at exit",
        "def g():\n    try:\n        yield 1\n    finally:\n        print('closed')\nh = g()\nnext(h)",
    ),
    _odd(
        "a context manager that is open at exit",
        "import contextlib\n@contextlib.contextmanager\ndef c():\n    try:\n        yield\n    finally:\n        print('left')\nm = c()\nm.__enter__()",
    ),
    _odd(
        "logging at exit",
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout)\nclass H(logging.Handler):\n    def close(self):\n        print('closed')\n        super().close()\nlogging.getLogger().addHandler(H())\nlogging.warning('w')",
    ),
    _odd(
        "logging as it is",
        "import logging\nprint(logging.getLogger().handlers, logging.getLogger().level, logging.root.manager.disable)\nlogging.warning('w')",
    ),
    _odd(
        "an executor that is left open",
        "from concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor(2)\nprint(p.submit(lambda: 5).result())",
    ),
    _odd(
        "a future that is left",
        "import time\nfrom concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor(2)\np.submit(lambda: (time.sleep(0.2), print('done')))",
    ),
    _odd(
        "a daemon thread that runs on",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(30), daemon=True).start()\nprint('main')",
    ),
    _odd(
        "a temporary directory that is left",
        "import tempfile\nd = tempfile.TemporaryDirectory(dir='.')\nprint('made')",
        env={"PYTHONWARNINGS": "ignore"},
    ),
    _odd("output that is not flushed", "import sys\nsys.stdout.write('no newline')"),
    _odd("a file that is not closed", "f = open('out.txt', 'w')\nf.write('text')"),
    _odd("stdout replaced", "import io, sys\nsys.stdout = io.StringIO()\nprint('lost')"),
    _odd("stderr replaced", "import io, sys\nsys.stderr = io.StringIO()\n1 / 0"),
    _odd("stderr is None", "import sys\nsys.stderr = None\n1 / 0"),
    _odd("stdout is None", "import sys\nsys.stdout = None\nprint('x')"),
]

STREAMS = [
    _odd("stdin", "import sys\nprint(input(), sys.stdin.read())", stdin="a\nb\nc\n"),
    _odd("stdin ends", "input()"),
    _odd("stdin as bytes", "import sys\nprint(sys.stdin.buffer.read())", stdin="a\n"),
    _odd("stdin closed", "import sys\nprint(sys.stdin)", shell='exec "$@" 0<&-'),
    _odd("stdout closed", "import sys\nprint('x')\nprint(sys.stdout, file=sys.stderr)", shell='exec "$@" 1>&-'),
    _odd("stderr closed", "import sys\nprint(sys.stderr)\n1 / 0", shell='exec "$@" 2>&-'),
    _odd("all closed", "open('out.txt', 'w').write('x')", shell='exec "$@" 0<&- 1>&- 2>&-'),
    _odd("stdout full", "print('x')", shell='exec "$@" >/dev/full'),
    _odd("stderr full", "import sys\nprint('x', file=sys.stderr)", shell='exec "$@" 2>/dev/full'),
    _odd("stderr full, and an exception", "1 / 0", shell='exec "$@" 2>/dev/full'),
    _odd("stderr full, and an exit with a message", "import sys\nsys.exit('x')", shell='exec "$@" 2>/dev/full'),
    _odd("stdout closed by the script", "import sys\nsys.stdout.close()"),
    _odd("stderr closed by the script", "import sys\nsys.stderr.close()\nprint('on')"),
    _odd("stderr closed by the script, and an exception", "import sys\nsys.stderr.close()\n1 / 0"),
    _odd("stderr closed by the script, and a message", "import sys\nsys.stderr.close()\nsys.exit('x')"),
    _odd("descriptors closed", "import os\nos.closerange(3, 4096)\nprint(open('out.txt', 'w').write('x'))"),
    _odd("all descriptors closed", "import os\nos.closerange(0, 4096)"),
    _odd("descriptor 1 closed", "import os\nprint('x')\nos.close(1)"),
    _odd("the first free descriptor", "import os\nprint(os.open('.', os.O_RDONLY), open('script.py').fileno())"),
    _odd(
        "a descriptor by its number",
        "import os\nos.dup2(1, 3)\nos.dup2(1, 5)\nos.write(3, b'three\\n')\nopen('out.txt', 'w').write('mine')\n",
    ),
    _odd(
        "redirected by dup2",
        "import os, sys\nf = os.open('err.txt', os.O_CREAT | os.O_WRONLY)\nos.dup2(f, 1)\nprint('in the file')",
    ),
    _odd(
        "encodings",
        "import sys, locale\nprint(sys.stdout.encoding, sys.stderr.errors, sys.getfilesystemencoding(), locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL))",
    ),
    _odd(
        "latin-1",
        "import sys\nprint('é', sys.stdout.encoding)\nraise ValueError('é ∂')",
        env={"PYTHONIOENCODING": "latin-1:backslashreplace"},
    ),
    _odd("ascii", "import sys\nprint(sys.stdout.encoding)\nprint('∂')", env={"PYTHONIOENCODING": "ascii"}),
    _odd("the C locale", "import sys\nprint(sys.flags.utf8_mode, sys.stdout.encoding)", env={"LC_ALL": "C"}),
    _odd(
        "line buffering",
        "import sys\nprint(sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering)",
    ),
    _odd("reconfigured", "import sys\nsys.stdout.reconfigure(encoding='utf-16')\nprint('x')"),
    _odd(
        "unbuffered",
        "import sys\nprint(sys.stdout.write_through)\nsys.stdout.write('a')\nimport os\nos._exit(0)",
        env={"PYTHONUNBUFFERED": "1"},
    ),
    _odd("is a terminal", "import sys\nprint(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())"),
]

MAIN = [
    _odd("arguments", "import sys\nprint(sys.argv)", "a", "-x", "--values", "none", "", "é", "--", "-o", "y"),
    _odd("arguments that are gradviz's", "import sys\nprint(sys.argv)", "--last", "3", "-m", "x"),
    _odd(
        "an option --graph of its own",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--graph')\nprint(p.parse_args().graph)",
        "--graph",
        "cora.svg",
    ),
    _odd("an option --graph of another kind", "import sys\nprint(sys.argv)", "--graph", "cora"),
    _odd(
        "help of its own",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, help='how many')\np.parse_args()",
        "--help",
    ),
    _odd(
        "a wrong argument",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int)\np.parse_args()",
        "--epochs",
        "x",
    ),
    _odd("orig_argv", "import sys\nprint(sys.orig_argv[1:])", "a", "b"),
    _odd(
        "globals",
        "print(list(globals()))\nprint(__name__, __doc__, __package__, __spec__, __cached__, __annotations__, type(__builtins__))",
    ),
    _odd("the loader", "print(type(__loader__), __loader__.name, __loader__.path[-9:])"),
    _odd("the file", "print(__file__)\nimport sys\nprint(sys._getframe().f_code.co_filename, sys.path[0])"),
    Odd(
        "the file by another way",
        "import sys\nprint(__file__, sys.argv, sys._getframe().f_code.co_filename, sys.path[0])\n1 / 0",
        ("./x/../script.py",),
        setup="mkdir x",
    ),
    Odd(
        "a link to the file",
        "",
        ("link.py",),
        files={"real/part.py": "X = 1\n", "real/main.py": "import sys, part\nprint(__file__, sys.path[0])\n1 / 0\n"},
        setup="ln -s real/main.py link.py",
    ),
    Odd("a file without an ending", "", ("tool",), files={"tool": "#!/usr/bin/env python\nprint(__file__)\n"}),
    Odd("a name with blanks", "", ("a b é.py",), files={"a b é.py": "print(__file__)\n1 / 0\n"}),
    Odd("a name that begins with a dash", "", ("./-x.py",), files={"-x.py": "import sys\nprint(sys.argv)\n"}),
    Odd(
        "a directory",
        "",
        ("app", "a"),
        files={
            "app/__main__.py": "import part, sys\nprint(part.X, __name__, __package__, __file__, sys.argv, sys.path[0], __spec__)\n1 / 0\n",
            "app/part.py": "X = 1\n",
        },
    ),
    Odd(
        "a zip",
        "",
        ("app.zip", "a"),
        files={
            "app/__main__.py": "import part, sys\nprint(part.X, __name__, __package__, __file__, sys.argv, sys.path[0])\n1 / 0\n",
            "app/part.py": "X = 1\n",
        },
        setup="(cd app && python -m zipfile -c ../app.zip __main__.py part.py)",
    ),
    Odd(
        "a zip by another name",
        "",
        ("app", "a"),
        files={"src/__main__.py": "import sys\nprint(__name__, sys.argv)\n"},
        setup="(cd src && python -m zipfile -c ../app __main__.py)",
    ),
    Odd(
        "compiled code",
        "",
        ("x.pyc",),
        files={"x.py": "import sys\nprint(__name__, __file__[-5:], sys.argv, type(__loader__))\n"},
        setup="python -c \"import py_compile; py_compile.compile('x.py', 'x.pyc')\" && rm x.py",
    ),
    Odd(
        "a module",
        "",
        ("-m", "pack.mod", "a"),
        files={
            "pack/__init__.py": "",
            "pack/mod.py": "import sys\nprint(__name__, __package__, __spec__.name, sys.argv, sys.path[0], __file__)\nfrom . import mod\n1 / 0\n",
        },
    ),
    Odd(
        "a package",
        "",
        ("-m", "pack"),
        files={
            "pack/__init__.py": "print('init', __name__)\n",
            "pack/__main__.py": "import sys\nprint(__name__, __package__, sys.argv, sys.orig_argv[1:])\n",
        },
    ),
    Odd("a module that is not there", "", ("-m", "nowhere.mod")),
    Odd("a package without a main", "", ("-m", "pack"), files={"pack/__init__.py": ""}),
    Odd("a module that is interrupted", "", ("-m", "mod"), files={"mod.py": "raise KeyboardInterrupt\n"}),
    Odd("a module that exits", "", ("-m", "mod"), files={"mod.py": "import sys\nsys.exit('said')\n"}),
    Odd("a module with a syntax error", "", ("-m", "mod"), files={"mod.py": "x = = 1\n"}),
    Odd("a module of the library", "", ("-m", "timeit", "-n1", "-r1", "print(5)"), shell='"$@" | head -n 1'),
    Odd(
        "unittest as a module",
        "",
        ("-m", "unittest", "test_it"),
        files={
            "test_it.py": "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 2)\n"
        },
        shell='"$@" 2>/dev/null; echo $?',
    ),
    _odd(
        "imports from its directory", "import helper\nprint(helper.__file__, helper.X)", files={"helper.py": "X = 3\n"}
    ),
    _odd("imports __main__", "import __main__\nX = 5\nprint(__main__.X, __main__.__dict__ is globals())"),
    _odd(
        "modules with names of ours",
        "import click, queue, rich.text, sqlite3\nprint(click.X, queue.X, rich.text.X, sqlite3.X)\nimport numpy\nprint(numpy.ones(2))",
        files={
            "click.py": "X = 1\n",
            "queue.py": "X = 2\n",
            "rich/__init__.py": "",
            "rich/text.py": "X = 3\n",
            "sqlite3.py": "X = 4\n",
        },
    ),
    _odd("a module of its own", "import json_tool\nprint(json_tool.X)", files={"json_tool.py": "X = 1\n"}),
    _odd(
        "inspect.getsource",
        "import inspect, os, sys\ndef f():\n    return 1\nos.mkdir('away')\nos.chdir('away')\nprint(inspect.getsource(f))\nprint(inspect.getsourcefile(f))",
    ),
    _odd(
        "raises after a chdir",
        "import os\nos.mkdir('away')\nos.chdir('away')\ndef f():\n    raise ValueError('here')\nf()",
    ),
    _odd(
        "a directory that is deleted",
        "import os, shutil\nos.mkdir('away')\nos.chdir('away')\nos.rmdir('../away')\nprint('on')\nraise ValueError",
    ),
    _odd(
        "runpy",
        "import runpy\nprint(runpy.run_path('other.py')['X'], runpy.run_module('mod')['X'])",
        files={"other.py": "X = __name__\n", "mod.py": "X = __file__[-6:]\n"},
    ),
    _odd(
        "runpy as main",
        "import runpy\nrunpy.run_path('other.py', run_name='__main__')\nimport sys\nprint(sys.modules['__main__'].__dict__ is globals())",
        files={"other.py": "print(__name__)\n1 / 0 if 0 else None\n"},
    ),
    _odd("exec", "exec(compile('print(__name__)\\n1 / 0', 'made.py', 'exec'))"),
    _odd("flags", "import sys\nprint(sys.flags)\nprint(sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)"),
    _odd("warnings", "import warnings\nwarnings.warn('a')\nwarnings.warn('d', DeprecationWarning)\n"),
    _odd("a warning as an error", "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('a')"),
    _odd(
        "a warning of a level",
        "import warnings\ndef f(): warnings.warn('w', stacklevel=2)\nf()\nwarnings.warn('high', stacklevel=9)",
    ),
    _odd(
        "a warning by the environment",
        "import warnings\nwarnings.warn('d', DeprecationWarning)\nopen('script.py')\nprint('on')",
        env={"PYTHONWARNINGS": "default"},
    ),
    _odd(
        "umask",
        "import os\nprint(os.umask(0o22))\nopen('out.txt', 'w').close()\nprint(oct(os.stat('out.txt').st_mode))",
    ),
    _odd("the environment", "import os\nprint(sorted(k for k in os.environ if 'GRADVIZ' in k or k.startswith('PY')))"),
    _odd("cwd", "import os\nprint(os.getcwd(), sorted(os.listdir()))"),
    _odd(
        "limits",
        "import resource\nprint([resource.getrlimit(getattr(resource, n)) for n in ('RLIMIT_NOFILE', 'RLIMIT_AS', 'RLIMIT_FSIZE', 'RLIMIT_STACK')])",
    ),
    _odd(
        "a limit of descriptors",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\nfiles = []\ntry:\n    while True: files.append(open('script.py'))\nexcept OSError as e:\n    print(e.errno, len(files))",
    ),
    _odd(
        "the recursion limit",
        "def depth(n):\n    try:\n        return depth(n + 1)\n    except RecursionError:\n        return n\nprint(depth(0))",
    ),
    _odd(
        "the recursion limit set",
        "import sys\nsys.setrecursionlimit(400)\ndef depth(n):\n    try:\n        return depth(n + 1)\n    except RecursionError:\n        return n\nprint(sys.getrecursionlimit())",
    ),
    _odd("the path", "import sys\nprint(sys.path)"),
    _odd("the switch interval", "import sys\nprint(sys.getswitchinterval())"),
    _odd("gc", "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)"),
    _odd(
        "gc disabled",
        "import gc\ngc.disable()\nclass A: pass\na = A()\na.me = a\ndel a\nprint(gc.isenabled(), gc.collect() > 0)",
    ),
    _odd("gc finds objects", "import gc\nclass A: pass\na = A()\nprint(sum(type(o) is A for o in gc.get_objects()))"),
    _odd(
        "gc debug",
        "import gc\ngc.set_debug(gc.DEBUG_SAVEALL)\nclass A: pass\na = A()\na.me = a\ndel a\ngc.collect()\nprint(any(type(o) is A for o in gc.garbage))",
    ),
    _odd(
        "random numbers",
        "import random\nrandom.seed(1)\nprint(random.random())\nimport numpy\nnumpy.random.seed(1)\nprint(numpy.random.rand())",
    ),
    _odd(
        "numpy's errors",
        "import numpy\nprint(numpy.geterr(), numpy.get_printoptions())\nnumpy.array([1.0]) / 0",
        env={"PYTHONWARNINGS": "always"},
    ),
    _odd(
        "decimal and contextvars",
        "import contextvars, decimal\nprint(decimal.getcontext(), list(contextvars.copy_context()))",
    ),
    _odd("interned numbers", "import sys\nprint(sys.get_int_max_str_digits(), sys.getrefcount(object()))"),
    _odd(
        "pickle", "import pickle\nclass A:\n    pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)"
    ),
    _odd(
        "copyreg and dataclasses",
        "import copy, dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\nprint(copy.deepcopy(A()), dataclasses.fields(A)[0].type, A.__module__)",
    ),
    _odd(
        "typing of one's own names",
        "import typing\nclass A: pass\ndef f(x: 'A') -> 'A': ...\nprint(typing.get_type_hints(f))",
    ),
    _odd("annotations of the module", "x: int = 1\nprint(__annotations__)"),
    _odd(
        "doctest",
        "import doctest\ndef f():\n    '''\n    >>> f()\n    2\n    '''\n    return 1\nprint(doctest.testmod())",
    ),
    _odd(
        "unittest.main",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main(verbosity=0, exit=False)\nprint('on')",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd(
        "unittest.main that exits",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.fail()\nunittest.main()",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd("the name of the process", "print(open('/proc/self/comm').read())"),
    _odd("assert rewriting", "assert 1 == 2, 'no'"),
    _odd("a breakpoint that is off", "breakpoint()\nprint('on')", env={"PYTHONBREAKPOINT": "0"}),
    _odd("a breakpoint of one's own", "breakpoint()\nprint('on')", env={"PYTHONBREAKPOINT": "builtins.print"}),
    _odd("pdb", "x = 5\nimport pdb\npdb.set_trace()\nprint('on')\n", stdin="p x\nc\n"),
    _odd("pdb quits", "x = 5\nbreakpoint()\nprint('on')\n", stdin="q\n"),
    _odd(
        "code.interact",
        "import code\ncode.interact(local={'x': 3}, banner='', exitmsg='')\nprint('on')",
        stdin="x + 1\n",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd(
        "site",
        "import sys\nprint('site' in sys.modules, sys.prefix == sys.base_prefix, exit, copyright)",
        shell='"$@" | head -c 40',
    ),
    _odd(
        "builtins untouched",
        "import builtins\nprint(len(dir(builtins)), print, open, __import__, '_' in dir(builtins))",
    ),
]

THREADS = [
    _odd(
        "threads that are seen",
        "import threading\nprint([t.name for t in threading.enumerate()], threading.active_count(), threading.current_thread() is threading.main_thread())",
    ),
    _odd(
        "joins all threads",
        "import threading\nfor t in threading.enumerate():\n    if t is not threading.main_thread(): t.join()\nwhile threading.active_count() > 1: pass\nprint('on')",
    ),
    _odd(
        "threads that outlive main",
        "import threading, time\ndef f():\n    time.sleep(0.2)\n    print('late', threading.main_thread().is_alive())\nthreading.Thread(target=f).start()\nprint('main')",
    ),
    _odd("names of threads", "import threading\nt = threading.Thread(target=lambda: None)\nprint(t.name)"),
    _odd(
        "a thread starts another at the end",
        "import threading, time\ndef g(): print('g')\ndef f():\n    time.sleep(0.1)\n    threading.Thread(target=g).start()\nthreading.Thread(target=f).start()",
    ),
    _odd("thread-locals", "import threading\nl = threading.local()\nl.x = 1\nprint(vars(l))"),
    _odd("threading.settrace", "import threading\nprint(threading.gettrace(), threading.getprofile())", since=(3, 12)),
    _odd(
        "asyncio",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    print(asyncio.current_task().get_name())\nasyncio.run(main())",
    ),
    _odd(
        "asyncio that raises",
        "import asyncio\nasync def main():\n    1 / 0\nasyncio.run(main())",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd(
        "asyncio interrupted",
        "import asyncio, os, signal\nasync def main():\n    os.kill(os.getpid(), signal.SIGINT)\n    await asyncio.sleep(5)\nasyncio.run(main())",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd("an awaitable that is never awaited", "async def f(): pass\nf()\nprint('on')"),
    _odd(
        "asyncio with a subprocess",
        "import asyncio, sys\nasync def main():\n    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)')\n    print(await p.wait())\nasyncio.run(main())",
    ),
    _odd(
        "queues and processes of a pool of threads",
        "from multiprocessing.pool import ThreadPool\nwith ThreadPool(2) as p: print(p.map(len, ['a', 'bb']))",
    ),
]

PROCESSES = [
    _odd(
        "subprocess",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, len(sys.meta_path))'], capture_output=True, text=True))",
    ),
    _odd(
        "subprocess of itself",
        "import subprocess, sys\nif len(sys.argv) == 1:\n    print(subprocess.run([sys.executable, __file__, 'child'], capture_output=True, text=True).stdout)\nelse:\n    print('child', 'gradviz' in sys.modules)",
    ),
    _odd("os.system", "import os\nprint(os.system('exit 3'))"),
    _odd(
        "a preexec_fn", "import subprocess, os\nsubprocess.run(['true'], preexec_fn=lambda: os.setsid())\nprint('on')"
    ),
    _odd(
        "fork",
        "import os, sys\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\nelse:\n    print('child', flush=True)",
    ),
    _odd(
        "fork without imports",
        "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint('both' if pid else 'child', flush=True)",
    ),
    _odd(
        "fork, and the child raises",
        "import os\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\nelse:\n    1 / 0",
    ),
    _odd(
        "fork, and the child exits",
        "import os, sys, atexit\natexit.register(print, 'atexit', flush=True)\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\nelse:\n    sys.exit(5)",
    ),
    _odd(
        "fork, and the child is interrupted",
        "import os\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\nelse:\n    raise KeyboardInterrupt",
    ),
    _odd(
        "fork, and the parent leaves first",
        "import os, time\nr, w = os.pipe()\nif os.fork():\n    os.close(w)\n    os.read(r, 1)\nelse:\n    os.write(w, b'x')\n    os.close(r)\n    time.sleep(0.3)\n    open('out.txt', 'w').write('child')\n",
        shell='"$@"; sleep 0.8',
    ),
    _odd(
        "fork, and the child execs",
        "import os, sys\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nelse:\n    os.execv(sys.executable, [sys.executable, '-c', 'print(7)'])",
    ),
    _odd(
        "fork many times",
        "import os\nfor n in range(20):\n    pid = os.fork()\n    if not pid: os._exit(n)\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=' ')",
    ),
    _odd(
        "fork in a child",
        "import os\nif not os.fork():\n    if not os.fork(): print('grandchild', flush=True)\n    else: os.wait()\nelse:\n    os.wait()\n    print('parent')",
    ),
    _odd(
        "fork warns of threads of one's own only",
        "import os, warnings\nwarnings.simplefilter('always')\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)\nprint('on')",
    ),
    _odd(
        "forkpty",
        "import os\npid, fd = os.forkpty()\nif not pid:\n    os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    ),
    _odd(
        "a daemon",
        """
        import os, sys, time
        if os.fork():
            time.sleep(0.3)
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(3, 1024)
        open('pid.txt', 'w').write('ran')
        """,
        shell='"$@"; sleep 0.8',
    ),
    _odd(
        "multiprocessing by fork",
        "import multiprocessing as m\ndef f(q): q.put(__name__)\nif __name__ == '__main__':\n    c = m.get_context('fork')\n    q = c.Queue()\n    p = c.Process(target=f, args=(q,))\n    p.start()\n    print(q.get())\n    p.join()\n    print(p.exitcode)",
        env={"PYTHONWARNINGS": "ignore"},
    ),
    _odd(
        "multiprocessing by spawn",
        "import multiprocessing as m\nclass A:\n    pass\ndef f(a): return __name__, type(a).__module__\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p:\n        print(p.apply(f, (A(),)))",
    ),
    _odd(
        "multiprocessing by forkserver",
        "import multiprocessing as m\ndef f(x): return x + 1\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p:\n        print(p.map(f, [1, 2]))",
    ),
    _odd(
        "multiprocessing without a guard",
        "import multiprocessing as m\nm.set_start_method('spawn')\ndef f(): pass\np = m.Process(target=f)\np.start()\np.join()\nprint(p.exitcode)",
        shell='exec "$@" 2>/dev/null',
    ),
    _odd(
        "a pool of processes",
        "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2, mp_context=m.get_context('fork')) as p: print(list(p.map(f, range(4))))",
        env={"PYTHONWARNINGS": "ignore"},
    ),
    _odd(
        "a process that raises",
        "import multiprocessing as m\ndef f(): 1 / 0\nif __name__ == '__main__':\n    p = m.get_context('fork').Process(target=f, name='p')\n    p.start()\n    p.join()\n    print(p.exitcode)",
        env={"PYTHONWARNINGS": "ignore"},
    ),
    Odd(
        "a module that spawns",
        "",
        ("-m", "pack.mod"),
        files={
            "pack/__init__.py": "",
            "pack/mod.py": "import multiprocessing as m\ndef f(x): return __name__, x\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1]))\n",
        },
    ),
    _odd(
        "shared memory",
        "from multiprocessing import shared_memory\ns = shared_memory.SharedMemory(create=True, size=8)\ns.buf[0] = 3\nprint(s.buf[0])\ns.close()\ns.unlink()",
    ),
    _odd("becomes another program", "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(8)'])"),
    _odd(
        "runs itself again",
        "import os, sys\nif os.environ.get('AGAIN'):\n    print('again', sys.argv)\nelse:\n    os.environ['AGAIN'] = '1'\n    os.execv(sys.orig_argv[0] if '/' in sys.orig_argv[0] else sys.executable, sys.orig_argv)",
    ),
    _odd(
        "a child is waited for",
        "import os, signal\nsignal.signal(signal.SIGCHLD, lambda *a: None)\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)\ntry:\n    os.wait()\nexcept ChildProcessError: print('no other child')",
    ),
]

LIMITS = [
    _odd(
        "a limit of a file's size",
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nwith open('small.txt', 'w') as f: f.write('x' * 50)\nprint('on')\nraise SystemExit(3)",
    ),
    _odd("no process may be made", "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('on')"),
    _odd("a limit of time", "import resource, time\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nprint('on')"),
]

DIFFERENTIATE = [
    _differentiates("differentiates", "print('on')"),
    _differentiates("differentiates and fails", "raise ValueError('x')"),
    _differentiates(
        "a backward that fails", "y = x.exp().sum()\ny.backward()\ny.backward()\n", shell='exec "$@" 2>/dev/null'
    ),
    _differentiates(
        "differentiates at exit",
        """
        import atexit
        @atexit.register
        def last():
            (x * 3).sum().backward()
            print(x.grad.tolist())
        """,
    ),
    _differentiates(
        "differentiates in a thread to the end",
        """
        import threading, time
        def work():
            time.sleep(0.1)
            (x * 3).sum().backward()
            print(x.grad.tolist())
        threading.Thread(target=work).start()
        """,
    ),
    _differentiates(
        "differentiates after a fork",
        """
        import os
        pid = os.fork()
        if pid: os.waitpid(pid, 0)
        (x * 3).sum().backward()
        print(bool(pid), x.grad.tolist(), flush=True)
        """,
        env={"PYTHONWARNINGS": "ignore"},
    ),
    _differentiates(
        "differentiates in processes",
        """
        import multiprocessing as m
        def work(n):
            y = torch.tensor(float(n), requires_grad=True)
            (y * y).backward()
            return y.grad.item()
        if __name__ == '__main__':
            with m.get_context('fork').Pool(2) as p: print(p.map(work, range(4)))
        """,
        env={"PYTHONWARNINGS": "ignore"},
    ),
    _differentiates(
        "deletes its directory",
        """
        import os, shutil
        shutil.rmtree(os.getcwd())
        (x * 3).sum().backward()
        print(x.grad.tolist())
        """,
    ),
    _differentiates(
        "descriptors closed while it is recorded",
        """
        import os, time
        time.sleep(0.3)
        os.closerange(3, 4096)
        files = [open(f'{n}.txt', 'w') for n in range(6)]
        for n in range(40):
            (x * 3).sum().backward()
            time.sleep(0.01)
        for f in files: f.write('mine'); f.close()
        raise SystemExit(3)
        """,
    ),
    _differentiates(
        "a limit of a file's size while it is recorded",
        """
        import resource, signal, time
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        for n in range(3000):
            (x * 3).sum().backward()
        time.sleep(0.2)
        print('on')
        raise SystemExit(3)
        """,
    ),
    _differentiates("a message with a lone surrogate", r"raise KeyError('\udc80')"),
    _differentiates(
        "names with a lone surrogate",
        r"""
        from gradviz.engine import nn
        net = nn.Module()
        net.register_parameter('w\udc80', nn.Parameter(torch.ones(2)))
        M = type('M\ud800', (nn.Module,), {'forward': lambda self, x: x * 2})
        M()(net._parameters['w\udc80']).sum().backward()
        print('on')
        """,
    ),
    _differentiates(
        "sys.setswitchinterval", "import sys\nsys.setswitchinterval(1e-6)\n(x * 3).sum().backward()\nprint('on')"
    ),
    _differentiates(
        "pickles tensors at exit",
        "import atexit, pickle\nclass Net: pass\natexit.register(lambda: print(type(pickle.loads(pickle.dumps(Net()))).__name__))",
    ),
    _differentiates(
        "a RecursionError in a module",
        """
        from gradviz.engine import nn
        class M(nn.Module):
            def forward(self, x): return self(x)
        try:
            M()(x)
        except RecursionError:
            print('too deep')
        """,
    ),
]

TORCH_STEP = "import torch\nx = torch.ones(3, requires_grad=True)\n(x * x).sum().backward()\nprint(x.grad.tolist())\n"


def _torch(name: str, text: str, **settings: object) -> Odd:
    return Odd(f"torch: {name}", TORCH_STEP + textwrap.dedent(text), **settings)  # type: ignore[arg-type]


WITH_TORCH = [
    _torch("exits", "raise SystemExit(3)"),
    _torch("raises", "def f(): raise ValueError('x')\nf()"),
    _torch(
        "a subclass that counts its calls",
        """
        class Counted(torch.Tensor):
            calls = []
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                cls.calls.append(func.__name__)
                return super().__torch_function__(func, types, args, kwargs or {})
        w = torch.ones(3).as_subclass(Counted).requires_grad_()
        y = (w * 2).exp().sum()
        y.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        print(w, Counted.calls)
        """,
    ),
    _torch(
        "anomaly mode tells of a stack",
        """
        import torch.nn.functional as F
        def loss_of(x):
            return F.relu(x.sqrt() * 0).sum() + torch.nn.Linear(1, 1)(x[:1]).sum()
        try:
            with torch.autograd.detect_anomaly():
                loss_of(torch.zeros(2, requires_grad=True)).backward()
        except RuntimeError as error:
            print(error)
        """,
    ),
    _torch(
        "traced by torch.jit",
        """
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 2)
        traced = torch.jit.trace(torch.nn.Sequential(layer, torch.nn.ReLU()), torch.ones(1, 2))
        traced(torch.ones(3, 2)).sum().backward()
        print(traced.code, layer.weight.grad)
        """,
    ),
    _torch(
        "nested tensors of any length",
        """
        rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, requires_grad=True)
        layer = torch.nn.Linear(3, 2)
        layer(rows).values().sum().backward()
        print(rows.grad.values().shape, layer.bias.grad)
        """,
    ),
    _torch(
        "a mode that writes down each kernel",
        """
        from torch.utils._python_dispatch import TorchDispatchMode
        class Log(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                print(func)
                return func(*args, **(kwargs or {}))
        layer = torch.nn.Linear(2, 2)
        with Log():
            layer(torch.ones(3, 2)).sum().backward()
        """,
    ),
    _torch(
        "a mode that writes down each call, around a step",
        """
        from torch.overrides import TorchFunctionMode
        class Log(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                calls.append(getattr(func, "__name__", str(func)))
                return func(*args, **(kwargs or {}))
        calls = []
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
        with Log():
            layer(x[:2]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        layer(x[:2]).sum().backward()
        print(calls, torch.nn.Module.__call__.__name__)
        """,
    ),
    _torch(
        "a profiler counts ops and calls of modules",
        """
        import os
        from torch.profiler import ProfilerActivity, profile
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 90)).bfloat16()
        rows = torch.ones(80, 2, dtype=torch.bfloat16)
        os.close(2)  # it says when it starts
        for stacks in (False, True):
            with profile(activities=[ProfilerActivity.CPU], with_stack=stacks) as found:
                net(rows).T[::2].expand(2, 45, 80).pow(2).mean().backward()
            counts = {event.key: event.count for event in found.key_averages()}
            print(sorted(item for item in counts.items() if item[0].startswith(("aten::", "nn.Module"))))
        """,
    ),
    _torch(
        "a module without a hash",
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(3, 2)
            def __eq__(self, other): return NotImplemented
            def forward(self, x): return self.inner(x)
        torch.nn.Sequential(Net())(x).sum().backward()
        """,
    ),
    _torch(
        "tangents under vmap",
        """
        from torch.func import jvp, vmap
        one = lambda x, t: jvp(lambda x: (x * x).sum(), (x,), (t,))[1]
        print(vmap(one)(torch.ones(4, 3), torch.ones(4, 3)), torch.func.hessian(lambda x: (x**3).sum())(torch.ones(2)))
        """,
    ),
    _torch("an error of PyTorch's", "torch.ones(2, 3) @ torch.ones(2, 3)"),
    _torch("an error in a backward", "y = x.exp().sum()\ny.backward()\ny.backward()"),
    _torch(
        "an error in a function of one's own",
        """
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, g): raise KeyError('mine')
        F.apply(x).sum().backward()
        """,
    ),
    _torch("an exit in a hook", "import sys\ny = x * 2\ny.register_hook(lambda g: sys.exit(5))\ny.sum().backward()"),
    _torch(
        "interrupted in a hook",
        "def stop(g): raise KeyboardInterrupt\ny = x * 2\ny.register_hook(stop)\ny.sum().backward()",
    ),
    _torch(
        "at exit, and pickling",
        """
        import atexit, pickle
        class Net(torch.nn.Module): pass
        @atexit.register
        def last():
            (x * 3).sum().backward()
            print(x.grad.tolist(), type(pickle.loads(pickle.dumps(Net()))).__name__)
        """,
    ),
    _torch(
        "in a thread to the end",
        "import threading, time\ndef work():\n    time.sleep(0.1)\n    (x * 3).sum().backward()\n    print(x.grad.tolist())\nthreading.Thread(target=work).start()",
    ),
    _torch(
        "after a fork",
        "import os, warnings\nwarnings.simplefilter('ignore')\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
        "print((x * 3).sum().item(), bool(pid), flush=True)",
    ),
    _torch(
        "workers of a DataLoader",
        """
        import warnings
        from torch.utils.data import DataLoader
        warnings.simplefilter('ignore')
        if __name__ == '__main__':
            for batch in DataLoader(list(range(8)), batch_size=4, num_workers=2): print(batch)
        """,
    ),
    _torch(
        "saved and loaded",
        "import os\nos.mkdir('away')\nos.chdir('away')\ntorch.save({'x': x}, 'x.pt')\nprint(torch.load('x.pt')['x'], os.listdir())\nos.remove('x.pt')",
    ),
    _torch("a warning", "y = x * 2\nprint(y.grad)"),
    _torch(
        "descriptors closed",
        "import os, time\ntime.sleep(0.3)\nos.closerange(3, 4096)\n(x * 3).sum().backward()\nprint(open('out.txt', 'w').write('x'))",
    ),
    _torch(
        "deletes its directory", "import os, shutil\nshutil.rmtree(os.getcwd())\n(x * 3).sum().backward()\nprint('on')"
    ),
    _torch(
        "recursion",
        "class M(torch.nn.Module):\n    def forward(self, x): return self(x)\ntry: M()(x)\nexcept RecursionError: print('too deep')",
    ),
    _torch(
        "modes and threads",
        "import threading\nwith torch.no_grad(): print((x * 2).requires_grad, torch.is_grad_enabled())\nprint(threading.active_count(), torch.get_num_threads() > 0)",
    ),
]

# These only look, and change nothing that another would see: they run as one program.
_LOOK = {
    "the path", "the excepthook is Python's", "sys.settrace", "sys.setprofile", "cProfile", "sys.monitoring", "meta_path and hooks",
    "encodings", "line buffering", "is a terminal", "the loader", "flags", "the environment", "cwd", "limits",
    "the switch interval", "gc", "decimal and contextvars", "interned numbers", "pickle", "copyreg and dataclasses",
    "typing of one's own names", "the name of the process", "builtins untouched", "threads that are seen",
    "names of threads", "thread-locals", "gc finds objects", "stdin ends not", "shared memory",
    "os.system", "joins all threads", "an awaitable that is never awaited", "tracemalloc", "random numbers",
}  # fmt: skip
_EACH = [*ENDINGS, *HOOKS, *ATEXIT, *STREAMS, *MAIN, *THREADS, *PROCESSES, *LIMITS, *DIFFERENTIATE]
_LOOKING = [odd for odd in _EACH if odd.name in _LOOK]
_TOGETHER = Odd(
    "what a program sees", "\n".join(f"print({odd.name!r})\n{odd.source}" for odd in _LOOKING if odd.since == (3, 11))
)

SCRIPTS = [_TOGETHER, *(odd for odd in _EACH if odd not in _LOOKING)]
# What looks at how the interpreter itself begins, ends or is called: these need a Python of their own, not a fork.
OWN_PYTHON = {odd.name for odd in ATEXIT} | {
    "recursion without end", "sys.settrace to the end", "stderr closed", "a zip", "a zip by another name",
    "compiled code", "torch: anomaly mode tells of a stack", "stdout full", "descriptor 1 closed", "all closed", "globals",
    "the file by another way", "a module", "a module that is interrupted", "a module with a syntax error",
    "a warning of a level", "the recursion limit",
}  # fmt: skip
COUNT = len(_EACH) + len(WITH_TORCH)

# The debugger, without a breakpoint, on those where it could make a difference.
DEBUGGED = [*HOOKS, *THREADS, *LIMITS, *DIFFERENTIATE, *ENDINGS[:4], *ATEXIT[:8], *PROCESSES[4:12]]
DEBUG_DIFFERS = {
    "SIGINT": "Ctrl-C pauses it",
    "signal handlers": "Ctrl-C pauses it",
    "asyncio interrupted": "Ctrl-C pauses it",
    "SIGINT while it waits for a thread": "Ctrl-C pauses it",
    "deletes its directory": "what the debugger cannot show turns status 0 into 2",
    "a limit of descriptors": "what the debugger cannot show turns status 0 into 2",
}
