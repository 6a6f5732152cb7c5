"""Another site: the websockets that objects of its bus share."""

import ssl
from typing import Any, Final, Required, TypedDict
from urllib.parse import quote, urlsplit, urlunsplit

from penstock.base.errors import Unauthorized, WrongCall
from penstock.base.log import Log
from penstock.bus.federation.socket import MAX_FRAME, OPEN_SECONDS, Socket
from penstock.core.certificates import Certificates, authorities
from penstock.core.tasks import Tasks

_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_log: Final = Log("penstock.bus")


class SiteOptions(TypedDict, total=False):
    """How ``Bus.federate`` reaches another site."""

    secret: Required[str]
    secret_in_query: bool | None
    sockets: int | None
    tls: ssl.SSLContext | None


def check_options(options: SiteOptions) -> None:
    """Raise ``WrongCall`` for an option that does not exist, and without a ``secret``."""
    if unknown := options.keys() - SiteOptions.__annotations__.keys():
        known = ", ".join(SiteOptions.__annotations__)
        raise WrongCall(f"federate has no option {', '.join(sorted(unknown))}: expected some of {known}")
    if not isinstance(options.get("secret"), str):
        raise WrongCall("expected the secret of the other site as text (`secret=`)")


class Site:
    """Another site, by the URL of its gateway, with ``sockets`` websockets that its objects share."""

    def __init__(self, url: str, options: SiteOptions) -> None:
        secret, in_query, tls = options["secret"], bool(options.get("secret_in_query")), options.get("tls")
        sockets = 1 if (given := options.get("sockets")) is None else given
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise WrongCall(f"expected the URL of a gateway such as wss://host/bus, found {url!r}")
        if sockets < 1:
            raise WrongCall(f"sockets={sockets}: expected at least 1")
        self._given: dict[str, Any] = {"secret_in_query": in_query, "sockets": sockets, "tls": tls}
        self.url = url
        scheme = _SCHEMES[parts.scheme]
        query = f"secret={quote(secret, safe='')}" if in_query else parts.query
        self.address = urlunsplit((scheme, parts.netloc, parts.path or "/", query, ""))
        self.options: dict[str, Any] = {
            "max_size": MAX_FRAME,
            "max_queue": 64,
            "open_timeout": OPEN_SECONDS,
            "close_timeout": 2,
            "ping_interval": None,
            "compression": None,
            "user_agent_header": None,
            "additional_headers": {} if in_query else {"Authorization": f"Bearer {secret}"},
        }
        self._tls = (tls or authorities(None, _log)) if scheme == "wss" else None
        self.refused: Unauthorized | None = None
        self._links = [Socket(self) for _ in range(sockets)]
        self._tasks = Tasks()

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context of the next websocket; None if it is not encrypted."""
        return self._tls.latest() if isinstance(self._tls, Certificates) else self._tls

    def check_same(self, options: SiteOptions) -> None:
        """Raise ``WrongCall`` for an option that differs: the websockets are open already."""
        for name, value in self._given.items():
            if (given := options.get(name)) is not None and given != value:
                raise WrongCall(f"{name} differs from the first `federate` for {self.url}: pass the same, or none")

    def start(self) -> None:
        """Open the websockets."""
        for link in self._links:
            self._tasks.begin(link.keep())

    async def close(self) -> None:
        """Close the websockets."""
        await self._tasks.cancel()

    @property
    def link(self) -> Socket:
        """Return the websocket that has the fewest channels."""
        return min(self._links, key=lambda each: len(each.remotes))

    def refuse(self, error: Unauthorized) -> None:
        """Tell all objects that the other site refuses the secret."""
        self.refused = error
        for remote in [remote for link in self._links for remote in link.remotes.values()]:
            remote.note_refused(error)
