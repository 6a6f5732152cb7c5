"""TLS contexts of certificates, keys and authorities whose files may be replaced while they are in use."""

import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class Certificates:
    """The context that ``make`` makes of ``files``, and another one once they have changed.

    Raise ``OSError`` (``ssl.SSLError`` is one) if they cannot be used at first. Later the former context stays in use
    until they can: a certificate and its key are rarely replaced at one instant.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], *files: str | os.PathLike[str], log: Any) -> None:
        self._make, self._files, self._log = make, files, log
        self._versions = versions_of(*files)
        self._latest = make()

    def latest(self) -> ssl.SSLContext:
        """Return the context of the files as they are, or were when they could be used."""
        versions = versions_of(*self._files)
        if versions != self._versions:
            self._versions = versions
            try:
                self._latest = self._make()
            except OSError as error:
                self._log.warning("certificate not renewed", reason=str(error))
            else:
                self._log.info("certificate renewed", file=str(next(iter(self._files), "the system's")))
        return self._latest

    def port(self) -> ssl.SSLContext:
        """Return a context for a port, each of whose handshakes is that of the ``latest`` context."""
        context = self._make()
        context.sni_callback = self._use_latest
        return context

    def _use_latest(self, connection: ssl.SSLSocket | ssl.SSLObject, *_: Any) -> None:
        connection.context = self.latest()


def authorities(cafile: str | None, log: Any) -> Certificates:
    """Return contexts of clients that trust those in ``cafile``, by default the system's."""
    files = [cafile] if cafile else []
    return Certificates(partial(ssl.create_default_context, cafile=cafile), *files, log=log)


def versions_of(*files: str | os.PathLike[str] | None) -> list[tuple[int, int, int] | None]:
    """Return what differs once one of ``files``, or the system's authorities, is written anew, or replaced.

    None stands for one that does not exist.
    """
    found, system = list[tuple[int, int, int] | None](), ssl.get_default_verify_paths()
    for file in (*files, system.cafile, system.capath):
        try:
            status = Path(file).stat() if file else None
        except OSError:
            status = None
        found.append((status.st_mtime_ns, status.st_size, status.st_ino) if status else None)
    return found
