"""Messages that a consumption has taken ahead and not handed out."""

from collections import deque
from itertools import repeat
from typing import Any, Final

from penstock.bus.message import Acknowledging, Message
from penstock.bus.numbers import whole


class Ahead:
    """Those messages, oldest first. Any thread may take them out."""

    def __init__(self) -> None:
        self.messages: Final = deque[Message]()
        self.taken_id = self.handed_id = 0
        """The last id that was taken, and handed out."""

    def put_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one."""
        self.messages.appendleft(message)
        self.handed_id = message.id - 1 if message.id else self.handed_id

    def add(self, lists: list[list[Any]], source: Acknowledging) -> int:
        """Add the messages of ``lists`` of id, body, and so on; return the last id, 0 if none is a number."""
        last = 0
        for words in lists:
            ids = [whole(word) or 0 for word in words[::2]]
            self.messages.extend(map(Message, words[1::2], ids, repeat(source)))
            last = next(filter(None, reversed(ids)), last)
        self.taken_id = last or self.taken_id
        return last

    def forget(self) -> int:
        """Drop all, so that they are taken anew; return how many."""
        many = len(self.messages)
        self.messages.clear()
        self.taken_id = self.handed_id
        return many

    def restart(self) -> None:
        """Note that ids begin anew."""
        self.taken_id = self.handed_id = 0

    def remove_all(self, into: list[Message]) -> None:
        """Move all to ``into``, one by one: another thread may take some meanwhile."""
        while self.messages:
            try:
                into.append(self.messages.popleft())
            except IndexError:
                return
