"""Proxies that are trusted to say where a request came from."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from common.http.answers import Header, is_forwarded


class Proxies:
    """The addresses of trusted proxies, given as addresses or networks."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [ip_network(each, strict=False) for each in trusted]
        self._known: dict[str, bool] = {}

    def __contains__(self, address: object) -> bool:
        """Return whether ``address`` is that of a trusted proxy."""
        if not isinstance(address, str) or not self._networks:
            return False
        known = self._known.get(address)
        if known is None:
            if len(self._known) > 10_000:
                self._known.clear()
            known = self._known[address] = self._is_in(address)
        return known

    def _is_in(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)

    def forwarded(self, headers: list[Header], address: str) -> list[Header]:
        """Return ``headers`` with the client's ``address`` added to ``x-forwarded-for``.

        Remove what only a proxy may say, unless the address is that of a trusted one.
        """
        trusted = address in self
        kept = headers if trusted else [pair for pair in headers if not is_forwarded(pair[0])]
        chain = [value for name, value in kept if name == b"x-forwarded-for"] if trusted else []
        if chain:
            kept = [pair for pair in kept if pair[0] != b"x-forwarded-for"]
        return [*kept, (b"x-forwarded-for", b", ".join([*chain, address.encode()]))]
