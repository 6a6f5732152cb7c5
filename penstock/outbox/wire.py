"""Connections between outboxes: ``listen`` and ``connect`` return authenticated peers."""

import asyncio
import os
import ssl

from penstock.outbox.frames import Acknowledged, MessageFrame, Violation
from penstock.outbox.handshake import Disconnected, Refused, WireError
from penstock.outbox.hello import Identity, Limits, host_and_port, is_address
from penstock.outbox.listener import Listener, OnPeer, listen
from penstock.outbox.peer import Peer
from penstock.outbox.security import Allowed, Security

__all__ = [
    "Acknowledged", "Allowed", "Disconnected", "Identity", "Limits", "Listener", "MessageFrame", "OnPeer", "Peer",
    "Refused", "Security", "Violation", "WireError", "connect", "host_and_port", "is_address", "listen",
]  # fmt: skip


async def connect(
    address: str, identity: Identity, security: Security, *, limits: Limits | None = None, receives: bool = False
) -> Peer:
    """Connect to ``address`` (host:port); messages from there break the protocol unless ``receives``.

    Raise ``Disconnected`` if it cannot be reached within ``handshake_seconds``, ``Refused`` if either side refuses,
    ``ValueError`` if it is no address or ``security`` does not allow it.
    """
    host, port = host_and_port(address)
    security.require_allowed(host)
    limits = limits or Limits()
    peer = Peer(identity, security, limits, dialled=address, receives=receives)
    try:
        async with asyncio.timeout(limits.handshake_seconds):
            await _open(host, port, peer, security.client)
            await peer.ready()
    except TimeoutError:
        peer.abort()
        raise Disconnected(f"{address}: no answer within {limits.handshake_seconds:g} s") from None
    except ssl.SSLError as error:
        raise Refused(f"{address}: TLS: {getattr(error, 'verify_message', '') or error.reason or error}") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise Disconnected(f"{address}: {reason.lower()}") from None
    except Disconnected as error:
        raise type(error)(f"{address}: {error}") from None
    except BaseException:
        peer.abort()
        raise
    return peer


async def _open(host: str, port: int, peer: Peer, context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    name = None if context is None else host
    await loop.create_connection(lambda: peer, host, port, ssl=context, server_hostname=name)
