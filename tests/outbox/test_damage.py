"""What has become of a store on a disk that changes or loses data: said at the start or at the read, and salvaged."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.outbox import Damaged, DiskFull, listing, spool
from penstock.outbox.ids import new_id
from penstock.outbox.lock import NAME as LOCK
from penstock.outbox.lock import Lock
from penstock.outbox.salvage import salvage
from penstock.outbox.store import NAME, TROUBLE, Arrived, Failed, Store, file
from penstock.outbox.trouble import trouble_with
from tests.outbox.outboxes import Got, add, opened, outbox, published
from tests.support.harness import eventually

FRAME = 24 + 4096
LOG = f"{NAME}-wal"
SPOOLED = ("redis.example.com:6379", b"orders")
UNUSED: Any = None


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a datadir as a killed process leaves it, with 60 messages that were stored one after another."""
    owned, killed = tmp_path / "owned", tmp_path / "killed"
    owned.mkdir()
    lock = Lock(owned)
    store = Store.open(owned)
    lock.note_log(store.begin_log())
    with store.transaction():
        store.add_destination("a:1", 1)
    for seq in range(1, 61):
        add(store, published(seq, data=b"%d" % seq + b"x" * 300))
    shutil.copytree(owned, killed)
    store.close()
    lock.note_log(False)
    lock.release()
    return killed


def opened_again(datadir: Path) -> int:
    """Open the store as an outbox does; return how many messages it has."""
    lock = Lock(datadir)
    try:
        store = Store.open(datadir, has_log=lock.has_log)
        lock.note_log(False)
        found = store.counts().outgoing
        store.close()
        return found
    finally:
        lock.release()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_killed_store_opens_with_all(killed: Path) -> None:
    assert opened_again(killed) == 60
    assert opened_again(killed) == 60
    assert not (killed / LOCK).exists()


@pytest.mark.parametrize("where", ["page", "checksum", "salt", "size", "header", "last"])
def test_a_bit_of_the_log_that_flips_is_damage(killed: Path, where: str) -> None:
    frames = ((killed / LOG).stat().st_size - 32) // FRAME
    middle = 32 + frames // 2 * FRAME
    places = {"page": 500, "checksum": 18, "salt": 9, "size": 7}
    at = 18 if where == "header" else 32 + (frames - 1) * FRAME + 99 if where == "last" else middle + places[where]
    flip(killed / LOG, at)
    for _ in range(2):
        with pytest.raises(Damaged, match="penstock outbox salvage"):
            opened_again(killed)


def test_a_bit_of_a_log_without_its_index_is_damage(killed: Path) -> None:
    (killed / f"{NAME}-shm").unlink()
    flip(killed / LOG, (killed / LOG).stat().st_size // 2)
    with pytest.raises(Damaged, match="frames are whole"):
        opened_again(killed)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_log_that_ends_early_is_damage(killed: Path, share: float) -> None:
    os.truncate(killed / LOG, int((killed / LOG).stat().st_size * share))
    for _ in range(2):
        with pytest.raises(Damaged):
            opened_again(killed)


def _remove_log(datadir: Path) -> None:
    (datadir / LOG).unlink()


def _remove_log_and_index(datadir: Path) -> None:
    (datadir / LOG).unlink()
    (datadir / f"{NAME}-shm").unlink()


def _empty_store(datadir: Path) -> None:
    (datadir / NAME).write_bytes(b"")


def _remove_store(datadir: Path) -> None:
    (datadir / NAME).unlink()


def _remove_all_but_lock(datadir: Path) -> None:
    for each in datadir.glob(f"{NAME}*"):
        each.unlink()


@pytest.mark.parametrize(
    "harm", [_remove_log, _remove_log_and_index, _empty_store, _remove_store, _remove_all_but_lock]
)
def test_a_part_that_is_gone_is_damage(killed: Path, harm: Callable[[Path], None]) -> None:
    harm(killed)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"gone|empty"):
            opened_again(killed)


def test_a_torn_last_write_is_dropped(killed: Path) -> None:
    (killed / f"{NAME}-shm").unlink()  # after a power cut it may have anything
    (killed / LOCK).unlink()
    os.truncate(killed / LOG, (killed / LOG).stat().st_size - 100)
    assert opened_again(killed) == 59


def names(datadir: Path) -> set[str]:
    return {each.name for each in datadir.iterdir()}


async def test_an_outbox_that_was_closed_opens_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with outbox(tmp_path) as sender:
            await sender.send("k", "x", "127.0.0.1:1")
            assert {LOCK, LOG} < names(tmp_path)
        assert names(tmp_path) == {NAME}


BODIES = {
    "messages": "UPDATE messages SET data = CAST('y' AS BLOB) WHERE seq = 2",
    "keys": "UPDATE messages SET keys = 'j' WHERE seq = 2",
    "type": "UPDATE messages SET data = CAST(data AS TEXT) WHERE seq = 2",
    "incoming": "UPDATE incoming SET sender = 'b:2'",
    "seen": "UPDATE seen SET until = 1e9",
    "sweep": "UPDATE seen SET until = 1e9",
    "dead": "UPDATE dead SET error = 'b'",
    "spooled": "UPDATE spooled SET data = CAST('y' AS BLOB)",
    "no sum": "UPDATE messages SET sum = NULL WHERE seq = 2",
}


SMALL = {
    "identity": "UPDATE meta SET value = zeroblob(16) WHERE name = 'identity'",
    "clock": "UPDATE meta SET value = value + 3600 WHERE name = 'clock'",
    "name": "UPDATE meta SET name = 'store of:a:2' WHERE name = 'identity'",
    "gone": "DELETE FROM meta WHERE name = 'identity'",
    "subscription": "UPDATE subscriptions SET address = 'b:2'",
}


@pytest.mark.parametrize("what", SMALL)
def test_a_small_table_that_changed_is_found_when_any_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(file, "CHECKED_BYTES", 0)
    filled(tmp_path)
    with opened(tmp_path) as store, store.transaction():
        store.add_subscriptions("a:1", ["k"])
    change(tmp_path, SMALL[what])
    with pytest.raises(Damaged, match="penstock outbox salvage"):
        opened_again(tmp_path)


def filled(datadir: Path) -> None:
    datadir.mkdir(exist_ok=True)
    store = Store.open(datadir)
    add(store, *(published(seq) for seq in range(1, 4)))
    with store.transaction():
        store.add_destination("a:1")
        store.arrive([Arrived(1, new_id(), "a:1", "k", b"x")])
        store.see([b"m" * 16], 1e6)
        store.bury(new_id(), "a:1", 0, "k", b"x", 5, "a")
        spool._begin(store, [(SPOOLED, None, [b"x"])])
    store.close()


@pytest.mark.parametrize("what", BODIES)
def test_a_row_that_changed_is_found_when_a_small_store_is_opened(tmp_path: Path, what: str) -> None:
    filled(tmp_path)
    change(tmp_path, BODIES[what])
    with pytest.raises(Damaged, match=r"1 of .*penstock outbox salvage"):
        opened_again(tmp_path)


def requeue(store: Store) -> None:
    with store.transaction():
        store.requeue(1)


def bury(store: Store) -> None:
    with store.transaction():
        store.fail([Failed(1, 5, None, "in vain")])


READS: dict[str, Callable[[Store], object]] = {
    "messages": lambda store: store.next_outgoing(1, 0, 1000),
    "type": lambda store: list(listing.outgoing(store, data=True)),
    "incoming": lambda store: store.next_incoming(0, 1000, 10),
    "seen": lambda store: store.unseen([b"m" * 16]),
    "sweep": lambda store: store.forget_seen(b"", 10),
    "dead": requeue,
    "buried": bury,
    "spooled": lambda store: spool.Spool(store, UNUSED, UNUSED, *SPOOLED)._read(10, 1000),
}


@pytest.mark.parametrize("what", READS)
def test_a_row_that_changed_is_found_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(file, "CHECKED_BYTES", 0)
    filled(tmp_path)
    change(tmp_path, BODIES[what if what in BODIES else "incoming"])
    store = Store.open(tmp_path)
    with pytest.raises(Damaged, match="penstock outbox salvage"):
        READS[what](store)
    store.close()


def test_a_message_whose_row_is_gone_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "CHECKED_BYTES", 0)
    filled(tmp_path)
    change(tmp_path, "DELETE FROM messages WHERE seq = 2")
    store = Store.open(tmp_path)
    with pytest.raises(Damaged, match="message 2"):
        store.next_outgoing(1, 0, 1000)
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM messages WHERE seq = 2",
        "DELETE FROM deliveries WHERE seq = 2",
        "UPDATE deliveries SET seq = 99 WHERE seq = 2",
        "UPDATE deliveries SET destination = 9 WHERE seq = 3",
    ],
)
def test_a_message_and_its_deliveries_that_differ_are_found_when_a_small_store_is_opened(
    tmp_path: Path, statement: str
) -> None:
    filled(tmp_path)
    change(tmp_path, statement)
    with pytest.raises(Damaged, match=r"1 of (messages|deliveries) .*penstock outbox salvage"):
        Store.open(tmp_path)


@pytest.mark.parametrize("table", ["sqlite_schema", "meta", "destinations", "deliveries"])
def test_any_bit_that_flips_in_a_small_table_is_damage_or_changes_nothing(tmp_path: Path, table: str) -> None:
    filled(tmp_path)
    with opened(tmp_path) as store, store.transaction():
        store.put(f"{TROUBLE}a:1", '["refused", 1.5]')
        store.pin("a:1", b"s" * 16)
        store.note_peers_bound(1000)
        store.add_subscriptions("a:1", ["k"])
    page, whole = page_of(tmp_path, table), (tmp_path / NAME).read_bytes()
    before = content(tmp_path)
    for number, at in enumerate(at for at in range(page, page + 4096) if whole[at] and at > 100):
        if number % 7:
            continue
        changed = bytearray(whole)
        changed[at] ^= 1 << number // 7 % 8
        (tmp_path / NAME).write_bytes(changed)
        with suppress(Damaged):
            assert content(tmp_path) == before, at
        for each in tmp_path.glob(f"{NAME}-*"):
            each.unlink()


def content(datadir: Path) -> list[object]:
    """Open the store, and return what an outbox reads of it at the start, and what waits."""
    with opened(datadir) as store:
        return [
            store.identity,
            store.peers_bound,
            store.pinned(),
            trouble_with(store, "a:1"),
            store.destinations(),
            list(store.subscriptions()),
            store.next_outgoing(1, 0, 10_000),
        ]


def page_of(datadir: Path, name: str) -> int:
    """Return where the page of a small table or index begins in the file."""
    db = sqlite3.connect(datadir / NAME)
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone() or (1,)
    db.close()
    return (int(root) - 1) * 4096


@pytest.mark.parametrize("which", ["destinations", "sqlite_autoindex_destinations_1"])
@pytest.mark.parametrize("checked", [file.CHECKED_BYTES, 0])
def test_an_address_that_changed_is_damage_and_not_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, checked: int
) -> None:
    monkeypatch.setattr(file, "CHECKED_BYTES", checked)
    old = tmp_path / "old"
    filled(old)
    with opened(old) as store, store.transaction():
        store.add_destination("b:2")
    page = page_of(old, which)
    flip(old / NAME, (old / NAME).read_bytes().index(b"a:1", page))
    with pytest.raises(Damaged, match="penstock outbox salvage"):
        Store.open(old)
    found = {each.table: each for each in salvage(old, tmp_path / "new")}
    assert found["destinations"].lost == ["1 do not verify"]
    assert found["deliveries"].lost == ["3 are for a destination that is not known"]
    with opened(tmp_path / "new") as store:
        assert list(store.destinations()) == ["b:2"]


def change(datadir: Path, statement: str) -> None:
    db = sqlite3.connect(datadir / NAME)
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_a_former_version_is_read_and_converted(tmp_path: Path, version: int) -> None:
    filled(tmp_path)
    db = sqlite3.connect(tmp_path / NAME)
    for table in ("meta", "messages", "incoming", "dead", "spooled", "seen")[: 1 if version == 2 else None]:
        db.execute(f"ALTER TABLE {table} DROP COLUMN sum")
    db.execute(f"PRAGMA user_version={version}")
    db.commit()
    db.close()
    for _ in range(2):
        store = Store.read(tmp_path)
        assert [each.data for each in listing.outgoing(store, data=True)] == [b"data"] * 3
        assert len(list(listing.dead(store, data=True))) == len(list(listing.incoming(store, data=True))) == 1
        store.close()
        store = Store.open(tmp_path)
        assert [each.seq for each in store.next_outgoing(1, 0, 1000)] == [1, 2, 3]
        assert store.unseen([b"m" * 16]) == set()
        store.close()
    store = Store.open(tmp_path)
    with store.transaction():
        assert store.requeue(1)
        store.publish([published(4)])
    store.close()
    change(tmp_path, "UPDATE messages SET data = CAST('y' AS BLOB) WHERE seq = 4")
    with pytest.raises(Damaged):
        Store.open(tmp_path)


def test_a_store_of_the_former_version_is_salvaged_or_opens_without_its_notes_of_trouble(tmp_path: Path) -> None:
    old = tmp_path / "old"
    filled(old)
    with opened(old) as store, store.transaction():
        identity = store.identity
        store.put(f"{TROUBLE}a:1", "[")
    db = sqlite3.connect(old / NAME)
    db.execute("ALTER TABLE meta DROP COLUMN sum")
    db.execute("PRAGMA user_version=2")
    db.commit()
    db.close()
    assert [each.lost for each in salvage(old, tmp_path / "new")] == [[]] * 14
    with opened(tmp_path / "new") as store:
        assert (store.identity, len(store.next_outgoing(1, 0, 1000))) == (identity, 3)
    with opened(old) as store:
        assert store.identity == identity
        assert trouble_with(store, "a:1") is None


def test_what_verifies_is_salvaged(killed: Path, tmp_path: Path) -> None:
    frames = ((killed / LOG).stat().st_size - 32) // FRAME
    flip(killed / LOG, 32 + frames // 2 * FRAME + 500)
    before = {each.name: each.read_bytes() for each in killed.iterdir() if each.name != LOCK}
    found = {each.table: each for each in salvage(killed, tmp_path / "new")}
    assert found["log"].lost == ["1 pages do not verify"]
    assert before == {each.name: each.read_bytes() for each in killed.iterdir() if each.name != LOCK}
    assert found["messages"].copied == opened_again(tmp_path / "new") >= 55
    with pytest.raises(Damaged):
        opened_again(killed)


def test_rows_that_do_not_verify_are_not_salvaged(tmp_path: Path) -> None:
    filled(tmp_path / "old")
    identity = Store.read(tmp_path / "old").identity
    change(tmp_path / "old", BODIES["messages"])
    found = {each.table: each for each in salvage(tmp_path / "old", tmp_path / "new")}
    assert found["messages"].copied == 2
    assert found["messages"].lost == ["1 do not verify"]
    assert found["deliveries"].lost == ["1 are of a message that is not whole"]
    assert [found[table].copied for table in ("incoming", "seen", "dead", "destinations")] == [1, 1, 1, 1]
    store = Store.open(tmp_path / "new")
    assert [each.seq for each in store.next_outgoing(1, 0, 1000)] == [1, 3]
    assert store.identity == identity
    store.close()


def test_what_is_on_both_sides_of_a_page_that_is_gone_is_salvaged(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    store = Store.open(old)
    with store.transaction():
        store.add_destination("a:1", 1)
    add(store, *(published(seq, data=b"x" * 1000) for seq in range(1, 200)))
    store.close()
    content = bytearray((old / NAME).read_bytes())
    at = content.rfind(b"x" * 1000, 0, len(content) // 2) // 4096 * 4096
    content[at : at + 64] = b"\xff" * 64
    (old / NAME).write_bytes(content)
    with pytest.raises(Damaged):
        Store.open(old)
    found = {each.table: each for each in salvage(old, tmp_path / "new")}
    assert 190 <= found["messages"].copied < 199
    assert any("cannot be read" in each for each in found["messages"].lost)
    assert opened_again(tmp_path / "new") == found["messages"].copied


async def test_an_outbox_says_that_a_message_is_damaged_and_goes_on_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHECKED_BYTES", 0)
    sender = tmp_path / "sender"
    async with outbox(sender) as one:
        await one.send("k", "x", "127.0.0.1:1")
        assert (await one.status()).trouble == ""
    store = Store.open(sender)
    with store.transaction():
        store.arrive([Arrived(1, new_id(), "a:1", "k", b"x")])
    store.close()
    change(sender, "UPDATE messages SET data = CAST('y' AS BLOB)")
    change(sender, "UPDATE incoming SET data = CAST('y' AS BLOB)")
    got, whole = Got(), Got()
    async with outbox(sender) as one, outbox(tmp_path / "other") as other:
        one.all(got)
        other.all(whole)
        await one.send("k", "z", other.advertise)
        await whole.wait_for("z")
        await eventually(lambda: "messages" in one._deliveries.away.get("127.0.0.1:1", ""))
        assert "penstock outbox salvage" in (await one.status()).trouble
        assert not got.messages


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_that_was_deleted_while_it_is_open_takes_no_message_and_is_in_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    one = await outbox(tmp_path).__aenter__()
    await one.send("k", "x", "127.0.0.1:1")
    if replaced:
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").rename(tmp_path / NAME)
    else:
        (tmp_path / NAME).unlink()
    status = await one.status()
    assert (status.counts.outgoing, "was deleted or replaced" in status.trouble) == (1, True)
    monkeypatch.setattr(file, "LOOK_SECONDS", -1)
    with pytest.raises(Damaged, match="was deleted or replaced"):
        await one.send("k", "y", "127.0.0.1:1")
    assert (await one.status()).counts.outgoing == 1
    monkeypatch.undo()
    with pytest.raises(Damaged, match="was deleted or replaced"):
        await one.close()


async def test_a_full_disk_is_in_the_status_until_there_is_room(tmp_path: Path) -> None:
    async with outbox(tmp_path) as full:
        db = full._commits._store.connection
        db.execute(f"PRAGMA max_page_count={db.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(DiskFull):
            await full.send("k", "x" * 100_000, "127.0.0.1:1")
        assert "cannot be written: database or disk is full" in (await full.status()).trouble
        db.execute("PRAGMA max_page_count=1000000")
        await full.send("k", "x" * 100_000, "127.0.0.1:1")
        assert (await full.status()).trouble == ""
