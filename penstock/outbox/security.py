"""Who may connect, who we are to them, and who may subscribe to what."""

import hashlib
import hmac
import ipaddress
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from penstock.base.log import Log
from penstock.base.secrets import secret_in_file
from penstock.core.certificates import Certificates

MIN_SECRET_BYTES: Final = 16
LABEL: Final = b"penstock outbox 1"
log = Log("outbox")


class Security:
    """How two outboxes prove to each other who they are. Constructors: ``tls``, ``shared``, ``shared_in``, ``none``.

    With ``tls`` both sides show a certificate of ``authority``, and the host of a peer's address must be a name in its
    certificate. With ``shared`` both prove that they know the same secret, which is never sent. Nothing is encrypted
    then, and who can change packets on their way can add messages: use ``tls`` with a secret if others use the network.
    With ``none`` anybody can connect: it works on loopback only, unless ``insecure``.
    """

    def __init__(
        self,
        *,
        server: ssl.SSLContext | None = None,
        client: ssl.SSLContext | None = None,
        secret: str | bytes | None = None,
        insecure: bool = False,
    ) -> None:
        """Raise ``ValueError`` if the secret is shorter than ``MIN_SECRET_BYTES``, or one context is given alone."""
        if (server is None) != (client is None):
            raise ValueError("expected a context for the server and one for the client, or neither")
        self.server, self.insecure = server, insecure
        self._latest: Callable[[], ssl.SSLContext | None] = lambda: client
        self._secret = secret.encode() if isinstance(secret, str) else secret
        if self._secret is not None and len(self._secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the shared secret is shorter than {MIN_SECRET_BYTES} bytes: expected a random one")

    @classmethod
    def tls(cls, certificate: str | Path, key: str | Path, authority: str | Path, secret: str | None = None) -> Self:
        """Read PEM files: our certificate and key, and those who sign the certificates of peers.

        They are read again for a connection after they have changed.

        Raise ``OSError`` (``ssl.SSLError`` is one) if a file cannot be used.
        """

        def context(purpose: ssl.Purpose) -> ssl.SSLContext:
            made = ssl.create_default_context(purpose, cafile=authority)
            made.verify_mode = ssl.CERT_REQUIRED
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            made.load_cert_chain(certificate, key)
            return made

        server, client = (
            Certificates(partial(context, purpose), certificate, key, authority, log=log)
            for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
        )
        found = cls(server=server.port(), client=client.latest(), secret=secret)
        found._latest = client.latest
        return found

    @classmethod
    def shared(cls, secret: str | bytes) -> Self:
        """Take a secret of ``MIN_SECRET_BYTES`` or more that all peers have."""
        return cls(secret=secret)

    @classmethod
    def shared_in(cls, file: str) -> Self:
        """Read the secret from ``file``. Raise ``NoSecret``."""
        return cls(secret=secret_in_file(file))

    @classmethod
    def none(cls, *, insecure: bool = False) -> Self:
        """Ask nobody for anything: on loopback, or anywhere if ``insecure``."""
        return cls(insecure=insecure)

    @property
    def client(self) -> ssl.SSLContext | None:
        """The context for a connection that is made now."""
        return self._latest()

    def __repr__(self) -> str:
        kinds = [name for name, has in (("TLS", self.server), ("a shared secret", self._secret)) if has]
        return f"<Security: {' and '.join(kinds) or 'none'}>"

    @property
    def has_secret(self) -> bool:
        return self._secret is not None

    @property
    def asks_certificate(self) -> bool:
        """Whether a listener requires certificates of those who connect."""
        return self.server is not None and self.server.verify_mode == ssl.CERT_REQUIRED

    def require_allowed(self, host: str) -> None:
        """Raise ``ValueError`` if nothing protects a connection to or from ``host`` and it may not be so."""
        if self.server is None and self._secret is None and not self.insecure and not is_loopback(host):
            raise ValueError(
                f"{host} is not on loopback and nothing says who may connect: expected TLS or a shared secret, "
                "or insecure"
            )

    def proof(self, role: bytes, connector: bytes, listener: bytes) -> bytes:
        """Return what proves that a side in this ``role`` knows the secret.

        ``connector`` and ``listener`` are the bodies of both hellos, as sent: they have the nonces and the addresses.
        """
        if self._secret is None:
            raise ValueError("no secret")
        digests = [hashlib.sha256(part).digest() for part in (LABEL, role, connector, listener)]
        return hmac.digest(self._secret, b"".join(digests), "sha256")

    def proves(self, found: bytes, role: bytes, connector: bytes, listener: bytes) -> bool:
        """Return whether ``found`` is that ``proof``, in a time that does not depend on where they differ."""
        return hmac.compare_digest(found, self.proof(role, connector, listener))


class Allowed:
    """Who may subscribe to what, and on whose behalf (``_subscribe``, ``_unsubscribe`` and the like).

    ``subscribe`` has the keys for each peer, ``behalf`` the addresses that a peer may name besides its own. Peers, keys
    and addresses are exact, or a beginning with ``*`` at its end. A peer is its address, or a name in its certificate.
    Without ``subscribe`` all peers may subscribe to all keys, without ``behalf`` only for themselves.
    """

    def __init__(
        self,
        subscribe: Mapping[str, Iterable[str]] | None = None,
        behalf: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._subscribe = None if subscribe is None else {peer: tuple(keys) for peer, keys in subscribe.items()}
        self._behalf = {peer: tuple(addresses) for peer, addresses in (behalf or {}).items()}

    def refusal(self, peer: str, names: Collection[str], keys: Iterable[str], address: str) -> str | None:
        """Return why the peer at ``peer`` with ``names`` may not subscribe ``address`` to ``keys``; None if it may."""
        known = {peer, *names}
        if address != peer and not _grants(self._behalf, known, address):
            return f"{peer or 'a peer without an address'} may not subscribe for {address}"
        if self._subscribe is not None:
            for key in keys:
                if not _grants(self._subscribe, known, key):
                    return f"{peer or 'a peer without an address'} may not subscribe to {key}"
        return None


def _grants(rules: Mapping[str, Iterable[str]], peers: Collection[str], wanted: str) -> bool:
    return any(
        any(matches(rule, peer) for peer in peers) and any(matches(pattern, wanted) for pattern in patterns)
        for rule, patterns in rules.items()
    )


def matches(pattern: str, text: str) -> bool:
    """Return whether ``text`` is ``pattern``, or begins as ``pattern`` does before its final ``*``."""
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the host names and addresses of a certificate (``getpeercert``); its common name if it has none."""
    found = {value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")}
    common = {value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"}
    return frozenset(found or common)
