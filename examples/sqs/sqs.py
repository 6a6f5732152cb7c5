"""Messages of a queue of Amazon SQS as those of ``penstock.lists``: ``async for message in ...``, ``with message:``."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Self

from penstock.consuming import AT_ONCE, SETTLE_SECONDS
from penstock.errors import Unavailable

MOST = 10
"""Messages of one call."""
WAIT_SECONDS = 2
"""Seconds that one call waits for a message; a stop waits for its end."""


class Message:
    """One message in hand: deleted when its ``with`` ends, and given back if that raises."""

    def __init__(self, found: Mapping[str, Any], source: "SqsSource") -> None:
        self.body, self.id, self.receipt, self._source = (
            found["Body"],
            found["MessageId"],
            found["ReceiptHandle"],
            source,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.note_end(self, handled=kind is None)


class SqsSource:
    """The queue at ``url``; ``sqs`` is a client of boto3, ``lease`` its visibility timeout (s)."""

    noun: ClassVar[str] = "message"
    alone: ClassVar[bool] = False
    failures: ClassVar[int] = 0
    """The queue itself waits, and counts receives for its redrive policy."""

    def __init__(self, sqs: Any, url: str, lease: int = 30) -> None:
        self._sqs, self.name, self._lease = sqs, url, lease
        self.renew_every, self.due_at, self.judges = lease / 3, AT_ONCE, False
        self.in_hand: Message | None = None
        self._held, self._handled, self._back = list[Message](), list[Message](), list[Message]()

    @property
    def facts(self) -> Mapping[str, str]:
        return {"queue": self.name}

    @property
    def handled(self) -> int:
        return len(self._handled)

    def judge(self, message: Message) -> bool:
        return False

    def note_end(self, message: Message, *, handled: bool) -> None:
        (self._handled if handled else self._back).append(message)
        self._held.remove(message)
        self.in_hand = None

    async def take(self, most: int) -> list[Message]:
        """Settle what was noted; a call that waits brings more."""
        await self._send("delete_message_batch", self._handled)
        await self._send("change_message_visibility_batch", self._back, VisibilityTimeout=0)
        self.due_at = monotonic() + SETTLE_SECONDS
        return []

    async def wait(self, most: int) -> list[Message]:
        options = {"MaxNumberOfMessages": min(most, MOST), "VisibilityTimeout": self._lease}
        found = await self._call("receive_message", WaitTimeSeconds=WAIT_SECONDS, **options)
        self._held = [Message(each, self) for each in found.get("Messages", ())]
        self.due_at = monotonic() + SETTLE_SECONDS
        return [*self._held]

    async def interrupt(self) -> None:
        pass  # a call that waits ends soon

    async def renew(self) -> None:
        await self._send("change_message_visibility_batch", [*self._held], VisibilityTimeout=self._lease)

    renew_elsewhere = renew  # clients of boto3 know no event loop

    async def give_back_ahead(self) -> None:
        in_hand = self.in_hand  # once: another thread may hand out
        ahead = [message for message in self._held if message is not in_hand]
        self._held = [message for message in self._held if message is in_hand]
        await self._send("change_message_visibility_batch", ahead, VisibilityTimeout=0)

    async def give_back(self) -> None:
        self._back += self._held
        self._held = []
        await self.take(0)

    async def close(self) -> None:
        pass

    async def _send(self, verb: str, messages: list[Message], **options: Any) -> None:
        """Send ``messages``, and forget those that were accepted."""
        while batch := messages[:MOST]:
            entries = [{"Id": each.id, "ReceiptHandle": each.receipt, **options} for each in batch]
            answer = await self._call(verb, Entries=entries)
            del messages[: len(batch)]
            failed = [each for each in answer.get("Failed", ()) if not each["SenderFault"]]
            if failed:  # not since its lease is over: the queue itself is in trouble
                raise Unavailable(f"{self.name}: {verb}: {failed}")

    async def _call(self, verb: str, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self._sqs, verb), QueueUrl=self.name, **options)
