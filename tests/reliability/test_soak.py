"""Short soak test: the chain under all faults at once, and proof that its accounting finds errors."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from penstock.testing.forkserver import ForkServer
from tests.reliability.soak.__main__ import cells, line
from tests.reliability.soak.account import Account, Pushed, account, message_of
from tests.reliability.soak.chain import BRANCHES, DONE, HERE, WORK, Chain
from tests.reliability.soak.faults import FAULTS, draw_fault
from tests.reliability.soak.payloads import LARGE_BYTES, payloads, xid_of
from tests.reliability.soak.seed import Result, run_seed
from tests.support.harness import ROOT, until

PUSHED = [b"1", b"", b"2", b"x", b"", b"y"]


def held_up(chain: Chain, name: str, key: str, act: Callable[[Any], None]) -> None:
    """Call ``act`` to change a list while its consumers are suspended and its three oldest messages differ."""
    processes = [process for process in chain.processes if process.name == name]

    def signalled(number: signal.Signals) -> None:
        for process in processes:
            process.signal(number)

    with chain.connected(HERE) as redis:

        def are_suitable() -> bool:
            signalled(signal.SIGSTOP)
            until(lambda: redis.llen(key) >= 3)
            if len({*filter(None, redis.lrange(key, -3, -1))}) == 3:
                return True
            signalled(signal.SIGCONT)  # they do not change while nobody takes them
            return False

        until(are_suitable)
        act(redis)
    signalled(signal.SIGCONT)


def loses(chain: Chain) -> None:
    held_up(chain, "vpush", BRANCHES[0], lambda redis: redis.rpop(BRANCHES[0]))


def doubles(chain: Chain) -> None:
    held_up(chain, "vpush", BRANCHES[0], lambda redis: redis.rpush(BRANCHES[0], redis.lindex(BRANCHES[0], -1)))


def swaps(chain: Chain) -> None:
    held_up(chain, "vpush", BRANCHES[0], lambda redis: redis.rpoplpush(BRANCHES[0], BRANCHES[0]))


def ends_unkept(chain: Chain) -> None:
    """Do what a `done` for the wrong message does."""

    def end(redis: Any) -> None:
        redis.lpush(DONE, json.dumps({"xid": xid_of(redis.rpop(WORK))}))

    held_up(chain, "worker", WORK, end)


@pytest.mark.parametrize(
    ("sabotage", "wrong"),
    [(loses, "lost"), (doubles, "doubled"), (swaps, "disordered"), (ends_unkept, "gone")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_one_message_that_a_defect_would_cost_turns_the_seed_red(
    fork_server: ForkServer, rng: random.Random, sabotage: Callable[[Chain], None], wrong: str
) -> None:
    result = run_seed(fork_server, rng.randrange(10**6), 2, faults=False, sabotage=sabotage)
    assert not result.holds
    counts = {name: getattr(result.account, name) for name in ("lost", "doubled", "disordered", "gone", "foreign")}
    assert counts == {**dict.fromkeys(counts, 0), wrong: 1}


def test_a_worker_that_drops_what_it_says_is_done_turns_the_seed_red(
    fork_server: ForkServer, rng: random.Random
) -> None:
    result = run_seed(fork_server, rng.randrange(10**6), 3, faults=False, loses=50)
    assert not result.holds
    assert result.account.gone >= result.account.accepted // 50 * 0.7
    assert result.account.gone > 0
    assert (result.account.lost, result.account.doubled, result.account.disordered) == (0, 0, 0)


def test_a_seed_of_all_faults_at_once_loses_doubles_and_disorders_nothing(
    fork_server: ForkServer, rng: random.Random
) -> None:
    result = run_seed(fork_server, rng.randrange(10**6), 20)
    print(result)
    assert result.holds, line(result)
    assert result.account.accepted > 200
    assert sum(result.faults.values()) > 8


@pytest.mark.parametrize(
    ("arrived", "kept", "expected"),
    [
        (PUSHED, PUSHED, {}),
        ([*PUSHED[:3], *PUSHED[4:]], PUSHED, {"lost": 1}),
        ([b"1", b"2", b"x", b"", b"y"], PUSHED, {"lost": 1}),
        ([*PUSHED, b"x"], PUSHED, {"doubled": 1}),
        ([b"1", b"", b"x", b"2", b"", b"y"], PUSHED, {"disordered": 1}),
        ([b"y", b"", b"2", b"x", b"", b"1"], PUSHED, {"disordered": 3}),
        (PUSHED, [*PUSHED[1:], b"y"], {"gone": 1, "again": 1}),
        (PUSHED, PUSHED[:1] + PUSHED[2:], {"gone": 1}),
        ([*PUSHED, b"z"], PUSHED, {"foreign": 1}),
        (PUSHED, [*PUSHED, b"z"], {"foreign": 1, "again": 1}),
        ([*PUSHED, b"unsure"], [*PUSHED, b"unsure"], {}),
        ([*PUSHED, b"unsure", b"unsure"], PUSHED, {"doubled": 1}),
    ],
)
def test_an_account_counts_by_content(arrived: list[bytes], kept: Sequence[bytes], expected: dict[str, int]) -> None:
    letter = json.dumps({"reason": "timeout", "message": "y"}).encode()
    alive, dead = [each for each in kept if each != b"y"], [letter] * kept.count(b"y")
    found = account(Pushed(PUSHED, [b"unsure"]), arrived, alive, map(message_of, dead))
    counts = ("lost", "doubled", "disordered", "gone", "foreign", "again")
    assert {name: getattr(found, name) for name in counts} == {**dict.fromkeys(counts, 0), **expected}
    assert found.holds is not bool({*expected} - {"again"})


def test_the_seed_decides_the_messages_and_the_faults() -> None:
    def made(seed: int) -> tuple[list[bytes], list[str]]:
        rng = random.Random(seed)
        messages = payloads(random.Random(rng.random()))
        return [next(messages) for _ in range(2_000)], [draw_fault(rng) for _ in range(200)]

    assert made(1) == made(1)
    messages, faults = made(1)
    assert made(2) != (messages, faults)
    assert {*faults} == {*FAULTS}
    sizes = [len(message) for message in messages]
    assert (min(sizes), LARGE_BYTES / 4 < max(sizes) < 3 * LARGE_BYTES) == (0, True)
    assert sum(message.isdigit() for message in messages) > 400
    full = [message for message in messages if message]
    assert len({*full}) == len(full), "each is known by its content"


def test_what_came_of_a_seed_is_a_row_and_a_line() -> None:
    fine = Result(7, Account(12_345, 3, 0, 0, 0, 0, 0, 2, 5), 200.4, {"cut": 3, "kill -9": 4})
    assert cells(fine) == ["7", "12,345", "3", "0", "0", "0", "0", "2", "5", "7", "200"]
    assert (fine.holds, line(fine)) == (True, "seed 7: 12,345 accepted, nothing lost, doubled or gone")
    bad = Result(8, Account(10, 0, 2, 0, 0, 1, 0, 0, 0, {"lost": ["b'1'"]}), 200.4, {}, {"soak:far": 3})
    assert (bad.holds, line(bad)) == (
        False,
        "seed 8: 10 accepted, 2 lost, 1 gone; still waiting: {'soak:far': 3}; examples: {'lost': [\"b'1'\"]}",
    )


def test_an_order_to_end_leaves_nothing_running() -> None:
    words = [sys.executable, "-m", "tests.reliability.soak", "--seeds", "2", "--seconds", "600"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        children = list[psutil.Process]()

        def busy() -> bool:
            children[:] = psutil.Process(process.pid).children(recursive=True)
            return len(children) > 20  # two servers, a fork server, and nine processes each with a supervisor

        until(busy)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
