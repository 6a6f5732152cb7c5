"""What a request must keep to, beyond what the parser checks, and what happens to one that does not."""

import re
from collections.abc import Sequence
from typing import Final

from common.http.answers import Header
from common.http.limits import Limits

HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%-]+(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?").fullmatch
"""A host with or without a port."""
AUTHORITY: Final = re.compile(rb"\[?(.*?)\]?(?::([0-9]*))?").fullmatch
VERSIONS: Final = ("1.1", "1.0")


class Refused(Exception):
    """A request that is answered with ``status``, and ends its connection."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def authority_of(host: bytes, usual: int) -> tuple[bytes, int]:
    """Return the name in small letters, without the brackets of IPv6, and the port, ``usual`` without one."""
    found = AUTHORITY(host.lower())
    name, port = found.groups() if found else (host, b"")
    return name, int(port or usual)


def framing_of(name: bytes, value: bytes, limits: Limits) -> bytes:
    """Return the header that says that a body follows, empty if none does. Raise ``Refused``."""
    if name == b"transfer-encoding":
        if value.lower() != b"chunked":
            raise Refused(400, "Transfer-Encoding: expected chunked")
        return b"transfer-encoding: chunked"
    if int(value) > limits.body:
        raise Refused(413, f"the body is longer than {limits.body} bytes")
    return b"content-length: %b" % value if int(value) else b""


def check_head(method: bytes, url: bytes, version: str, headers: Sequence[Header], hosts: Sequence[bytes]) -> None:
    """Raise ``Refused`` for a head that breaks a rule; ``hosts`` are the values of ``Host``."""
    if version not in VERSIONS:
        raise Refused(505, "expected HTTP/1.1")
    if len(hosts) > 1 or (version == "1.1" and not hosts):
        raise Refused(400, "expected one Host")
    if hosts and hosts[0] and not HOST(hosts[0]):
        raise Refused(400, "Host: expected a name")
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        raise Refused(400, "Transfer-Encoding needs HTTP/1.1")
    if b"#" in url:
        raise Refused(400, "a target has no fragment")
    if url == b"*" and method != b"OPTIONS":
        raise Refused(400, "the target * is for OPTIONS")
    if method == b"CONNECT":
        raise Refused(400, "this is no proxy")
