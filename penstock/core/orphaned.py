"""A watchdog, which ends a process as soon as the process that started it is gone."""

import signal
import subprocess
from typing import Final

HELD: Final = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh")
"""Words before those of a command, which hold it until a line comes on stdin: send one when it has a watchdog.

If the process that started it is killed before, the command never runs.
"""


class Watchdog:
    """Send ``number`` to process ``pid`` and to its process group if this process ends before ``release`` is called.

    A shell waits at a pipe whose other end only this process has: the kernel closes that end even after SIGKILL.
    """

    def __init__(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        name = number.name.removeprefix("SIG")
        words = ["/bin/sh", "-c", f"read -r _ || kill -s {name} -- -{pid} {pid}"]
        self._shell = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def release(self) -> None:
        """Forget the process; call this as soon as it has ended, since its id may be given to another one."""
        if self._shell.returncode is None:
            self._shell.communicate(b"\n")
