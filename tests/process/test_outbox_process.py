"""outbox as a process at each of two sites."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.outbox.settings import Settings
from tests.support.harness import Service, until
from tests.support.outbox_site import Place
from tests.support.tls import certificate, needs_openssl


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def one(here: Any, redis_url: str, tmp_path: Path, ends: ExitStack) -> Place:
    return Place("one", redis_url, tmp_path, ends)


@pytest.fixture
def two(here: Any, redis_url: str, tmp_path: Path, ends: ExitStack) -> Place:
    return Place("two", redis_url, tmp_path, ends)


async def test_what_is_pushed_while_a_site_is_away_arrives_when_it_is_back(one: Place, two: Place) -> None:
    one.up()
    service = two.up(subscribe=f"one@{one.address}")
    one.until_subscribed()
    assert service.stop() == 0
    one.push(*map(b"%d".__mod__, range(1000)))
    until(lambda: one.stored("outgoing") == 1000 and one.settled())
    until(lambda: one.count("outbox", "outgoing") == 1000)
    assert one.count("outbox", "away") == 1
    two.up(subscribe=f"one@{one.address}")
    until(lambda: len(two.arrived()) >= 1000)
    assert two.arrived() == [b"%d" % number for number in range(1000)]


def test_a_message_without_subscribers_is_a_dead_letter_or_dropped(one: Place, two: Place) -> None:
    service = one.up(unsubscribed="dead")
    one.push(b"nobody wants it")
    until(lambda: one.client.llen(one.keys.dead) == 1)
    assert b'"reason":"noSubscriber"' in one.client.lindex(one.keys.dead, 0)
    assert service.stop() == 0
    one.up(unsubscribed="drop")
    one.push(b"nor that")
    until(lambda: one.count("dropped", "one:in") == 1)
    assert (one.count("taken"), one.count("dead"), one.count("delivered")) == (2, 1, 0)


def test_a_message_waits_for_its_first_subscriber(one: Place, two: Place) -> None:
    service = one.up()
    one.push(b"1", b"2")
    until(lambda: "no subscriber" in service.log_text())
    assert (one.client.lrange("one:pending", 0, -1), one.count("delivered")) == ([b"2", b"1"], 0)
    two.up(subscribe=f"one@{one.address}")
    until(lambda: two.has(2) and one.settled())
    assert two.arrived() == [b"1", b"2"]


def test_keys_come_from_a_field_and_what_has_none_is_a_dead_letter(one: Place, two: Place) -> None:
    one.up(publish=None, publish_field="meta.topic", unsubscribed="dead")
    two.up(subscribe=f"rain@{one.address},snow@{one.address}")
    one.until_subscribed(2)
    wanted = [b'{"meta":{"topic":"rain"}}', b'{"meta":{"topic":["fog","snow"]}}']
    one.push(
        *wanted, b'{"meta":{"topic":"fog"}}', b"no JSON", b'{"meta":{"topic":["a\\nb"]}}', b'{"meta":{"topic":[]}}'
    )
    until(lambda: len(two.arrived()) == 2 and one.settled())
    assert two.arrived() == wanted
    reasons = [
        letter.partition(b'"reason":"')[2].partition(b'"')[0] for letter in one.client.lrange(one.keys.dead, 0, -1)
    ]
    assert sorted(reasons) == [b"badKey", b"noKey", b"noKey", b"noSubscriber"]


def test_what_is_no_longer_subscribed_to_does_not_come(one: Place, two: Place) -> None:
    one.up(publish=None, publish_field="topic", unsubscribed="drop")
    service = two.up(subscribe=f"rain@{one.address},snow@{one.address}")
    one.until_subscribed(2)
    assert service.stop() == 0
    two.up(subscribe=f"snow@{one.address}")
    one.until_subscribed(1)
    one.push(b'{"topic":"rain"}', b'{"topic":"snow"}')
    until(lambda: two.arrived() and one.settled())
    assert two.arrived() == [b'{"topic":"snow"}']


def test_who_does_not_know_the_secret_gets_nothing(one: Place, two: Place) -> None:
    one.up(secret="one of sixteen bytes or more")
    one.until_subscribed(0)
    stranger = two.up(secret="another of sixteen bytes", subscribe=f"one@{one.address}")
    until(lambda: two.count("outbox", "away") == 1)
    assert one.stored("keys") == 0
    assert stranger.stop() == 0
    two.up(secret="one of sixteen bytes or more", subscribe=f"one@{one.address}")
    one.until_subscribed()


@needs_openssl
def test_sites_with_certificates_talk_and_one_without_gets_nothing(one: Place, two: Place, tmp_path: Path) -> None:
    made = certificate(tmp_path / "tls", "491231")
    tls = {"certificate": made, "key": made.with_name("key.pem"), "authority": made}
    for place in (one, two):
        place.address = place.settings["bind"] = place.address.replace("127.0.0.1", "localhost")
    one.up(**tls)
    one.until_subscribed(0)
    stranger = two.up(subscribe=f"one@{one.address}")
    until(lambda: two.count("outbox", "away") == 1)
    assert one.stored("keys") == 0
    assert stranger.stop() == 0
    two.up(**tls, subscribe=f"one@{one.address}")
    one.until_subscribed()
    one.push(b"encrypted")
    until(lambda: two.arrived() == [b"encrypted"])


def test_who_is_not_allowed_is_not_subscribed(one: Place, two: Place) -> None:
    one.up(allowed=f"snow@{two.address}")
    two.up(subscribe=f"rain@{one.address},snow@{one.address}")
    until(lambda: one.count("outbox", "refused") == 1)
    assert one.stored("keys") == 0


def test_settings_change_while_it_runs(one: Place, two: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is subscribed to: it is in the datadir, and the outbox is opened again."""
    one.up(publish=None, publish_field="topic", unsubscribed="drop")
    props = tmp_path / "two.yaml"
    given = {name: value for name, value in two.settings.items() if name in ("redis", "redis_namespace", "out")}
    monkeypatch.setenv("PROPS_FILE", str(props))
    lines = {"datadir": two.datadir, "bind": two.address, "subscribe": f"[rain@{one.address}]"}
    props.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    service = Service("outbox", tmp_path / "two.log", **given)
    with service:
        one.until_subscribed(1)
        one.push(b'{"topic":"rain"}')
        until(lambda: two.has(1))
        lines["subscribe"] = f"[snow@{one.address}, fog@{one.address}]"
        props.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
        service.signal(signal.SIGHUP)
        one.until_subscribed(2)
        one.push(b'{"topic":"rain"}', b'{"topic":"snow"}')
        until(lambda: two.has(2) and one.settled())
        assert two.arrived() == [b'{"topic":"rain"}', b'{"topic":"snow"}']
        assert service.stop() == 0


def test_the_rights_that_penstock_acl_prints_suffice(one: Place, two: Place) -> None:
    made: dict[str, Any] = {**one.settings, "datadir": str(one.datadir)}
    settings = Settings(**made, subscribe=[f"two@{two.address}"])
    one.client.execute_command(*shlex.split(settings.rights()[settings.redis].line("outbox", "word")))
    try:
        service = one.up(
            redis=one.url.replace("://", "://outbox:word@"), subscribe=f"two@{two.address}", durability="memory"
        )
        two.up(subscribe=f"one@{one.address}")
        one.until_subscribed()
        two.until_subscribed()
        one.push(b"there")
        two.push(b"back")
        until(lambda: two.has(1) and one.has(1))
        one.push(*[bytes(1000)] * 1000)
        until(lambda: two.has(1001) and one.settled())
        assert service.stop() == 0
        assert one.client.llen(one.keys.dead) == 0
    finally:
        one.client.acl_deluser("outbox")


def test_a_datadir_in_use_and_an_address_that_is_taken_end_the_start(one: Place, two: Place) -> None:
    one.up()
    one.until_subscribed(0)
    other = two.up(datadir=one.datadir)
    assert other.wait() == 1
    assert "is in use by process" in other.log_text()
    taken = two.up(bind=one.address)
    assert taken.wait() == 1
    assert f"{one.address} is taken: set bind" in taken.log_text()
