"""An object whose fields are kept in a hash, each as JSON."""

import asyncio
import dataclasses
import math
from typing import Annotated, Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError
from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError, Unreadable, WrongCall
from penstock.base.log import Log
from penstock.bus.host import Host
from penstock.bus.keys import MAX_TTL, is_whole, object_key
from penstock.bus.scripts import SAVE
from penstock.core.instance import Instance

TTL: Final = 60
"""Seconds that an object lives that was saved and is not kept alive."""
MASK: Final = "**********"
"""What pydantic writes for a secret."""
_log: Final = Log("penstock.bus")


class Persistable:
    """An object with ``save`` and ``load``: ``value`` is it, a dataclass, a pydantic model, or any object with fields.

    It lives for 60 s after a ``save`` unless ``persist`` keeps it alive.
    """

    def __init__(self, bus: Host, name: str, value: Any, fields: list[str] | None) -> None:
        self.name, self.value, self.seconds = name, value, TTL
        self._bus, self._key = bus, object_key(name)
        if isinstance(value, type):
            raise WrongCall(f"expected an object, found the class {value.__name__}: pass {value.__name__}(...)")
        types = _types(value)
        names = fields if fields is not None else [*types]
        if not names:
            raise WrongCall(f"{type(value).__name__} has no declared fields: pass fields=[...]")
        self._types = {name: TypeAdapter(types.get(name, Any)) for name in names}
        self._clean: dict[str, str] = {}
        """The JSON of each field as it is on the server."""
        self._keeper: Any = None

    @property
    def dirty(self) -> set[str]:
        """Return the fields that differ from what was last saved or loaded, also deep inside their values."""
        return {name for name, text in self._texts().items() if self._clean.get(name) != text}

    async def save(self) -> bool:
        """Write the fields that have changed; return False, and write nothing, if none has.

        Write all if the object has expired meanwhile. Raise ``WrongCall`` if a field is no JSON value, as NaN is none,
        or holds a ``SecretStr``.
        """
        texts = self._texts()
        changed = {name: text for name, text in texts.items() if self._clean.get(name) != text}
        if not changed:
            return False
        for name, text in changed.items():
            if "null" in text or "N" in text or "I" in text:  # what NaN and infinity are written as
                self._check_finite(name)
            if MASK in text and self._types[name].validate_json(text) != getattr(self.value, name):
                raise WrongCall(f"field {name} of {self._key} holds a secret, which is masked in JSON: keep it as str")
        if not await self._write(changed, whole=len(changed) == len(texts)):
            await self._write(texts, whole=True)
        self._clean |= texts
        return True

    async def load(self) -> bool:
        """Read all fields, over unsaved changes; return False, and change nothing, if the object does not exist.

        A field that is missing there keeps its value. Raise ``Unreadable`` if one is not of its declared type, or
        breaks a constraint of its own, as ``Field(gt=0)``; validators of a whole model are not called. Raise
        ``WrongCall`` if a field cannot be set.
        """
        found = await self._read()
        values, clean = dict[str, Any](), dict[str, str]()
        for name, kind in self._types.items():
            text = found.get(name, b"undefined")
            if text == b"undefined":  # what busmq writes for it, which is no JSON
                continue
            try:
                values[name] = kind.validate_json(text)
                clean[name] = kind.dump_json(values[name]).decode()
            except (ValidationError, ValueError) as error:
                raise Unreadable(f"field {name} of {self._key} holds {text[:100]!r}: {error}") from None
        for name, value in values.items():
            try:
                setattr(self.value, name, value)
            except (AttributeError, ValueError) as error:  # it is frozen, or its own validator refuses the value
                raise WrongCall(f"field {name} of {type(self.value).__name__} cannot be set: {error}") from None
        if found:
            self._clean = clean
        return bool(found)

    async def persist(self, ttl: int = TTL) -> None:
        """Keep the object alive from now on: it lives for ``ttl`` seconds after ``unpersist`` or the end of the bus.

        If it is found to be gone, since its server has lost it, that is logged, and it is written again as it was saved
        or loaded last.
        """
        if not is_whole(ttl, 1, MAX_TTL):
            raise WrongCall(f"ttl={ttl!r}: expected whole seconds from 1 to 10^9")
        self.seconds = int(ttl)
        await self._keep_alive()
        if self._keeper is None:
            self._bus.ends_with(self)
            self._keeper = self._bus.spawn(self._keep())

    async def unpersist(self) -> None:
        """Keep it alive no more: it expires after its ttl. ``value`` stays as it is."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
            self._bus.ended(self)

    async def leave(self) -> None:
        """Keep it alive no more, as the bus is being disconnected."""
        await self.unpersist()

    @property
    def fields(self) -> list[str]:
        """Return the names of the fields that are kept."""
        return [*self._types]

    async def _write(self, texts: dict[str, str], *, whole: bool) -> bool:
        """Write ``texts``; return False if they are not the ``whole`` object, and it does not exist."""
        words = [word for name, text in texts.items() for word in (encoded(name), text.encode())]
        named = {"object": encoded(self._key), "ttl": self.seconds, "whole": int(whole), "fields": words}
        return bool(await (await self._home()).run(SAVE, **named))

    async def _read(self) -> dict[str, bytes]:
        words = await (await self._home(anew=True)).command("HGETALL", encoded(self._key))
        return dict(zip(map(decoded, words[::2]), words[1::2], strict=True))

    def _texts(self) -> dict[str, str]:
        texts = dict[str, str]()
        for name, kind in self._types.items():
            if hasattr(self.value, name):
                try:
                    texts[name] = kind.dump_json(getattr(self.value, name)).decode()
                except ValueError as error:
                    raise WrongCall(f"field {name} of {self._key}: expected a JSON value: {error}") from None
        return texts

    def _check_finite(self, name: str) -> None:
        if not _is_finite(self._types[name].dump_python(getattr(self.value, name))):
            raise WrongCall(f"field {name} of {self._key}: expected a JSON value, found NaN or infinity")

    async def _home(self, *, anew: bool = False) -> Instance:
        return await self._bus.home(self._key, anew=anew)

    async def _touch(self) -> bool:
        """Let it live for ``seconds`` from now; return False if it does not exist."""
        return bool(await (await self._home()).command("EXPIRE", encoded(self._key), self.seconds))

    async def _keep_alive(self) -> None:
        if not await self._touch() and self._clean:
            _log.warning("object lost: written again", object=self.name)
            await self._write(self._clean, whole=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.seconds / 3)
            try:
                await self._keep_alive()
            except (PenstockError, RedisError) as error:
                _log.warning("object not kept alive", object=self.name, reason=str(error))


def _types(value: Any) -> dict[str, Any]:
    """Return the declared fields of ``value`` with their types."""
    if (declared := getattr(type(value), "__pydantic_fields__", None)) is not None:  # of a model or dataclass
        return {
            name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            for name, field in declared.items()
        }
    if dataclasses.is_dataclass(value):
        hints = get_type_hints(type(value), include_extras=True)
        return {each.name: hints[each.name] for each in dataclasses.fields(value)}
    return {}


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_finite(each) for pair in value.items() for each in pair)
    return not isinstance(value, list | tuple | set | frozenset) or all(map(_is_finite, value))
