"""What is stored of tasks, sealed with keys of their owners; as it is, without a master key."""

from typing import Final, TypeAlias

from penstock.base.errors import Unopenable
from penstock.sealing.keyring import Keyring
from penstock.sealing.sealed import VERSION, OwnerKeys, epoch_of
from services.hqueue.steps import in_task


class Open:
    """Stores contents as they are."""

    def seal(self, plain: bytes, _: bytes) -> bytes:
        return plain

    def open(self, sealed: bytes, _: bytes) -> bytes:
        """Return ``sealed``, which nobody has sealed. Raise ``Unopenable``."""
        if is_sealed(sealed):
            raise Unopenable("sealed, and this instance has no masterKey")
        return sealed


OPEN: Final = Open()
Lock: TypeAlias = Open | OwnerKeys


class Seals:
    """Finds what seals and opens the contents of an owner's tasks."""

    def __init__(self, keyring: Keyring | None) -> None:
        self.keyring = keyring

    async def of(self, owner: str, *sealed: bytes | None) -> Lock:
        """Return the keys of ``owner``, made on first use, fit to open what of ``sealed`` can be. Raise ``Forgotten``.

        They are read again if another instance has sealed with a newer one.
        """
        if self.keyring is None:
            return OPEN
        keys = self.keyring.known(owner)
        if keys is None:
            keys = await in_task(self.keyring.current(owner))
        if any(each is not None and _epoch_of(each) > keys.epoch for each in sealed):
            self.keyring.invalidate(owner)
            keys = await in_task(self.keyring.current(owner))
        return keys


def is_sealed(*contents: bytes | None) -> bool:
    """Return whether one of ``contents`` begins as no plain one does."""
    return any(content is not None and content[:1] == bytes([VERSION]) for content in contents)


def _epoch_of(sealed: bytes) -> int:
    """Return 0 for what is not sealed: only who opens it shall fail."""
    try:
        return epoch_of(sealed)
    except Unopenable:
        return 0


def place(queue: str, id: str, what: str) -> bytes:
    """Return where a content belongs: it opens nowhere else."""
    return f"{queue}|{id}|{what}".encode()
