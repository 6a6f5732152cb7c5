"""Processes in milliseconds: forked from one that has imported what they need already.

``python -m penstock.nursery SOCKET MODULE...`` imports the modules and then forks a process for every connection to
SOCKET that brings an order: the module to run as ``python -m`` would, its arguments, its environment, and its log. Each
has a keeper, which answers with its pid and, in the end, its exit status, and kills it if whoever asked is gone.
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


def order(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> bytes:
    """What to send over a connection; the answers are the pid and the exit status, a line each."""
    return json.dumps([module, list(arguments), dict(environment), str(log)]).encode() + b"\n"


def serve(path: str, modules: Sequence[str]) -> None:
    """Fork for every connection, until standard input ends with whoever started this."""
    for module in modules:
        with suppress(ImportError):  # whoever runs it hears of it
            import_module(module)
    gc.freeze()  # a process that ends does not look through all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no burial
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.unborn")
        listener.listen(64)
        Path(f"{path}.unborn").rename(path)
        orders = listener.fileno()
        while select.select([orders, sys.stdin.fileno()], [], [])[0] == [orders]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                keep(connection)
            connection.close()


def keep(connection: socket.socket) -> NoReturn:
    """Start what ``connection`` orders and stay beside it to its end."""
    ended, news = os.pipe()
    os.set_blocking(news, False)
    signal.set_wakeup_fd(news)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    module, arguments, environment, log = json.loads(connection.makefile().readline())
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        become(module, arguments, environment, log)
    connection.sendall(b"%d\n" % pid)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):  # whoever asked is gone
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def become(module: str, arguments: Sequence[str], environment: dict[str, str], log: str) -> NoReturn:
    """Be ``python -m module``, in a session of its own, with that environment and everything said in ``log``."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
