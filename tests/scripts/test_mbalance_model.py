"""The script of mbalance against a model that chooses, for each message, by looking at all lists.

Times and weights are powers of two, so that sums are exact and ties are ties.
"""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tests.support.balancing import KEYS, PENDING, SOURCE, contents, counted, move, push, state

TIMES = st.sampled_from([2.0**-power for power in range(10)])
LISTS = st.lists(
    st.tuples(st.integers(0, 30), TIMES, st.booleans(), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=20
)
FAR = 2_000_000_000
"""A time ahead of the server's clock: nothing that was measured fades, and no list has been busy since."""


def chosen(policy: str, lists: Sequence[tuple[int, float, bool, int]], messages: int) -> list[int]:
    """Return the place of the list that each message goes to, by the rule alone."""
    waiting = [length if alive else 0 for length, _, alive, _ in lists]
    got, turns, places = [0] * len(lists), [place - len(lists) for place in range(len(lists))], []

    def cost(place: int) -> float:
        _, seconds, _, weight = lists[place]
        return {
            "expectedWait": (waiting[place] + 1) * seconds,
            "length": waiting[place] + 1,
            "roundRobin": 0,
            "weighted": got[place] / weight,
        }[policy]

    for number in range(messages):
        alive = [place for place, (_, _, lives, _) in enumerate(lists) if lives]
        place = min(alive, key=lambda each: (cost(each), turns[each]))
        waiting[place], got[place], turns[place] = waiting[place] + 1, got[place] + 1, number + 1
        places.append(place)
    return places


@pytest.mark.parametrize("policy", ["length", "roundRobin", "weighted", "expectedWait"])
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lists=LISTS, in_hand=st.integers(0, 5), messages=st.integers(0, 60), data=st.data())
async def test_each_message_goes_where_the_rule_says(
    redis: Redis,
    policy: str,
    lists: list[tuple[int, float, bool, int]],
    in_hand: int,
    messages: int,
    data: st.DataObject,
) -> None:
    await redis.flushall()
    names = [f"out{place}" for place in range(len(lists))]
    for name, (length, seconds, alive, _) in zip(names, lists, strict=True):
        await push(redis, name, [f"{name}:{number}" for number in range(length)])
        if alive:
            await redis.set(f"{name}:alive", 1)
        if policy == "expectedWait":
            place = names.index(name) - len(names)
            await redis.hset(KEYS.rates, name, state(seconds, 20, FAR, FAR, 0, place))
    await push(redis, PENDING, [f"pending:{number}" for number in range(in_hand)])
    await push(redis, SOURCE, [f"in:{number}" for number in range(messages)])
    stranded = [
        f"{name}:{number}"
        for name, (length, _, alive, _) in zip(names, lists, strict=True)
        for number in range(0 if alive else length)
    ]
    order = [*stranded, *(f"pending:{n}" for n in range(in_hand)), *(f"in:{n}" for n in range(messages))]
    batch = data.draw(st.integers(1, 100))
    weights = [weight for *_, weight in lists] if policy == "weighted" else []
    found = await move(
        redis, names, policy=policy, registrations=[f"{name}:alive" for name in names], batch=batch, weights=weights
    )
    living = sum(lives for _, _, lives, _ in lists)
    if not living:
        assert found == (0, in_hand + messages, 0, 0)
        return
    moved = order[:batch]
    assert (found.messages, found.waiting, found.alive) == (len(moved), len(order) - len(moved), living)
    expected = {
        name: [f"{name}:{number}" for number in range(length)] for name, (length, *_) in zip(names, lists, strict=True)
    }
    for message in moved[: len(stranded)]:
        if not message.startswith(("in:", "pending:")):
            expected[message.split(":")[0]].remove(message)
    for message, place in zip(moved, chosen(policy, lists, len(moved)), strict=True):
        expected[names[place]].append(message)
    held = dict(zip(names, await contents(redis, names), strict=True))
    assert {name: [message.decode() for message in content] for name, content in held.items()} == expected
    delivered = await counted(redis, "delivered")
    assert delivered.pop("count", 0) == len(moved) == sum(delivered.values())
