"""A fork server, which starts Python processes in milliseconds: it has imported what they need already.

``python -m penstock.testing.forkserver MODULE...`` imports the modules and reads its standard input, a socket. For each
connection that arrives over it, it forks a supervisor, which reads one command: a module to run as ``python -m`` would,
its arguments, its environment and its log. The supervisor forks that process, answers with its pid and then with its
exit status, and kills it as soon as the other end of the connection is closed.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Self


class ForkServer:
    """A fork server that has imported ``modules``.

    It runs in a session of its own: a signal to the process group of its user must not end a supervisor alone.
    """

    def __init__(self, *modules: str) -> None:
        self._control, control = socket.socketpair()
        with control:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.testing.forkserver", *modules],
                stdin=control.fileno(),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def run(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> socket.socket:
        """Return a connection that gives the pid and the exit status, a line each; closing it kills the process.

        The connection gives nothing if the process cannot be started. Raise ``OSError`` if the fork server has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
                command = [module, list(arguments), dict(environment), str(log)]
                ours.sendall(json.dumps(command).encode() + b"\n")
            except OSError:
                ours.close()
                raise
        return ours

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


def serve(modules: Sequence[str]) -> None:
    """Fork a supervisor for each connection, until the process that holds the other end of the socket is gone."""
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for module in modules:
        with suppress(ImportError):  # the process that runs it reports it
            import_module(module)
    gc.freeze()  # a process that ends does not look through all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                control.close()
                supervise(connection)


def supervise(connection: socket.socket) -> NoReturn:
    """Start the process that ``connection`` asks for and wait for its end, or kill it once ``connection`` is closed."""
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        module, arguments, environment, log = json.loads(connection.makefile().readline())
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except (ValueError, OSError):  # the other end is closed, perhaps with the folder of the log removed
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        run_module(module, arguments, environment, output)
    if not _send(connection, pid) or ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _send(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _send(connection: socket.socket, number: int) -> bool:
    """Return False if the other end of ``connection`` is closed."""
    try:
        connection.sendall(b"%d\n" % number)
    except OSError:
        return False
    return True


def run_module(module: str, arguments: Sequence[str], environment: dict[str, str], output: int) -> NoReturn:
    """Be ``python -m module``, in a session of its own, with that environment, and write everything to ``output``."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])
