"""A persisted object, as a peer uses it: its fields are read, written, and kept alive by calls."""

import json
from typing import Any, Final

from penstock.base.encoding import decoded_fields
from penstock.base.errors import Unauthorized, WrongCall
from penstock.bus.federation.frames import Call
from penstock.bus.keys import MAX_TTL, object_key
from penstock.bus.persistable import TTL, Store
from penstock.core.objects import wires_of
from services.gateway.served import ANSWERED, Peer, Served, text_at

MAX_FIELDS: Final = 1_000


class ServedObject(Served):
    """One object. The peer keeps its state; only what it named can be read and written."""

    TYPE = "persistify"
    ROWS = wires_of(Store)

    def __init__(self, peer: Peer, channel: bytes, args: list[Any], names: list[str], extended: bool) -> None:
        super().__init__(peer, channel, args[0], names)
        self._store = Store(peer.gateway.bus, object_key(args[0]))
        self._ttl = TTL
        self.methods |= {"pread": self._read, "pwrite": self._write, "ptouch": self._touch}

    async def _read(self, call: Call) -> object:
        self._check(call)
        return self._answered(call, decoded_fields(await self._store.read()) or None)

    async def _write(self, call: Call) -> object:
        """Write fields; those of a part of the object, as the third argument says, only if it exists."""
        self._check(call)
        fields = call.values[1] if len(call.values) > 1 else None
        if not isinstance(fields, dict) or not 0 < len(fields) <= MAX_FIELDS:
            raise WrongCall(f"pwrite: expected an object of at most {MAX_FIELDS:,} fields")
        texts = {name: json.dumps(value, ensure_ascii=False, separators=(",", ":")) for name, value in fields.items()}
        is_part = len(call.values) > 2 and call.values[2] is True
        written = await self._store.write(texts, self._ttl, whole=not is_part)
        return self._answered(call, "OK" if written else None)

    async def _touch(self, call: Call) -> bool:
        """Keep the object alive, for as many seconds as the peer says if it does; return whether it exists."""
        ttl = call.values[0] if call.values else None
        if ttl is not None:
            if type(ttl) is not int or not 0 < ttl <= MAX_TTL:
                raise WrongCall(f"ptouch: expected whole seconds from 1 to {MAX_TTL:,}")
            self._ttl = ttl
        return await self._store.touch(self._ttl)

    def _check(self, call: Call) -> None:
        if text_at(call, 0, "the key of the object") != self._store.key:
            raise Unauthorized(f"{call.method}: this is the object {self.name}, and no other")

    def _answered(self, call: Call, value: Any) -> object:
        """Answer as busmq does, with the key behind the value."""
        self.answer(call, None, value, self._store.key)
        return ANSWERED
