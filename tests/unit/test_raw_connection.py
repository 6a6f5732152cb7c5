"""Commands as RESP."""

import pytest
from hiredis import pack_command

from penstock.core.raw_connection import LARGE, Command, Packed, Word, pack, push_parts

LARGE_WORD = b"\r\n$" * LARGE


def by_hiredis(*words: Word) -> bytes:
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub: one word
    return packed


@pytest.mark.parametrize(
    "words",
    [
        ("LPUSH", "list", LARGE_WORD),
        (b"SET", LARGE_WORD, 1, "grün", 2.5, b"", LARGE_WORD[:LARGE]),
        ("LPUSH", "list", LARGE_WORD, *[b"small"] * 3),
    ],
    ids=["last", "first", "among others"],
)
def test_commands_with_large_words_are_packed_as_all_others(words: tuple[Word, ...]) -> None:
    ahead: Command = (*words, Packed([b"a", LARGE_WORD]), "b")
    assert pack([words, ("PING",)]) == by_hiredis(*words) + by_hiredis("PING")
    assert pack([ahead]) == by_hiredis(*words, b"a", LARGE_WORD, "b")


@pytest.mark.parametrize("messages", [[b"one"], [LARGE_WORD, b"", b"\r\n"]], ids=["one", "several"])
def test_a_push_in_parts_is_the_same_command(messages: list[bytes]) -> None:
    parts = push_parts("grün", messages)
    assert b"".join(parts) == pack([("LPUSH", "grün", *messages)])
    assert all(any(part is message for part in parts) for message in messages if message)
