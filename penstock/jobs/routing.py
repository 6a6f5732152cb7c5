"""Which of several servers has a name, as hfxbus 2.2.0 computes it: CRC-16/ARC modulo their number."""

from collections.abc import Mapping
from typing import Final

from penstock.base.encoding import encoded
from penstock.base.errors import WrongCall

POLYNOMIAL: Final = 0xA001


def _step(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value


TABLE: Final = tuple(map(_step, range(256)))


def crc16(text: str) -> int:
    """Return the CRC-16/ARC of ``text`` in UTF-8: ``crc16("123456789") == 0xBB3D``."""
    found = 0
    for byte in encoded(text):
        found = found >> 8 ^ TABLE[(found ^ byte) & 0xFF]
    return found


class Routes:
    """The places of names among ``count`` servers; ``static`` gives some names, or their CRC-16, a place of their own.

    Two names with one CRC-16 have one place.
    """

    def __init__(self, count: int, static: Mapping[str | int, int] | None = None) -> None:
        self.count = count
        self._static = {key if isinstance(key, int) else crc16(key): place for key, place in (static or {}).items()}
        for key, place in (static or {}).items():
            if not 0 <= place < count:
                raise WrongCall(f"routes: {key!r} has the place {place}, expected 0 to {count - 1}")

    def place(self, name: str) -> int:
        """Return the place of ``name``."""
        if self.count == 1:
            return 0
        crc = crc16(name)
        return self._static.get(crc, crc % self.count)
