"""The client of tests/warm.py. It imports next to nothing, since it starts a thousand times: `typing` alone would take
as long as all else that it does."""

import _signal
import _socket
import os
import sys

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def ask(socket: str, arguments: list[str]) -> None:
    """Have the server start a program, pass signals on to it, and end as it ends."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(socket)
    except OSError:  # the server has ended
        os.execv(sys.executable, [sys.executable, *arguments])
    mask = os.umask(0)
    words = [os.getcwd(), str(mask), str(len(arguments)), *arguments]
    parts = [*map(os.fsencode, words), *(b"%b=%b" % item for item in os.environb.items())]
    request = b"\0".join(parts)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    connection.sendmsg([len(request).to_bytes(4)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    connection.sendall(request)
    program = int.from_bytes(connection.recv(4))
    if not program:  # it needs an interpreter of its own
        os.umask(mask)
        os.execv(sys.executable, [sys.executable, *arguments])
    for name in FORWARDED:
        number = getattr(_signal, name)
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: os.kill(program, number))
    for stream in range(3):  # the program alone keeps them open
        os.close(stream)
    status = int.from_bytes(connection.recv(4), signed=True)
    if status < 0:
        if status != -_signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
