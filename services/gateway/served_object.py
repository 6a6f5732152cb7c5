"""A persisted object, as a peer uses it: its fields are read, written, and kept alive by calls."""

import json
from typing import Any, Final

from penstock.base.encoding import decoded_fields, encoded
from penstock.base.errors import Unauthorized, WrongCall
from penstock.bus.federation.frames import Call
from penstock.bus.keys import MAX_TTL
from penstock.bus.persistable import TTL
from penstock.bus.scripts import SAVE
from services.gateway.served import ANSWERED, Peer, Served, text_at

MAX_FIELDS: Final = 1_000


class ServedObject(Served):
    """One object. The peer keeps its state; only what it named can be read and written."""

    TYPE = "persistify"

    def __init__(self, peer: Peer, channel: bytes, args: list[Any], names: list[str], extended: bool) -> None:
        super().__init__(peer, channel, args[0], names)
        self._key = f"bus:persisted:{args[0]}"
        self._ttl = TTL
        self.methods |= {"pread": self._read, "pwrite": self._write, "ptouch": self._touch}

    async def _read(self, call: Call) -> object:
        self._check(call)
        words = await (await self.peer.gateway.bus.home(self._key, anew=True)).command("HGETALL", encoded(self._key))
        found = decoded_fields(dict(zip(words[::2], words[1::2], strict=True)))
        return self._answered(call, found or None)

    async def _write(self, call: Call) -> object:
        self._check(call)
        fields = call.values[1] if len(call.values) > 1 else None
        if not isinstance(fields, dict) or not 0 < len(fields) <= MAX_FIELDS:
            raise WrongCall(f"pwrite: expected an object of at most {MAX_FIELDS:,} fields")
        texts = {name: json.dumps(value, ensure_ascii=False, separators=(",", ":")) for name, value in fields.items()}
        words = [encoded(word) for pair in texts.items() for word in pair]
        home = await self.peer.gateway.bus.home(self._key)
        await home.run(SAVE, whole=1, object=encoded(self._key), ttl=self._ttl, fields=words)
        return self._answered(call, "OK")

    async def _touch(self, call: Call) -> bool:
        """Keep the object alive, for as many seconds as the peer says if it does; return whether it exists."""
        ttl = call.values[0] if call.values else None
        if ttl is not None:
            if type(ttl) is not int or not 0 < ttl <= MAX_TTL:
                raise WrongCall(f"ptouch: expected whole seconds from 1 to {MAX_TTL:,}")
            self._ttl = ttl
        home = await self.peer.gateway.bus.home(self._key)
        return bool(await home.command("EXPIRE", encoded(self._key), self._ttl))

    def _check(self, call: Call) -> None:
        if text_at(call, 0, "the key of the object") != self._key:
            raise Unauthorized(f"{call.method}: this is the object {self.name}, and no other")

    def _answered(self, call: Call, value: Any) -> object:
        """Answer as busmq does, with the key behind the value."""
        self.answer(call, None, value, self._key)
        return ANSWERED
