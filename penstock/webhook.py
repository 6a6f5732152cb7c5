"""Sign and verify webhooks as Standard Webhooks 1.0 has it: HMAC-SHA256 of id, time and body.

from penstock.webhook import verify
outcome = verify(request.headers, request.body, "whsec_...")
"""

import hmac
import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from penstock.base.errors import PenstockError

PREFIX: Final = "whsec_"
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = 300.0
"""Seconds by which the clocks of both ends may differ, the way of the message included."""


class ForgedWebhook(PenstockError):
    """A webhook is not signed with the secret, or too old; the message says which and shows nothing of the secret."""


def owner_secret(root: str, owner: str) -> str:
    """Return the secret (``whsec_...``) with which the receivers of ``owner`` know our webhooks, made of ``root``."""
    digest = hmac.digest(root.encode(), b"penstock webhook\0" + owner.encode(), sha256)
    return PREFIX + b64encode(digest).decode()


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return a signature, ``v1,...``; ``timestamp`` is in seconds since the epoch."""
    key = b64decode(secret.removeprefix(PREFIX))
    return (
        "v1,"
        + b64encode(hmac.digest(key, b"%b.%d.%b" % (id.encode(errors="replace"), timestamp, body), sha256)).decode()
    )


def verify(headers: Mapping[str, str], body: bytes, secret: str, *, tolerance: float = TOLERANCE) -> Any:
    """Return the JSON of a webhook. Raise ``ForgedWebhook`` if it does not come from who has ``secret``.

    The same webhook may come twice: its ``webhook-id`` is the same then.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        raise ForgedWebhook(f"the webhook has no header {missing[0]}")
    text = given[TIMESTAMP]
    if not re.fullmatch("[0-9]{1,15}", text) or abs(time.time() - int(text)) > tolerance:
        raise ForgedWebhook(f"{TIMESTAMP}: expected seconds since the epoch, at most {tolerance:g} s from now")
    expected = sign(secret, given[ID], int(text), body).encode()
    if not any(hmac.compare_digest(each.encode(errors="replace"), expected) for each in given[SIGNATURE].split(" ")):
        raise ForgedWebhook(f"{SIGNATURE}: not signed with this secret")
    return json.loads(body)
