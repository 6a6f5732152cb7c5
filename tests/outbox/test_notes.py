"""Notes: what a program that moves messages into an outbox knows after a crash; and the address that outboxes show."""

from pathlib import Path

import pytest

from penstock.base.errors import WrongCall
from penstock.base.ports import free_port
from penstock.outbox import DiskFull, Security
from penstock.outbox.store import Store
from tests.outbox.outboxes import Got, outbox, stored, subscribed


async def test_messages_and_their_note_are_stored_together(tmp_path: Path) -> None:
    got = Got()
    async with outbox(tmp_path / "one") as one, outbox(tmp_path / "two") as two:
        two.all(got)
        await subscribed(two, one, "rain")
        assert (one.subscribers("rain"), one.subscribers(["snow"]), one.note_of("list")) == (1, 0, None)
        await one.publish_all([("rain", b"1"), (["snow", "rain"], b"2"), ("snow", b"nobody's")], "list", "first")
        await got.wait_for("1", "2")
        await one.publish_all([], "list", "second")
        await one.publish_all([], "another list", "third")
    async with outbox(tmp_path / "one") as one:
        assert (one.note_of("list"), one.note_of("another list")) == ("second", "third")


async def test_neither_messages_nor_note_are_stored_if_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with outbox(tmp_path / "one") as one, outbox(tmp_path / "two", bind="127.0.0.1:0") as two:
        await subscribed(two, one, "rain")
        await two.close()
        with pytest.raises(WrongCall, match="too large"):
            await one.publish_all([("rain", b"1"), ("rain", bytes(one.max_bytes + 1))], "list", "first")

        def full(store: Store, messages: object) -> None:
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(Store, "publish", full)
            with pytest.raises(DiskFull):
                await one.publish_all([("rain", b"1")], "list", "first")
        assert one.note_of("list") is None
        assert stored(one.datadir, lambda store: store.counts().outgoing) == 0


@pytest.mark.parametrize("chosen", [True, False])
async def test_an_outbox_without_advertise_proves_the_address_it_is_bound_to(tmp_path: Path, chosen: bool) -> None:
    secret = Security.shared("sixteen bytes or more")
    bind = f"127.0.0.1:{free_port() if chosen else 0}"
    async with (
        outbox(tmp_path / "one", bind=bind, security=secret) as one,
        outbox(tmp_path / "two", security=secret) as two,
    ):
        assert one.advertise == bind or not chosen
        await subscribed(two, one, "rain")
