"""Processes in milliseconds: forked from one that has imported what they need already.

``python -m penstock.testing.forkserver MODULE...`` imports the modules and then forks a process for every connection
that comes over the socket which is its standard input, and brings an order: the module to run as ``python -m`` would,
its arguments, its environment, and its log. Each has a keeper, which answers with its pid and, in the end, its exit
status, and kills it if whoever asked is gone.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn


def keeper(fork_server: socket.socket) -> socket.socket:
    """A connection to a new one; ``fork_server`` is the other end of a fork server's standard input.

    Raises ``OSError`` where that has ended.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(fork_server, [b"."], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return ours


def order(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> bytes:
    """What to send to a keeper; the answers are the pid and the exit status, a line each, or nothing without either."""
    return json.dumps([module, list(arguments), dict(environment), str(log)]).encode() + b"\n"


def serve(modules: Sequence[str]) -> None:
    """Fork for every connection, until the socket ends with whoever started this."""
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for module in modules:
        with suppress(ImportError):  # whoever runs it hears of it
            import_module(module)
    gc.freeze()  # a process that ends does not look through all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no burial
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                control.close()
                keep(connection)


def keep(connection: socket.socket) -> NoReturn:
    """Start what ``connection`` orders and stay beside it to its end."""
    ended, news = os.pipe()
    os.set_blocking(news, False)
    signal.set_wakeup_fd(news)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        module, arguments, environment, log = json.loads(connection.makefile().readline())
        said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except (ValueError, OSError):  # whoever asked is gone, with or without the folder of the log
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        become(module, arguments, environment, said)
    if not _tell(connection, pid) or ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _tell(connection: socket.socket, number: int) -> bool:
    """Whether somebody is there to hear it."""
    try:
        connection.sendall(b"%d\n" % number)
    except OSError:
        return False
    return True


def become(module: str, arguments: Sequence[str], environment: dict[str, str], said: int) -> NoReturn:
    """Be ``python -m module``, in a session of its own, with that environment and everything written to ``said``."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])
