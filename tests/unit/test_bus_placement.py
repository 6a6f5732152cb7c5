"""Where names live among several servers: the table was made by running busmq 3.1.0."""

import unicodedata

import pytest

from penstock.bus.placement import busmq_index, rendezvous_index

HOMES = {
    "foo": (0, 2, 0),
    "bar": (1, 2, 0),
    "zoo": (0, 1, 0),
    "orders": (1, 0, 1),
    "q1": (0, 2, 3),
    "q2": (1, 0, 4),
    "a": (1, 0, 3),
    "channel:local:zoo": (0, 1, 3),
    "channel:remote:zoo": (1, 1, 2),
    "channel:server:room": (1, 2, 4),
    "service:echo": (0, 1, 2),
    "service:echo:replyTo:0123456789abcdef": (1, 1, 1),
    "user.42": (1, 0, 1),
    "A": (1, 1, 1),
    "Ünïcödé": (1, 1, 3),
    "naïve": (1, 1, 1),
    "日本": (1, 2, 3),
    "😀": (1, 0, 0),
    "with space": (0, 0, 1),
    "x:y:z": (1, 1, 0),
}
"""The place of each queue among 2, 3 and 5 servers."""


@pytest.mark.parametrize("name", HOMES)
def test_queues_live_where_busmq_puts_them(name: str) -> None:
    assert unicodedata.is_normalized("NFC", name)
    key = f"bus:queue:{name}:metadata"
    assert tuple(busmq_index(key, ["redis://x"] * many) for many in (2, 3, 5)) == HOMES[name]


@pytest.mark.parametrize(("name", "places"), [("obj", (0, 0, 0)), ("cart:17", (1, 0, 3))])
def test_persisted_objects_live_where_busmq_puts_them(name: str, places: tuple[int, ...]) -> None:
    assert tuple(busmq_index(f"bus:persisted:{name}", ["redis://x"] * many) for many in (2, 3, 5)) == places


def test_half_a_character_counts_as_it_does_in_node() -> None:
    assert busmq_index("\ud83d", ["redis://x"] * 1000) == 0xD83D % 1000


def test_rendezvous_moves_only_the_names_that_the_new_server_gets() -> None:
    servers = [f"redis://host{number}" for number in range(5)]
    for number in range(500):
        before, after = (servers[rendezvous_index(f"q{number}", servers[:many])] for many in (4, 5))
        assert after in (before, servers[4])
    spread = [rendezvous_index(f"q{number}", servers) for number in range(1000)]
    assert all(150 < spread.count(place) < 250 for place in range(5))
    assert {each[rendezvous_index("q", each)] for each in (servers, servers[::-1])} == {
        servers[rendezvous_index("q", servers)]
    }
