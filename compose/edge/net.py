"""The network between the sites: each is reached through a port here, and can be taken off the net."""

from contextlib import AsyncExitStack
from typing import Self

from penstock.testing.proxy import CHUNK_BYTES, Proxy, ProxyConnection, Stream


class Net:
    """Forwards connections; who opened one is known by the address that its first bytes show."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """Where others reach a site, by its name."""
        self.refused = 0
        """Connections that were not let through."""
        self.cut_off = set[str]()
        self._proxies = list[Proxy]()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def add(self, name: str, port: int) -> str:
        """Return the address at which others reach the site ``name``, which listens at ``port`` of 127.0.0.1."""
        proxy = await self._stack.enter_async_context(_Entry(self, name, port))
        self._proxies.append(proxy)
        self.addresses[name] = proxy.address
        return proxy.address

    def cut(self, name: str) -> None:
        """Take ``name`` off the net: end its connections, those to it and those from it, and refuse new ones."""
        self.cut_off.add(name)
        for connection in [each for proxy in self._proxies for each in proxy.connections]:
            if isinstance(connection, _Call) and name in connection.sites:
                connection.close()

    def mend(self, name: str) -> None:
        self.cut_off.discard(name)


class _Entry(Proxy):
    """The port at which others reach one site."""

    def __init__(self, net: Net, name: str, port: int) -> None:
        super().__init__(port)
        self._net, self._name = net, name

    def connection(self, here: Stream) -> ProxyConnection:
        return _Call(self, here, self._net, self._name)


class _Call(ProxyConnection):
    """A connection from one site to another; ``sites`` are their names, as far as they are known."""

    def __init__(self, proxy: Proxy, here: Stream, net: Net, name: str) -> None:
        super().__init__(proxy, here)
        self._net, self.sites = net, {name}

    async def run(self, port: int, first: bytes = b"") -> None:
        first = await self._here[0].read(CHUNK_BYTES)
        self.sites |= {name for name, address in self._net.addresses.items() if address.encode() in first}
        if self.sites & self._net.cut_off:
            self._net.refused += 1
        else:
            await super().run(port, first)

    def end(self) -> None:
        self.close()
