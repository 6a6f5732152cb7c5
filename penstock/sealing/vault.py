"""A master key in the transit engine of HashiCorp Vault or OpenBao, over HTTP."""

import asyncio
import binascii
import hmac
import http.client
import json
import re
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Final, Self
from urllib.parse import urlsplit

from penstock.base.errors import Unauthorized, Unavailable, WrongMasterKey
from penstock.base.log import Log
from penstock.base.secrets import FILE_SUFFIX, NoSecret, secret_in_file
from penstock.core.certificates import authorities

SECONDS: Final = 5.0
"""Longest wait for Vault at each step of a request."""
MOST_BYTES: Final = 65_536
"""Largest answer that is read."""
DIGEST_BYTES: Final = 32
TOKEN: Final = "VAULT_TOKEN"
"""Variable with the token; ``VAULT_TOKEN_FILE`` names a file, which is read for each request, since agents renew it."""
CERTIFICATES: Final = "VAULT_CACERT"
"""Variable with a file of certificates by which to know Vault's."""
_log: Final = Log("penstock.sealing")


class VaultKey:
    """Wraps with the newest version of a transit key. Wrapped is Vault's text: ``vault:v1:...``.

    The SHA-256 of the context is wrapped with the data key and compared afterwards, which any version of Vault can do.
    All methods raise ``Unauthorized`` if Vault refuses the token, ``WrongMasterKey`` if it does not have the key or
    cannot unwrap with it, and ``Unavailable`` for anything else.
    """

    def __init__(
        self, url: str, key: str, token: str | None, *, token_file: str | None = None, cacert: str | None = None
    ) -> None:
        """``url`` ends with the mount, e.g. ``https://vault:8200/transit``. Raise ``NoSecret``."""
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or not parts.path.strip("/"):
            raise NoSecret("Vault: expected vault:https://HOST:PORT/MOUNT/KEY")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise NoSecret("Vault: expected https, since data keys and the token would cross the network unencrypted")
        if not token and not token_file:
            raise NoSecret(f"Vault: no token: set {TOKEN}{FILE_SUFFIX} or {TOKEN}")
        self._host, self._port, self._mount, self._key = parts.hostname, parts.port, parts.path.strip("/"), key
        self._token, self._token_file = token, token_file
        try:
            self._trust = authorities(cacert, _log) if parts.scheme == "https" else None
        except OSError as error:
            raise NoSecret(f"Vault: {cacert} has no certificates: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"<VaultKey {self.id}>"

    @property
    def id(self) -> str:
        return f"vault:{self._host}/{self._mount}/{self._key}"

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Return the key at ``https://host:8200/transit/name``, with the token from ``environ``. Raise ``NoSecret``."""
        mount, _, key = url.rpartition("/")
        try:
            _ = urlsplit(url).port
        except ValueError:
            mount = ""
        if not re.fullmatch(r"https?://[^/?#]+(/[\w.-]+)+", mount) or not re.fullmatch(r"[\w.-]+", key):
            raise NoSecret("Vault: expected vault:https://HOST:PORT/MOUNT/KEY")
        token_file, cacert = environ.get(f"{TOKEN}{FILE_SUFFIX}"), environ.get(CERTIFICATES)
        return cls(mount, key, environ.get(TOKEN), token_file=token_file, cacert=cacert)

    async def wrap(self, plain: bytes, context: bytes) -> bytes:
        text = b64encode(sha256(context).digest() + plain).decode()
        return (await self._ask("encrypt", "ciphertext", plaintext=text)).encode()

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        text = await self._ask("decrypt", "plaintext", ciphertext=_text(wrapped))
        try:
            found = b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise WrongMasterKey("Vault: the answer is not base64") from None
        if not hmac.compare_digest(found[:DIGEST_BYTES], sha256(context).digest()):
            raise WrongMasterKey("wrapped for another owner or epoch")
        return found[DIGEST_BYTES:]

    async def rewrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the same data key, wrapped with the newest version of the key, without seeing it."""
        return (await self._ask("rewrap", "ciphertext", ciphertext=_text(wrapped))).encode()

    async def _ask(self, verb: str, field: str, **body: str) -> str:
        return await asyncio.to_thread(self._post, verb, field, body)

    def _post(self, verb: str, field: str, body: dict[str, str]) -> str:
        token = secret_in_file(self._token_file) if self._token_file else self._token
        headers = {"X-Vault-Token": str(token), "X-Vault-Request": "true", "Content-Type": "application/json"}
        connection = self._connect()
        try:
            connection.request("POST", f"/v1/{self._mount}/{verb}/{self._key}", json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"Vault at {self._host} cannot be reached: {_reason(error)}") from None
        except ValueError:  # of http.client, which would quote the header
            raise NoSecret("Vault: the token has characters that no HTTP header may have") from None
        finally:
            connection.close()
        return self._answer(answer.status, _parsed(content), verb, field)

    def _connect(self) -> http.client.HTTPConnection:
        if self._trust:
            return http.client.HTTPSConnection(self._host, self._port, timeout=SECONDS, context=self._trust.latest())
        return http.client.HTTPConnection(self._host, self._port, timeout=SECONDS)

    def _answer(self, status: int, answer: Any, verb: str, field: str) -> str:
        """Return ``field`` of an answer, or raise, without the words of Vault, which may quote what we sent."""
        place = f"Vault at {self._host}: {verb} with the key {self._mount}/{self._key}"
        if status in (401, 403):
            raise Unauthorized(f"{place}: the token is refused (status {status})")
        if status in (400, 404):
            raise WrongMasterKey(f"{place}: refused (status {status}): no such key, or not wrapped with it")
        found = answer.get("data") if isinstance(answer, dict) else None
        text = found.get(field) if isinstance(found, dict) else None
        if status != 200 or not isinstance(text, str):
            raise Unavailable(f"{place}: status {status}{', sealed' * (status == 503)}")
        return text


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _text(wrapped: bytes) -> str:
    if not re.fullmatch(rb"vault:v\d+:[A-Za-z0-9+/]+=*", wrapped):
        raise WrongMasterKey("not wrapped with a key of Vault")
    return wrapped.decode()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): see {CERTIFICATES}"
    words = error.strerror if isinstance(error, OSError) else None
    return words.lower() if words else type(error).__name__


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
