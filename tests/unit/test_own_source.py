"""The example of a source of one's own, with a queue in memory: what it takes is settled, or comes again."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.base.log import Log
from penstock.consuming import Consumer, Consumers
from tests.support.harness import ROOT, eventually


class Queue:
    """What the example needs of boto3's client; ``lost`` is called before each answer."""

    def __init__(self, *bodies: str) -> None:
        self.waiting, self.hidden = dict(enumerate(bodies)), dict[int, str]()
        self.renewed = 0
        self.lost: Callable[[str], None] = lambda verb: None

    def receive_message(self, **options: Any) -> dict[str, Any]:
        found = [*self.waiting.items()][: options["MaxNumberOfMessages"]]
        self.hidden |= found
        for id, _ in found:
            del self.waiting[id]
        return {"Messages": [{"Body": body, "MessageId": str(id), "ReceiptHandle": f"r{id}"} for id, body in found]}

    def delete_message_batch(self, **options: Any) -> dict[str, Any]:
        for each in options["Entries"]:
            self.hidden.pop(int(each["Id"]), None)
        self.lost("delete")
        return {}

    def change_message_visibility_batch(self, **options: Any) -> dict[str, Any]:
        for each in options["Entries"]:
            if each["VisibilityTimeout"]:
                self.renewed += 1
            elif (id := int(each["Id"])) in self.hidden:
                self.waiting[id] = self.hidden.pop(id)
        return {}


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "sqs"))
    import sqs

    yield sqs
    del sys.modules["sqs"]


async def test_messages_are_deleted_and_those_that_failed_come_again(sqs: Any) -> None:
    queue, seen = Queue(*(f"m{number}" for number in range(40))), list[str]()
    async with Consumers(Log("example")) as consumers:
        async for message in Consumer(consumers, sqs.SqsSource(queue, "q"), 10).messages():
            seen.append(message.body)
            with suppress(ValueError), message:
                if message.body == "m7" and seen.count("m7") == 1:
                    raise ValueError
            if len(seen) == 41:
                consumers.stop()
    assert sorted(seen) == sorted([*(f"m{number}" for number in range(40)), "m7"])
    assert not queue.waiting
    assert not queue.hidden


async def test_a_stop_gives_back_at_once_what_was_taken_ahead(sqs: Any) -> None:
    queue = Queue(*"abcdefgh")
    async with Consumers(Log("example")) as consumers:
        async for message in Consumer(consumers, sqs.SqsSource(queue, "q"), 10).messages():
            with message:
                if len(queue.hidden) > 2:  # it takes more at a time while handling is quick
                    consumers.stop()
                    await eventually(lambda: len(queue.hidden) <= 2)
    assert len(queue.waiting) >= 1
    assert not queue.hidden


async def test_leases_are_renewed_and_a_lost_answer_settles_once(sqs: Any) -> None:
    queue = Queue("a")
    source = sqs.SqsSource(queue, "q", 1)
    source.renew_every = 0.01
    failures = [OSError("the answer was lost")]

    def lost(verb: str) -> None:
        if failures:
            raise failures.pop()

    queue.lost = lost
    async with Consumers(Log("example")) as consumers:
        loop = Consumer(consumers, source, 10).messages()
        with await anext(loop):
            await eventually(lambda: queue.renewed)
        with pytest.raises(OSError, match="lost"):
            await anext(loop)
    assert not queue.waiting
    assert not queue.hidden
    assert source.handled == 0
