"""Requests that a browser makes for a page of another site, which must not reach queues that need no token."""

from collections.abc import Iterable
from ipaddress import ip_address

from common.http.answers import Header
from services.hqueue.problem import Problem

OWN = (b"same-origin", b"none")
"""What ``Sec-Fetch-Site`` says of a page of ours, and of what a user types."""


class Browsers:
    """Tells requests that pages of other sites make from those of programs and of our own pages.

    Browsers name the site that asks in ``Sec-Fetch-Site``, older ones in ``Origin``. A page can forge neither. A page
    whose name was made to lead to this machine (DNS rebinding) has that name in ``Host``: with ``only_known``, names
    other than localhost and ``hosts`` are refused. Addresses are served: a browser resolves no name for them.
    """

    def __init__(self, hosts: Iterable[str], *, only_known: bool) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._only_known = only_known or bool(self._hosts)
        self._judged: dict[bytes, bool] = {}

    def check(self, headers: Iterable[Header]) -> None:
        """Raise ``Problem`` for a request that a page of another site makes."""
        site = origin = host = None
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if host and self._only_known and not self._is_known(host):
            raise Problem(403, "Host: expected localhost, an address, or a name of the setting allowedHosts")
        if site is not None and site not in OWN:
            raise Problem(403, "Sec-Fetch-Site: pages of other sites are not served, see the setting tokens")
        if site is None and origin is not None and origin.lower().rpartition(b"//")[2] != (host or b"").lower():
            raise Problem(403, "Origin: pages of other sites are not served, see the setting tokens")

    def _is_known(self, host: bytes) -> bool:
        known = self._judged.get(host)
        if known is None:
            if len(self._judged) >= 1_000:
                self._judged.clear()
            known = self._judged[host] = self._may_name_us(_name_of(host.decode("latin-1").lower()))
        return known

    def _may_name_us(self, name: str) -> bool:
        if name in self._hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """Return a host without its port, and an address of IPv6 without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
