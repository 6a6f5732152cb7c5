"""What is inside of consumers, for tests that let one die or look at what it waits for."""

from typing import Any, TypeVar

from penstock.core.consumer import Consumer
from penstock.lists import Lists

I = TypeVar("I")  # noqa: E741


def sources(lists: Lists) -> list[Any]:
    """Return what the consumers of ``lists`` take from."""
    return [each.source for each in lists.consumers.running]


def in_hand(consumer: Consumer[I], item: I) -> I:
    """Hand ``item`` out, as a loop does."""
    consumer.source.in_hand = item
    return item
