"""The store of an outbox: groups, torn writes, full and read-only disks, clocks, damage."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.outbox import Damaged, DiskFull
from penstock.outbox.commits import IDLE_SECONDS, GroupCommit
from penstock.outbox.ids import as_id, as_text, new_id, sent_at
from penstock.outbox.lock import Lock, Owner, owner_of
from penstock.outbox.store import Arrived, Copy, Failed, Published, Store
from tests.outbox.outboxes import (
    Got,
    add,
    count,
    incoming,
    opened,
    outbox,
    outgoing,
    published,
    stored,
    subscribed,
    texts,
)
from tests.support.harness import eventually

WAL_HEADER, FRAME_HEADER = 32, 24


def test_ids_are_of_version_7_and_tell_the_time() -> None:
    before = time.time()
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    for id in ids:
        assert (id[6] >> 4, id[8] >> 6) == (7, 2)
        assert before - 0.001 <= sent_at(id) <= time.time()
        assert as_id(as_text(id)) == id


def test_a_fork_makes_other_ids() -> None:
    code = (
        "import os\nfrom penstock.outbox.ids import new_id\n"
        "first, child = new_id(), os.fork()\nos.write(1, new_id().hex()[12:].encode() + b' ')\nchild and os.wait()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) == len(set(found)) == 2


@pytest.mark.parametrize("left_out", [0, 5], ids=["in a row", "with a gap"])
def test_messages_for_the_same_destinations_are_stored_as_others(tmp_path: Path, left_out: int) -> None:
    copies = [Copy(1, None), Copy(2, "k")]
    seqs = [seq for seq in range(1, 21) if seq != left_out]
    with opened(tmp_path) as store:
        add(store, *(Published(seq, new_id(), "k\nl", b"data", copies) for seq in seqs))
        assert [(each.seq, each.keys) for each in store.next_outgoing(1, 0, 1000)] == [(seq, "k\nl") for seq in seqs]
        assert [(each.seq, each.keys) for each in store.next_outgoing(2, 0, 1000)] == [(seq, "k") for seq in seqs]
        with store.transaction():
            store.settle([(1, seqs[1:]), (2, seqs[:-1])])
        assert store._column("SELECT seq FROM messages") == [seqs[0], seqs[-1]]


def test_a_message_goes_when_its_last_destination_has_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        add(store, *(published(seq, Copy(1, None), Copy(2, "k")) for seq in range(1, 4)), published(4), published(6))
        with store.transaction():
            store.settle([(1, [1, 2, 3, 4])])
        assert [m.seq for m in store.next_outgoing(1, 0, 1000)] == [6]
        assert [m.seq for m in store.next_outgoing(2, 0, 1000)] == [1, 2, 3]
        assert (count(store, "messages"), count(store, "shared")) == (4, 3)
        with store.transaction():
            store.settle([(2, [1, 3]), (1, [6])])
        assert [m.seq for m in store.next_outgoing(2, 0, 1000)] == [2]
        with store.transaction():
            store.settle([(2, [1, 2, 3]), (1, [6])])
        assert [count(store, table) for table in ("messages", "shared", "deliveries")] == [0, 0, 0]


def test_outgoing_is_read_ahead_by_bytes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        add(store, *(published(seq, data=b"x" * 1000) for seq in range(1, 11)))
        assert [m.seq for m in store.next_outgoing(1, 2, 2500)] == [3, 4, 5]
        assert [m.seq for m in store.next_outgoing(1, 9, 1)] == [10]


def test_what_is_sent_to_a_destination_while_it_is_forgotten_is_dropped_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with store.transaction():
            store.send([("a:1", published(1))])
            store.add_subscriptions("a:1", ["k"])
            store.forget(["a:1"])
        assert not any(count(store, table) for table in ("destinations", "deliveries", "messages", "subscriptions"))


def test_a_store_made_by_a_newer_version_or_by_others_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store._db.execute("PRAGMA user_version=4")
    with pytest.raises(Damaged, match="newer version"):
        Store.open(tmp_path)
    with pytest.raises(Damaged, match="newer version"):
        Store.read(tmp_path)
    with sqlite3.connect(tmp_path / "outbox.db") as other:
        other.execute("PRAGMA user_version=0")
    other.close()
    with pytest.raises(Damaged, match="no store of an outbox"):
        Store.open(tmp_path)
    (tmp_path / "outbox.db").write_bytes(b"something else" * 1000)
    with pytest.raises(Damaged):
        Store.open(tmp_path)


def test_a_store_is_read_while_its_owner_writes_and_after_a_crash(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.add_destination("a:1")
        add(store, published(1))
        crashed = tmp_path / "crashed"
        shutil.copytree(tmp_path, crashed)
        assert stored(tmp_path, Store.counts).outgoing == 1
        add(store, published(2))
        assert stored(tmp_path, Store.counts).outgoing == 2
    assert stored(crashed, Store.counts).outgoing == 1
    with pytest.raises(FileNotFoundError):
        Store.read(tmp_path / "nowhere")


def test_who_reads_a_store_waits_until_its_owner_has_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, looked = Lock(tmp_path), threading.Event()
    (tmp_path / "outbox.db").touch()

    def noted_owner_of(datadir: Path) -> Owner | None:
        looked.set()
        return owner_of(datadir)

    def make() -> None:
        looked.wait()
        Store.open(tmp_path).close()

    maker = threading.Thread(target=make)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.outbox.store.file.owner_of", noted_owner_of)
        maker.start()
        assert stored(tmp_path, Store.counts).outgoing == 0
    maker.join()
    (tmp_path / "outbox.db").unlink()
    (tmp_path / "outbox.db").touch()
    monkeypatch.setattr("penstock.outbox.store.file.MAKING_SECONDS", 0)
    with pytest.raises(Damaged, match="its owner is creating it"):
        Store.read(tmp_path)
    lock.release()
    with pytest.raises(Damaged, match="no store of an outbox"):
        Store.read(tmp_path)


@pytest.mark.parametrize("cut_in", ["length", "zeros"])
def test_a_store_cut_at_every_512_bytes_of_its_last_transaction_has_what_was_acknowledged(
    tmp_path: Path, cut_in: str
) -> None:
    """The file ends there, or goes on with zeros: what a disk may keep of a write that was not confirmed."""
    live = tmp_path / "live"
    live.mkdir()
    with opened(live) as store:
        store.add_destination("a:1")
        for seq in range(1, 20):
            add(store, published(seq, data=b"%d" % seq * 300))
        log = live / "outbox.db-wal"
        before = log.stat().st_size
        add(store, *(published(seq, data=b"%d" % seq * 300) for seq in range(20, 30)))
        after = log.stat().st_size
        database, written = (live / "outbox.db").read_bytes(), log.read_bytes()
    assert after - before > 4 * (4096 + FRAME_HEADER)
    whole = 0
    for cut in [*range(before, after, 512), after]:
        torn = tmp_path / "torn"
        torn.mkdir()
        (torn / "outbox.db").write_bytes(database)
        rest = bytes(after - cut) if cut_in == "zeros" else b""
        (torn / "outbox.db-wal").write_bytes(written[:cut] + rest)
        with opened(torn) as store:
            found = store.next_outgoing(1, 0, 1 << 30)
        seqs = [message.seq for message in found]
        assert seqs in (list(range(1, 20)), list(range(1, 30)))
        assert all(message.data == b"%d" % message.seq * 300 for message in found)
        whole += len(seqs) == 29
        shutil.rmtree(torn)
    assert whole == 1


async def test_a_datadir_that_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with outbox(tmp_path / "made"):
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


async def test_a_full_disk_refuses_a_publish_and_keeps_what_was_accepted(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            await subscribed(b, a, "x")
            address = b.advertise
        db = a._commits._store._db
        accepted = list[str]()
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 50}")

        async def publish_all() -> None:
            for number in range(1000):
                await a.publish("x", f"{number}".ljust(1000))
                accepted.append(f"{number}".ljust(1000))

        with pytest.raises(DiskFull, match="full"):
            await publish_all()
        assert accepted
        assert texts(stored(a.datadir, outgoing)) == accepted
        async with outbox(tmp_path / "b", address) as b:
            got = Got()
            b.every("x", got)
            await got.wait_for(*accepted)
            await a.drain()
            await a.publish("x", "there is room again")
            await got.wait_for(*accepted, "there is room again")


def test_a_store_on_a_full_disk_is_opened_to_deliver_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.add_destination("a:1")
        add(store, published(1))

    def full(_: Store) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(Store, "begin_transaction", full)
    with opened(tmp_path) as store:
        assert [message.seq for message in store.next_outgoing(1, 0, 1000)] == [1]


async def test_a_receiver_whose_disk_is_full_acknowledges_nothing_and_gets_it_later(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
        await subscribed(b, a, "x")
        db = b._commits._store._db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages}")
        texts = [f"{number}".ljust(5000) for number in range(20)]
        await asyncio.gather(*(a.publish("x", text) for text in texts))
        await eventually(lambda: any("the disk is full" in reason for reason in a._deliveries.away.values()))
        assert stored(a.datadir, Store.counts).outgoing == 20
        db.execute("PRAGMA max_page_count=1000000")
        got = Got()
        b.every("x", got)
        await got.wait_for(*texts)
        await a.drain()


async def test_peers_cannot_fill_the_disk_and_keep_what_is_not_taken_until_there_is_room(tmp_path: Path) -> None:
    most = 1_000_000
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b", store_bytes=most) as b:
        await subscribed(b, a, "x")
        texts = [f"{number}".ljust(10_000) for number in range(1000)]
        await asyncio.gather(*(a.publish("x", text) for text in texts))
        await eventually(lambda: any("the store is full" in reason for reason in a._deliveries.away.values()))
        status = await b.status()
        assert status.held_off >= 1
        assert status.counts.incoming + (await a.status()).counts.outgoing >= len(texts)
        window = a._limits.window_bytes
        assert most <= stored(b.datadir, lambda store: store.size) <= most + 1.5 * window
        got = Got()
        b.every("x", got)
        await got.wait_for(*texts)
        await a.drain()
        await b.drain()
        assert stored(b.datadir, Store.counts).dead == 0


async def test_a_store_full_of_marks_of_duplicates_takes_messages_once_the_marks_have_ended(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b", store_bytes=1) as b:
        store = b._commits._store
        with store.transaction():
            store.see([new_id() for _ in range(5000)], store.clock - 1)
        b._inbox._taking._most = store.size
        got = Got()
        b.every("x", got)
        await a.send("x", "late", b.advertise)
        await got.wait_for("late")
        assert (await b.status()).held_off >= 1


async def test_a_write_that_needs_no_room_is_not_refused_with_one_that_does(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.add_destination("a:1")
        add(store, published(1), published(2))
        pages = store._one("PRAGMA page_count")
        store._db.execute(f"PRAGMA max_page_count={pages}")
        commits = GroupCommit(store)
        settled = commits.write(Store.settle, [(1, [1])])
        refused = commits.write(Store.publish, [published(3, data=b"x" * 100_000)])
        await settled
        with pytest.raises(DiskFull):
            await refused
        await commits.close()
        assert [message.seq for message in store.next_outgoing(1, 0, 1000)] == [2]


async def test_what_is_finished_in_one_group_by_several_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """The seqs of a group do not rise: 1, 5, 2, 4 are not 1 to 4."""
    with opened(tmp_path) as store:
        with store.transaction():
            store.arrive([Arrived(seq, new_id(), "a:1", "k", b"") for seq in range(1, 6)])
        commits = GroupCommit(store)
        for finished in ([1, 5], [2, 4]):
            commits.write_surely(Store.finish, finished)
        await commits.close()
        assert [message.seq for message in incoming(store)] == [3]


async def test_then_is_called_in_order_even_if_nobody_waits(tmp_path: Path) -> None:
    """The task that publishes may be cancelled: the message is stored, and has to be sent."""
    with opened(tmp_path) as store:
        commits = GroupCommit(store)
        called = list[int]()

        def then(rows: Sequence[Published]) -> None:
            called.extend(row.seq for row in rows)

        futures = [commits.write(Store.publish, [published(seq)], then) for seq in range(1, 6)]
        futures[1].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert called == [1, 2, 3, 4, 5]
        await commits.close()


@pytest.mark.parametrize(
    ("is_idle", "size", "in_thread"), [(True, 1000, False), (False, 1000, True), (True, 100_000, True)]
)
async def test_what_is_small_is_committed_in_an_event_loop_that_is_idle(
    tmp_path: Path, is_idle: bool, size: int, in_thread: bool
) -> None:
    with opened(tmp_path) as store:
        commits = GroupCommit(store)
        committed_by, commit = list[threading.Thread](), store.commit

        def noted() -> None:
            committed_by.append(threading.current_thread())
            commit()

        store.commit = noted  # type: ignore[method-assign]
        commits._seconds, commits._is_idle = 0.0, is_idle
        await asyncio.gather(*(commits.write(Store.publish, [published(seq)], size=size) for seq in (1, 2)))
        assert [each is not threading.current_thread() for each in committed_by] == [in_thread]
        assert [each.seq for each in store.next_outgoing(1, 0, 1000)] == [1, 2]
        await commits.close()


async def test_an_event_loop_that_goes_on_late_after_a_commit_is_busy(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        commits = GroupCommit(store)
        commits._is_idle = True
        groups, commit = list[Any](), commits._commit

        def noted(group: Any) -> None:
            groups.append(group)
            commit(group)

        commits._commit = noted  # type: ignore[method-assign]
        done = commits.write(Store.publish, [published(1)])
        await asyncio.sleep(0)
        while not groups or not groups[0].committed:
            time.sleep(0.001)  # noqa: ASYNC251
        time.sleep(2 * IDLE_SECONDS)  # noqa: ASYNC251
        await done
        assert not commits._is_idle
        await commits.close()


def test_a_read_only_disk_is_an_error_of_ours(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store._db.execute("PRAGMA query_only=1")
        with pytest.raises(DiskFull, match="cannot be written"):
            add(store, published(1))


def test_marks_of_what_was_seen_end_and_are_removed_in_small_steps(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        ids = [new_id() for _ in range(100)]
        with store.transaction():
            store.see(ids[:50], store.clock - 1)
            store.see(ids[50:], store.clock + 1000)
        assert store.unseen(ids) == set(ids[:50])
        hand, steps = b"", 0
        with store.transaction():
            while (following := store.forget_seen(hand, 9)) is not None:
                hand, steps = following, steps + 1
        assert steps == 11
        assert count(store, "seen") == 50


def test_the_clock_of_the_store_goes_on_where_it_ended_and_ignores_the_system_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store._base += 1000
        with store.transaction():
            store.arrive([Arrived(1, new_id(), "a:1", "k", b"")])
            store.fail([Failed(1, 1, store.clock + 3600, "")])
            store.save_clock()
    for wrong in (0.0, 1e10):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        with opened(tmp_path) as store:
            assert 1000 <= store.clock < 2000
            assert store.due_incoming(False, 1000, 10) == []
            store._base += 3600
            assert [waiting.seq for waiting in store.due_incoming(False, 1000, 10)] == [1]


def test_messages_are_removed_by_id_wherever_they_wait(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.add_destination("a:1")
        store.add_destination("b:1")
        message = published(1, Copy(1, None), Copy(2, None))
        with store.transaction():
            store.publish([message, published(2)])
            store.arrive([Arrived(1, message.id, "a:1", "k", b"")])
        with store.transaction():
            assert store.remove(message.id) == 3
            assert store.remove(message.id) == 0
        assert (store.counts().incoming, store.counts().outgoing, count(store, "messages")) == (0, 1, 1)
        with store.transaction():
            assert store.purge("outgoing") == 1
            with pytest.raises(ValueError, match="expected one of incoming, outgoing, dead"):
                store.purge("all")
        assert store.counts().outgoing == 0


def test_compacting_gives_space_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.add_destination("a:1")
        add(store, *(published(seq, data=b"x" * 1000) for seq in range(1, 1000)))
        with store.transaction():
            store.purge("outgoing")
        store.compact()
        assert (tmp_path / "outbox.db").stat().st_size < 200_000
