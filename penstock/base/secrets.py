"""Read secrets from files or environment variables, to keep them off command lines, which ``ps`` shows."""

import errno
import os
import re
import stat
from collections.abc import Mapping
from typing import Final

from penstock.base.errors import PenstockError

FILE_SUFFIX: Final = "_FILE"
"""Suffix of a variable that names a file with the value."""
MAX_SECRET_BYTES: Final = 65_536
"""Largest size of such a file."""


class NoSecret(PenstockError):
    """A value cannot be read from its source; the message says why and shows nothing of the value."""


def read_at_most(file: str, largest: int, *, private: bool = False) -> bytes:
    """Return the content of ``file``, at most ``largest + 1`` bytes. Raise ``OSError``; never wait for a writer.

    With ``private``, refuse a file that anyone but its owner may read or change.
    """
    with open(file, "rb", opener=_regular) as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        if private and mode & 0o077:
            raise OSError(errno.EACCES, f"its mode is {mode:04o}, so others may use it: expected 0400 or 0600")
        return stream.read(largest + 1)


def _regular(name: str, flags: int) -> int:
    """Open only a regular file. Opening a FIFO without a writer would block."""
    number = os.open(name, flags | os.O_NONBLOCK)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "Is a directory" if stat.S_ISDIR(mode) else "not a regular file")
    return number


def secret_in_file(file: str) -> str:
    """Return the text in ``file`` without its last line end. Raise ``NoSecret``."""
    place = "the file" if re.search(r"://|@", file) else file  # the value itself, given by mistake
    try:
        found = read_at_most(file, MAX_SECRET_BYTES)
        if len(found) > MAX_SECRET_BYTES:
            raise NoSecret(f"{place} is longer than {MAX_SECRET_BYTES} bytes: expected one value")
        text = found.decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise NoSecret(f"{place} cannot be read: {error.strerror}") from None
    except ValueError:
        raise NoSecret(f"{place} is not UTF-8") from None
    if not text:
        raise NoSecret(f"{place} is empty: expected one value")
    return text


def resolve_reference(text: str, environ: Mapping[str, str]) -> str:
    """Return ``text``, or the value that it refers to as ``@FILE`` or ``env:NAME``. Raise ``NoSecret``."""
    if text.startswith("@"):
        return secret_in_file(text[1:])
    if text.startswith("env:"):
        if value := environ.get(text[4:]):
            return value
        raise NoSecret(f"the variable {text[4:]} is empty or not set: expected a URL in it")
    return text


def is_reference(text: str) -> bool:
    """Return True if ``text`` is a URL or a reference to one, not the name of a file."""
    return "://" in text or text.startswith(("@", "env:"))


def without_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without each ``X_FILE`` for which ``X`` is set, e.g. by an option."""
    beside = {f"{name}{FILE_SUFFIX}" for name, value in environ.items() if value}
    return {name: value for name, value in environ.items() if name not in beside}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a container's ``environ`` with a stand-in for each URL or secret in a file that only the container has.

    That of a URL is a server with the file's name.
    """
    seen = {}
    for name, value in environ.items():
        missing = name.endswith(FILE_SUFFIX) and not os.path.isfile(value)  # noqa: PTH113
        if missing and name.endswith(f"REDIS{FILE_SUFFIX}"):
            seen[name.removesuffix(FILE_SUFFIX)] = f"redis://{value.rpartition('/')[2]}:6379/0"
        elif missing and name.endswith(f"SECRET{FILE_SUFFIX}"):
            seen[name.removesuffix(FILE_SUFFIX)] = f"in the file {value}"
        else:
            seen[name] = value
    return seen
