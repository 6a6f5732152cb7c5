"""The token of one attempt of a task: who has it may end that attempt, and no other."""

import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import NamedTuple

DIGEST_BYTES = 18


class Attempt(NamedTuple):
    """What a token is for."""

    id: str
    attempt: int


class TaskTokens:
    """Makes and checks tokens with ``key``, which all instances of a namespace share."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def make(self, queue: str, id: str, attempt: int) -> str:
        """Return the token of an attempt of task ``id`` of ``queue``."""
        return f"{id}.{attempt}.{self._digest(queue, id, attempt)}"

    def read(self, queue: str, token: object) -> Attempt | None:
        """Return what ``token`` is for; None if it is not one of ``queue`` that ``make`` has returned."""
        if not isinstance(token, str) or len(token) > 100 or not token.isascii():
            return None
        id, _, rest = token.partition(".")
        attempt, _, _ = rest.partition(".")
        if not (id.isdigit() and attempt.isdigit()):
            return None
        found = Attempt(id, int(attempt))
        return found if hmac.compare_digest(token, self.make(queue, *found)) else None

    def _digest(self, queue: str, id: str, attempt: int) -> str:
        found = hmac.digest(self.key, f"{queue} {id} {attempt}".encode(), sha256)
        return urlsafe_b64encode(found[:DIGEST_BYTES]).decode()
