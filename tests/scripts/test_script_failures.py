"""No script fails after its first write, and none fails for what authors of messages control.

A script that failed halfway would lose what it had removed: a batch was lost so for one message with a delay of -0.0.
"""

import re
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from tests.support.harness import rounds
from tests.support.lua_files import SCRIPTS, body_of, declared_for
from tests.support.script_cases import CASES
from tests.support.scripted import MANY, PAIRS, Call, Draw, Stream, Zset, name_of, state_of

CRITICAL: Final = (
    "tracking/finish",
    "common/settle_batch",
    "mdispatch/dispatch",
    "mlimit/delay_batch",
    "monitor/sweep",
)
"""Scripts that get what authors wrote into their messages: they are called often enough for all values."""
NOTES: Final = {b"k:holds", b"k:missing", b"k:taken"}
"""What ``held.lua`` corrects of what BLMOVE has done, whatever comes of the script: a second run corrects nothing."""
REFUSALS: Final = re.compile(r"(FENCED|GONE|MOVING|OCCUPIED|UNSTAGED|VALUE) ")
"""Beginnings of the errors that a script returns on purpose, whatever the message."""
GO_ON: Final = re.compile(
    r"common/(adopt|answer|compact|confirm|deregister|next_id|note|register|renew)|core/(disown|snapshot|writes)"
    r"|hqueue/(?!due)|jobs/|rollout/(order|requeue)"
    r"|bus/(carry|forget|hand_over|prepare|receive|renew|retire|sweep|touch)"
    r"|spark/(?!fix)|tracking/(identify|revive)|transfer/read|himporter/news|monitor/(due|end_answers)|pipeline/"
    r"|vpush/link"
)
"""Scripts that bear with some key of another type, or name it only by what the server says."""
BORNE: Final = {"lease", "missing", "door", "subjects", "answer", "message"}
"""Keys of which no script says so, that it bears with, or that must not be there."""
RESTORES: Final = ("common/confirm",)
"""Scripts that write, and leave everything as it was."""
WRITES: Final = re.compile(
    r"'([LR]PUSH|LPOP|RPOP|LMOVE|LTRIM|HSET|HDEL|ZADD|ZREM|XADD|XDEL|UNLINK|DEL|SET|INCR|INCRBY|EXPIRE|RENAME)'"
)
each_script = pytest.mark.parametrize("file", SCRIPTS, ids=name_of)


def calls(file: Path, here: Any, enough: Callable[[], bool] = lambda: True) -> Iterator[Call]:
    """Generate calls: the same ones each time, but for the server's time."""
    pairs, now = cycle(PAIRS), here.time()[0]
    for number in rounds(enough):
        for more in range(8 if name_of(file) in CRITICAL else 1):
            yield Call(file, Draw(f"{name_of(file)} {number} {more}", pairs, now))


def failure_of(call: Call, here: Any, *, full: bool = False) -> str | None:
    """Run ``call``; return the error, None without one. Fail if it has changed a key before."""
    call.prepare(here)
    before = state_of(here)
    here.config_set("maxmemory", int(full))
    failure = error_of(call, here)
    after = state_of(here)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    call.has_written = not failure and bool(changed)
    if failure and changed <= NOTES:
        error_of(call, here)
        again = state_of(here)
        changed = {key for key in NOTES if again.get(key) != after.get(key)}
    here.config_set("maxmemory", 0)
    assert not failure or not changed, f"{failure}: changed {changed} before"
    return failure


def error_of(call: Call, here: Any) -> str | None:
    try:
        call.run(here)
    except ResponseError as error:
        return str(error)
    return None


@each_script
def test_no_message_makes_a_script_fail(file: Path, here: Any) -> None:
    must_write = WRITES.search(body_of(file)) and name_of(file) not in RESTORES
    written: list[bool] = [] if must_write else [True]
    for call in calls(file, here, lambda: any(written)):
        failure = failure_of(call, here)
        assert failure is None or REFUSALS.match(failure), (failure, call.named, call.contents)
        written.append(call.has_written)
    assert any(written), f"give {name_of(file)} a case in tests/support/script_cases.py with which it writes"


@each_script
def test_a_script_that_fails_has_changed_nothing(file: Path, here: Any) -> None:
    for call in calls(file, here):
        changed = [call.tamper() for _ in range(call.draw.randint(1, 2))]
        try:
            failure_of(call, here)
        except AssertionError as error:
            raise AssertionError(f"{error}, with {changed}") from None


@each_script
def test_a_full_server_refuses_all_of_a_script_or_nothing(file: Path, here: Any) -> None:
    for call in calls(file, here):
        failure = failure_of(call, here, full=True)
        assert failure is None or REFUSALS.match(failure) or "maxmemory" in failure, failure


@pytest.mark.parametrize("file", [file for file in SCRIPTS if not GO_ON.match(name_of(file))], ids=name_of)
def test_a_key_of_another_type_is_named_and_nothing_is_changed(file: Path, here: Any) -> None:
    for kind, name, words in declared_for(file):
        bare = name.rstrip("?.")
        if kind == "KEYS" and bare not in BORNE:
            wrong = b"in the way" if words.startswith("stream") else Stream([("1-1", {"a": "b"})])
            assert any(is_named(call, bare, wrong, here) for call in calls(file, here, lambda: False)), bare


def is_named(call: Call, bare: str, wrong: Any, here: Any) -> bool:
    """Put something wrong at a key of ``call``; return whether the script names it, not if it does not need the key."""
    key = next((key for key in call.contents if bare in str(key).split(":")), None)
    if key is None:
        return False
    call.contents[key] = wrong
    failure = failure_of(call, here)
    assert not failure or re.search(rf"k:{bare}\S* holds a ", failure) or REFUSALS.match(failure), f"{bare}: {failure}"
    return failure is not None and not REFUSALS.match(failure)


def test_each_case_is_of_a_script() -> None:
    assert CASES.keys() <= {name_of(file) for file in SCRIPTS}


BOUNDED: Final = [
    file
    for file in SCRIPTS
    if ("ARGV", "bytes") in [(kind, name) for kind, name, _ in declared_for(file)]
    and name_of(file) not in ("bus/carry", "bus/read", "transfer/read", "vpush/link", "lists/consume")
]
"""Scripts that move messages until these have ``bytes``; that of lists also returns what its caller was given."""
BOUNDED_THEMSELVES: Final = [by for by in SCRIPTS if name_of(by) in ("bus/seal", "bus/unseal", "jobs/tend")]
"""Scripts with a bound of their own, of a megabyte."""


class LargeDraw(Draw):
    """Draws large messages that cannot be compressed, and small ones where the caller has read them."""

    size: int

    def message(self, *, by_pairs: bool = False) -> bytes:
        return self.randbytes(20 if by_pairs else self.size)

    def messages(self, most: int = MANY) -> list[bytes]:
        return [self.message(by_pairs=most > MANY) for _ in range(6)]

    def entry(self) -> bytes:
        return b"1"

    def waiting(self) -> Zset:
        return Zset({b"%016d" % place + self.message(): (self.now - 5) * 1e6 for place in range(6)})

    def text(self) -> str:
        return self.randbytes(self.size * 3 // 4).hex()

    def pairs(self) -> list[Any]:
        return [word for id in range(1, 6) for word in (id, self.message())]


@pytest.mark.parametrize("file", [*BOUNDED, *BOUNDED_THEMSELVES], ids=name_of)
def test_no_script_moves_more_than_its_bytes_and_one_message(file: Path, here: Any) -> None:
    size, bound = (50_000, 30_000) if file in BOUNDED else (500_000, 1_048_576)
    moved: list[int] = []
    for number in rounds(lambda: max(moved) >= size):
        draw = LargeDraw(f"{name_of(file)} {number}", cycle(PAIRS), here.time()[0])
        draw.size = size
        call = Call(file, draw)
        if file in BOUNDED:
            call.named["bytes"] = bound
        call.prepare(here)
        before = state_of(here)
        error_of(call, here)
        renamed = {dump for dump, _ in before.values()}
        grown = {
            key: len(dump) - len(before.get(key, (b"",))[0])
            for key, (dump, _) in state_of(here).items()
            if dump not in renamed
        }
        moved.append(max([0, *grown.values()]))
        assert moved[-1] < bound + size + 5000, grown
        if len(moved) >= 10 and max(moved) >= size:
            return
    assert max(moved) >= size, f"no call of {name_of(file)} has moved a message"
