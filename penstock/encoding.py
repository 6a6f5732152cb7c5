"""Names as text and as the bytes that the server has, any bytes, without loss."""

from typing import Any


def encoded(name: str) -> bytes:
    """The bytes of a name; a lone surrogate stands for a byte that is not UTF-8, as in the words of a command line."""
    return name.encode(errors="surrogateescape")


def decoded(reply: Any) -> str:
    """The text of a name, word or number that the server sent; ``encoded`` gives its bytes again."""
    return reply.decode(errors="surrogateescape") if isinstance(reply, bytes) else str(reply)
