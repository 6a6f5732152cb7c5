"""The handshake of two outboxes, without a socket: hello, hello, and with a shared secret proof, proof.

The connector proves first that it knows the secret, so that a stranger who connects learns nothing to guess it by.
Each proof is about both hellos as they were sent (both addresses, both nonces, the limits) and the role of its sender:
one of another connection, or of the other side, is not valid.
"""

from penstock.base import errors
from penstock.base.errors import PenstockError
from penstock.outbox.frames import HEADER, Kind, Violation, frame, reason_in, unpacked
from penstock.outbox.hello import Hello, Identity, Limits, hello, hello_in, host_and_port
from penstock.outbox.security import Security

CONNECTOR = b"connector"
LISTENER = b"listener"


class WireError(PenstockError):
    """A connection to another outbox failed; the message says why."""


class Disconnected(WireError, errors.Disconnected):
    """The connection has ended: lost, silent for too long, or closed by either side with a reason."""


class Refused(Disconnected):
    """The other side refuses the handshake, or we do; ``kind`` is what a listener counts, e.g. ``secret``."""

    def __init__(self, reason: str, kind: str = "refused") -> None:
        super().__init__(reason)
        self.kind = kind


class RefusedByThem(Refused):
    """The other side refuses the handshake: it needs no answer."""


class Handshake:
    """One side of a handshake. Feed it frames; what it returns is to be sent."""

    theirs: Hello
    """What the other side has said; from ``take`` on."""

    def __init__(
        self, identity: Identity, security: Security, limits: Limits, dialled: str | None, names: frozenset[str]
    ) -> None:
        """``dialled`` is the address for a connector, None for a listener; ``names`` are of the other's certificate."""
        self._identity, self._security, self._dialled, self._names = identity, security, dialled, names
        self._role, self._other = (LISTENER, CONNECTOR) if dialled is None else (CONNECTOR, LISTENER)
        self._ours = hello(identity, limits, wanted=dialled or "", has_secret=security.has_secret)
        self._greeted = False
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is to be sent first."""
        return b"" if self._dialled is None else self._ours

    def take(self, kind: int, body: bytes) -> bytes:
        """Take a frame and return what is to be sent. Raise ``Violation``; ``Refused`` if either side refuses."""
        if kind == Kind.BYE:
            raise RefusedByThem(f"the other side refuses: {reason_in(body)}")
        if kind == Kind.HELLO and not self._greeted:
            return self._take_hello(hello_in(body))
        if kind == Kind.PROOF and self._greeted:
            return self._take_proof(unpacked(body))
        raise Violation("a frame came that has no place in the handshake")

    def _take_hello(self, found: Hello) -> bytes:
        self._greeted, self.theirs = True, found
        self._require_alike(found)
        self._require_name(found)
        self.is_done = not self._security.has_secret
        if self._dialled is None:
            return self._ours
        return b"" if self.is_done else self._proof()

    def _take_proof(self, found: object) -> bytes:
        if not isinstance(found, bytes) or not self._security.proves(found, self._other, *self._hellos()):
            raise Refused("the shared secret is another", "secret")
        self.is_done = True
        return self._proof() if self._dialled is None else b""

    def _require_alike(self, found: Hello) -> None:
        if found.has_secret == self._security.has_secret:
            return
        expected = "a shared secret" if self._security.has_secret else "no shared secret"
        raise Refused(f"expected {expected}: both sides must be set up alike", "secret")

    def _require_name(self, found: Hello) -> None:
        """Raise ``Refused`` if somebody led the connection elsewhere, or the other side says that it is another."""
        there = found.identity.address
        if self._security.has_secret:
            dialled, answers = (
                (found.wanted, self._identity.address) if self._dialled is None else (self._dialled, there)
            )
            if dialled != answers:
                raise Refused(f"{dialled} was dialled, but who answers is {answers or 'nobody'}", "address")
        if self._dialled is None and self._security.asks_certificate and there:
            host, _ = host_and_port(there)
            if host not in self._names:
                raise Refused(f"it says that it is {there}, but its certificate is not for {host}", "certificate")

    def _hellos(self) -> tuple[bytes, bytes]:
        """Return the bodies of the connector's hello and of the listener's."""
        ours, theirs = self._ours[HEADER.size :], self.theirs.body
        return (theirs, ours) if self._dialled is None else (ours, theirs)

    def _proof(self) -> bytes:
        return frame(Kind.PROOF, self._security.proof(self._role, *self._hellos()))
