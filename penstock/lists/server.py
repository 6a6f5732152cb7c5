"""The server of lists, and how its consumers and producers call it."""

from typing import Final

from penstock.base.errors import WrongCall
from penstock.base.log import Log
from penstock.base.urls import server_url
from penstock.core.connection import connect
from penstock.core.patience import Patience

NAME: Final = "penstock-lists"
"""Name of the connections in CLIENT LIST."""


class Server:
    """A client for ``url``, with patience (s) for calls; a consumer that sends nothing lives for ``lease`` (s)."""

    def __init__(self, url: str, patience: float | None, lease: float, log: Log) -> None:
        try:
            server_url(url)
        except ValueError as error:
            raise WrongCall(str(error)) from None
        if not 1 <= lease <= 86_400:
            raise WrongCall(f"lease={lease}: expected seconds from 1 to 86400")
        self.url, self.lease, self.patiently = url, lease, Patience(patience, log)
        self.redis = connect(url, name=NAME)
