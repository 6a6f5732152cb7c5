"""Cut messages into batches: bounded in number and bytes, so that no command holds the server for long."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from penstock.base.errors import WrongCall

MAX_MESSAGES: Final = 500
MAX_BYTES: Final = 1 << 20
"""Upper bounds of what one command pushes or takes, unless a single message is larger."""
T = TypeVar("T")


def batches(found: Iterable[T], size_of: Callable[[T], int], most: int = MAX_BYTES) -> Iterator[list[T]]:
    """Yield all of ``found``, in order: at most ``MAX_MESSAGES`` at a time, of ``most`` bytes unless one has more."""
    each = iter(found)
    while some := [*islice(each, MAX_MESSAGES)]:
        yield from _fitting(some, size_of, most)


async def payload_batches(
    messages: Iterable[Any] | AsyncIterable[Any], as_payload: Callable[[Any], bytes], most: int = MAX_BYTES
) -> AsyncGenerator[list[bytes]]:
    """Yield the payloads of ``messages`` as ``batches`` does. Raise ``WrongCall`` for a single one."""
    if isinstance(messages, bytes | str):
        raise WrongCall("expected several messages, found one: use push")
    if not isinstance(messages, AsyncIterable):
        for batch in batches(map(as_payload, messages), len, most):
            yield batch
        return
    waiting = list[bytes]()
    async for message in messages:
        waiting.append(as_payload(message))
        if len(waiting) == MAX_MESSAGES:
            for batch in _fitting(waiting, len, most):
                yield batch
            waiting = []
    for batch in _fitting(waiting, len, most):
        yield batch


def _fitting(found: list[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield parts of ``found`` within ``most`` bytes, or of one that is larger."""
    if found and sum(map(size_of, found)) <= most:
        yield found
        return
    part, size = list[T](), 0
    for each in found:
        if part and size + size_of(each) > most:
            yield part
            part, size = [], 0
        part.append(each)
        size += size_of(each)
    if part:
        yield part
