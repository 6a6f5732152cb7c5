"""penstock outbox: what it shows of a store, also while its owner runs, and what it changes while none does."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.base.ports import free_port
from penstock.outbox import listing
from penstock.outbox.ids import as_text
from penstock.outbox.lock import Lock
from penstock.outbox.store import Arrived, Copy, Failed, Published, Store
from tests.outbox.outboxes import Got, outbox, stored, subscribed
from tests.support.commandline import ROOT, Result, penstock
from tests.support.harness import eventually

READS = ("status", "keys", "subscribers", "incoming", "outgoing", "dead")
CHANGES = (("requeue", "--all"), ("remove", "b.example:7300"), ("purge", "dead", "--yes"), ("unlock",), ("compact",))
OWNER = """
import sys, time
from pathlib import Path
from penstock.outbox.lock import Lock
from penstock.outbox.store import Arrived, Store
lock = Lock(Path(sys.argv[1]))
store = Store.open(Path(sys.argv[1]))
with store.transaction():
    store.arrive([Arrived(100, bytes(16), "c.example:1", "late", bytes(1))])
    store.begin([(100, 100, True)])
print("ready", flush=True)
time.sleep(600)
"""


def id_of(number: int) -> bytes:
    """Return an id of 2026-01-01T00:00:00Z with ``number`` at its end."""
    return (1_767_225_600_000).to_bytes(6) + b"\x70\x00\x80\x00" + number.to_bytes(6)


@pytest.fixture
def datadir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two subscribers, two incoming and two outgoing messages, and two dead letters."""
    monkeypatch.setattr("time.time", lambda: 1_767_225_661.5)
    with changed(tmp_path) as store:
        store.add_subscriptions("b.example:7300", ["orders", "stock"])
        store.add_subscriptions("c.example:7300", ["orders"])
        store.add_subscribed("c.example:7300", ["mail"])
        store.publish([Published(1, id_of(1), "orders", b"first", [Copy(1, None), Copy(2, None)])])
        store.publish([Published(2, id_of(2), "orders\nstock", b"\xff\x00", [Copy(1, None)])])
        store.publish([Published(3, id_of(3), "stock", b"no", [Copy(1, None)])])
        store.refuse([(1, 3, "too large")])
        arrive(store, 1, id_of(4), b'{"to": "\xc3\xa9"}')
        arrive(store, 2, id_of(5), b"x" * 2000)
        arrive(store, 3, id_of(6), b"bad")
        store.fail([Failed(2, 1, 5.0, "ValueError: later")])
        store.fail([Failed(3, 5, None, "ValueError: never")])
    return tmp_path


@contextmanager
def changed(datadir: Path) -> Iterator[Store]:
    store = Store.open(datadir)
    try:
        with store.transaction():
            yield store
    finally:
        store.close()


def arrive(store: Store, seq: int, id: bytes, data: bytes) -> None:
    store.arrive([Arrived(seq, id, "c.example:7300", "mail", data)])


async def at(datadir: Path, *words: str) -> Result:
    return await penstock("outbox", words[0], "--datadir", datadir, *words[1:])


def used(datadir: Path) -> int:
    """Return the bytes in use of a store in which nothing was removed."""
    with closing(sqlite3.connect(datadir / "outbox.db")) as db:
        return int(db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0])


def lines(result: Result) -> list[dict[str, Any]]:
    assert (result.status, result.error) == (0, "")
    return [json.loads(line) for line in result.text.splitlines()]


SHOWN = {
    "status": ["2 keys", "2 subscribers", "2 incoming", "3 outgoing", "2 dead", "bytes on disk", "not running"],
    "keys": ["orders 2", "stock 1"],
    "subscribers": ["b.example:7300 2 2 0", "c.example:7300 1 1 1"],
    "incoming": ["000000000004 mail 12 0", "000000000005 mail 2,000 1"],
    "outgoing": ["000000000001 orders 5 b.example:7300", "c.example:7300", "000000000002 orders 2 b.example:7300"],
    "dead": ["1 2026-01-01 00:01 stock to b.example:7300 too large", "mail from c.example:7300 ValueError: never"],
}
"""What each list of ``datadir`` shows, without the lines of a table."""


@pytest.mark.parametrize("command", READS)
async def test_each_list_is_shown(datadir: Path, command: str) -> None:
    """RS-18."""
    result = await at(datadir, command)
    assert (result.status, result.error) == (0, "")
    found = " ".join(result.text.replace("│", " ").split())
    assert [words for words in SHOWN[command] if words not in found] == []
    assert max(map(len, result.text.splitlines())) <= 80


@pytest.mark.parametrize("command", READS)
async def test_an_empty_store_says_so(tmp_path: Path, command: str) -> None:
    Store.open(tmp_path).close()
    result = await at(tmp_path, command)
    assert (result.status, result.error) == (0, "")
    assert result.text in {
        f"0 keys\n0 subscribers\n0 incoming\n0 outgoing\n0 dead\n{used(tmp_path):,} bytes on disk\nnot running\n",
        "nobody has subscribed\n",
        "no addresses\n", "no incoming messages\n", "no outgoing messages\n", "no dead letters\n",
    }  # fmt: skip
    assert (await at(tmp_path, command, "--json")).status == 0


async def test_status_says_why_messages_wait_and_since_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_767_225_661.5)
    away = f"127.0.0.1:{free_port()}"
    async with outbox(tmp_path / "a") as a:
        await a.send("k", "v", away)
        await eventually(lambda: away in a._deliveries.away)
        for command in ("status", "subscribers"):
            line = (await at(tmp_path / "a", command)).text.splitlines()
            assert any(each.startswith(f"{away} is away since 2026-01-01 00:01 (UTC): ") for each in line), line
        (shown,) = lines(await at(tmp_path / "a", "subscribers", "--json"))
        assert shown["away"] == {"error": a._deliveries.away[away], "since": 1_767_225_661.5}
        assert lines(await at(tmp_path / "a", "status", "--json"))[0]["away"] == {away: shown["away"]}
    assert "is away since 2026" in (await at(tmp_path / "a", "status")).text, "also once it has ended"
    async with outbox(tmp_path / "b", bind=away), outbox(tmp_path / "a") as a:
        await a.drain()
        await a.send("k", "v", f"127.0.0.1:{free_port()}")
        assert f"{away} is away" not in (await at(tmp_path / "a", "status")).text


async def test_status_says_how_much_peers_may_fill(tmp_path: Path) -> None:
    for bound in (5_000_000, 1_000_000):
        async with outbox(tmp_path, store_bytes=bound):
            pass
    assert "bytes on disk; peers may fill 1,000,000\n" in (await at(tmp_path, "status")).text
    assert lines(await at(tmp_path, "status", "--json"))[0]["storeBytes"] == 1_000_000


async def test_json_has_all_that_is_stored(datadir: Path) -> None:
    """RS-18 and RS-19: each message by its id, with its data."""
    (status,) = lines(await at(datadir, "status", "--json"))
    assert status == {
        "keys": 2, "subscribers": 2, "incoming": 2, "outgoing": 3, "dead": 2, "bytes": used(datadir),
        "storeBytes": None, "lists": [], "away": {}, "owner": None,
    }  # fmt: skip
    orders, stock = lines(await at(datadir, "keys", "--json"))
    assert orders == {"key": "orders", "subscribers": ["b.example:7300", "c.example:7300"]}
    assert stock == {"key": "stock", "subscribers": ["b.example:7300"]}
    assert lines(await at(datadir, "subscribers", "--json")) == [
        {"address": "b.example:7300", "keys": ["orders", "stock"], "waiting": 2, "ours": 0, "away": None},
        {"address": "c.example:7300", "keys": ["orders"], "waiting": 1, "ours": 1, "away": None},
    ]
    first, second = lines(await at(datadir, "incoming", "--json"))
    assert first == {
        "id": as_text(id_of(4)), "sent": 1_767_225_600.0, "keys": ["mail"], "from": "c.example:7300", "attempts": 0,
        "error": None, "data": '{"to": "é"}',
    }  # fmt: skip
    assert (second["attempts"], second["error"], second["data"]) == (1, "ValueError: later", "x" * 2000)
    assert lines(await at(datadir, "outgoing", "--json")) == [
        {
            "id": as_text(id_of(1)), "sent": 1_767_225_600.0, "keys": ["orders"],
            "to": ["b.example:7300", "c.example:7300"], "data": "first",
        },
        {
            "id": as_text(id_of(2)), "sent": 1_767_225_600.0, "keys": ["orders", "stock"], "to": ["b.example:7300"],
            "data64": "/wA=",
        },
    ]  # fmt: skip
    refused, failed = lines(await at(datadir, "dead", "--json"))
    assert refused == {
        "number": 1, "id": as_text(id_of(3)), "keys": ["stock"], "to": "b.example:7300", "attempts": 1,
        "at": 1_767_225_661.5, "error": "too large", "data": "no",
    }  # fmt: skip
    assert (failed["from"], failed["attempts"], failed["data"]) == ("c.example:7300", 5, "bad")


async def test_one_message_is_shown_by_its_id(datadir: Path) -> None:
    """RS-19: get."""
    for command, number in (("incoming", 5), ("outgoing", 2), ("dead", 6)):
        (found,) = lines(await at(datadir, command, as_text(id_of(number)), "--json"))
        assert found["id"] == as_text(id_of(number))
        missing = await at(datadir, command, as_text(id_of(99)))
        assert missing.status == 1
        assert missing.error == f"penstock: no {command} message {as_text(id_of(99))}\n"
    wrong = await at(datadir, "incoming", "nonsense")
    assert (wrong.status, wrong.text) == (2, "")
    assert "nonsense is not the id of a message, e.g. 0189" in wrong.error


async def test_tables_show_a_limited_number_of_rows_and_json_all(datadir: Path) -> None:
    with changed(datadir) as store:
        for number in range(100, 350):
            arrive(store, number, id_of(number), b"x")
            store.add_subscriptions(f"n{number}.example:1", [f"key{number}"])
            store.publish([Published(number, id_of(number), "many", b"x", [Copy(1, None)])])
    for command in ("keys", "subscribers", "incoming", "outgoing"):
        shown = await at(datadir, command)
        assert shown.text.count("│\n") == 100 + 2 * (command == "outgoing")
        assert "penstock: these are the first 100 " in shown.error
        assert (await at(datadir, command, "--limit", "7")).text.count("│\n") == 7 + 2 * (command == "outgoing")
        assert len(lines(await at(datadir, command, "--json"))) == 252
        assert len(lines(await at(datadir, command, "--json", "--limit", "7"))) == 7
    assert (await at(datadir, "keys", "--limit", "0")).status == 2


def test_a_store_is_read_in_pages(tmp_path: Path) -> None:
    with changed(tmp_path) as store:
        for number in range(1, 1501):
            arrive(store, number, id_of(number), bytes(20_000))
            store.publish([Published(number, id_of(number), "k", bytes(20_000), [Copy(1, None)])])
    reader = Store.read(tmp_path)
    tracemalloc.start()
    try:
        for found in (listing.incoming(reader, data=True), listing.outgoing(reader, data=True)):
            assert [(each.seq, each.size) for each in found] == [(number, 20_000) for number in range(1, 1501)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        reader.close()
    assert most < 6_000_000


async def test_names_from_outside_cannot_control_a_terminal(tmp_path: Path) -> None:
    with changed(tmp_path) as store:
        store.add_subscriptions("b.example:1", ["\x1b[2Jkey"])
        store.publish([Published(1, id_of(1), "\x1b[2Jkey", b"\x1b[2J", [Copy(1, None)])])
        store.refuse([(1, 1, "\x1b[2Jno\n\nforged")])
    for command in READS:
        for words in ((command,), (command, "--json")):
            result = await at(tmp_path, *words)
            assert result.status == 0
            assert "\x1b" not in result.text


def test_help_works_anywhere_and_without_the_extra(tmp_path: Path) -> None:
    """RS-D10: outside a datadir, and where msgpack is not installed."""
    code = """
import sys
sys.modules["msgpack"] = None
from typer.testing import CliRunner
from penstock.cli import app
for command in sys.argv[1:]:
    for words in ((command, "-h"), (command, "--help"), ("-h",)):
        print(CliRunner().invoke(app, ["outbox", *words], prog_name="penstock").output.splitlines()[0])
"""
    commands = [*READS, *(words[0] for words in CHANGES)]
    helped = subprocess.run(
        [sys.executable, "-c", code, *commands],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (helped.returncode, helped.stderr) == (0, "")
    usages = helped.stdout.splitlines()
    assert len(usages) == 33
    for place, command in enumerate(commands):
        first, second, group = usages[3 * place : 3 * place + 3]
        assert first.startswith(f"Usage: penstock outbox {command} ")
        assert (second, group) == (first, "Usage: penstock outbox [OPTIONS] COMMAND [ARGS]...")
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(datadir: Path) -> None:
    code = "import sys; sys.modules['msgpack'] = None; from penstock.__main__ import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", code, "outbox", "status", "--datadir", datadir],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == "penstock: msgpack is not installed: pip install 'penstock[outbox]'\n"


@pytest.mark.parametrize("words", [*((command,) for command in READS), *CHANGES])
async def test_outside_a_datadir_one_line_says_what_to_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    """RS-D11: no command fails in its own error path, and none makes a store."""
    result = await at(tmp_path, *words)
    assert (result.status, result.text) == (2, "")
    assert result.error == f"penstock: {tmp_path} has no outbox.db: name the datadir of an outbox with --datadir\n"
    missing = await at(tmp_path / "missing", *words)
    assert (missing.status, missing.error) == (2, f"penstock: {tmp_path}/missing: no such file or directory\n")
    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nosuch",), "No such command 'nosuch'"),
        (("status", "more"), "unexpected extra argument"),
        (("requeue",), "expected the number of a dead letter, or --all"),
        (("requeue", "1", "--all"), "expected the number of a dead letter, or --all"),
        (("requeue", "x"), "expected a whole number, found 'x'"),
        (("remove",), "Missing argument"),
        (("remove", "nonsense"), "nonsense is not the id of a message"),
        (("remove", "019b76da-a800-7000-8000-000000000001", "--key", "orders"), "--key is for an address"),
        (("purge", "all"), "all: expected incoming, outgoing or dead"),
        (("purge", "incoming"), "2 incoming would be deleted permanently: pass --yes to confirm"),
    ],
)
async def test_wrong_calls_change_nothing(datadir: Path, words: tuple[str, ...], why: str) -> None:
    before = (await at(datadir, "status")).text
    """RS-D11."""
    result = await penstock("outbox", *words[:1], *(() if words[0] == "nosuch" else ("--datadir", datadir)), *words[1:])
    assert (result.status, result.text) == (2, "")
    assert why in result.error
    assert (await at(datadir, "status")).text == before


async def test_a_damaged_store_is_named(datadir: Path) -> None:
    (datadir / "outbox.db").write_bytes(b"not a database, but as long as a header of one " * 50)
    for words in (("status",), ("compact",)):
        result = await at(datadir, *words)
        assert (result.status, result.text) == (1, "")
        assert result.error.startswith(f"penstock: {datadir}/outbox.db is damaged")


async def test_a_page_that_is_damaged_is_explained(datadir: Path) -> None:
    with changed(datadir) as store:
        for number in range(10, 500):
            arrive(store, number, id_of(number), bytes(3000))
    with (datadir / "outbox.db").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 4096 // 2 * 4096)
        file.write(b"\xff" * (size // 4))
    for words in (("incoming", "--json"), ("compact",)):
        result = await at(datadir, *words)
        assert result.status == 1
        assert result.error.startswith(f"penstock: {datadir}/outbox.db is damaged: ")
        assert all(line.startswith("penstock: ") for line in result.error.splitlines())


async def test_dead_letters_are_sent_again(datadir: Path) -> None:
    """RS-21 and RS-24."""
    one = await at(datadir, "requeue", "1")
    assert (one.status, one.text) == (0, "1 dead letter waits again\n")
    assert lines(await at(datadir, "outgoing", "--json"))[-1]["id"] == as_text(id_of(3))
    again = await at(datadir, "requeue", "1")
    assert (again.status, again.error) == (1, "penstock: no dead letter 1: `penstock outbox dead` lists them\n")
    assert lines(await at(datadir, "requeue", "--all", "--json")) == [{"requeued": 1}]
    assert lines(await at(datadir, "incoming", as_text(id_of(6)), "--json"))[0]["attempts"] == 0
    assert (await at(datadir, "requeue", "--all")).text == "0 dead letters wait again\n"


async def test_many_dead_letters_are_sent_again(datadir: Path) -> None:
    with changed(datadir) as store:
        for number in range(10, 2510):
            arrive(store, number, id_of(number), b"x")
        store.fail([Failed(number, 5, None, "no") for number in range(10, 2510)])
    assert lines(await at(datadir, "requeue", "--all", "--json")) == [{"requeued": 2502}]
    assert stored(datadir, Store.counts).incoming == 2503


async def test_messages_and_destinations_are_removed(datadir: Path) -> None:
    """RS-24."""
    for number in (1, 4, 6):
        removed = await at(datadir, "remove", as_text(id_of(number)))
        assert removed.status == 0
        again = await at(datadir, "remove", as_text(id_of(number)))
        assert (again.status, again.error) == (1, f"penstock: {as_text(id_of(number))} is unknown here\n")
    assert lines(await at(datadir, "status", "--json"))[0] | {"lists": 0, "bytes": 0, "storeBytes": 0} == {
        "keys": 2, "subscribers": 2, "incoming": 1, "outgoing": 1, "dead": 1, "lists": 0, "bytes": 0, "storeBytes": 0,
        "away": {}, "owner": None,
    }  # fmt: skip
    less = await at(datadir, "remove", "b.example:7300", "--key", "stock")
    assert less.text == "b.example:7300 is not subscribed to stock any more\n"
    assert (await at(datadir, "remove", "b.example:7300", "--key", "stock")).status == 1
    assert lines(await at(datadir, "keys", "--json")) == [
        {"key": "orders", "subscribers": ["b.example:7300", "c.example:7300"]}
    ]
    gone = await at(datadir, "remove", "b.example:7300")
    assert gone.text == "b.example:7300 is removed, with its subscriptions and all that waited for it\n"
    assert (await at(datadir, "remove", "b.example:7300")).status == 1
    assert [each["address"] for each in lines(await at(datadir, "subscribers", "--json"))] == ["c.example:7300"]
    assert stored(datadir, Store.counts).outgoing == 0


@pytest.mark.parametrize(("what", "count"), [("incoming", 2), ("outgoing", 3), ("dead", 2)])
async def test_one_kind_is_purged_and_the_file_shrinks(datadir: Path, what: str, count: int) -> None:
    """RS-19 and RS-24: purge and compact."""
    with changed(datadir) as store:
        for number in range(10, 400):
            arrive(store, number, id_of(number), bytes(5000))
        store.fail([Failed(number, 5, None, "no") for number in range(200, 400)])
        for number in range(10, 400):
            store.publish([Published(number, id_of(number), "k", bytes(5000), [Copy(1, None)])])
    before = stored(datadir, Store.counts)._asdict()
    purged = await at(datadir, "purge", what, "--yes")
    assert purged.text == f"{before[what]:,} {what} removed\n"
    assert before[what] > count
    assert stored(datadir, Store.counts)._asdict() == before | {what: 0}
    size = (datadir / "outbox.db").stat().st_size
    (compacted,) = lines(await at(datadir, "compact", "--json"))
    assert compacted["after"] == (datadir / "outbox.db").stat().st_size
    assert compacted["after"] < size - 500_000
    assert stored(datadir, Store.counts)._asdict() == before | {what: 0}


async def test_all_is_read_and_nothing_changed_while_the_owner_lives(tmp_path: Path) -> None:
    """RS-17 and RS-D12."""
    got = Got()
    async with outbox(tmp_path / "ours") as ours, outbox(tmp_path / "theirs") as theirs:
        await subscribed(theirs, ours, "orders")
        await ours.publish("orders", b"first")
        await ours.send("note", b"second", "127.0.0.1:1")
        (status,) = lines(await at(tmp_path / "ours", "status", "--json"))
        assert status["owner"]["pid"] == os.getpid()
        assert (
            (await at(tmp_path / "ours", "status"))
            .text.splitlines()[-1]
            .startswith(f"process {os.getpid()} has it since 2")
        )
        (waiting,) = lines(await at(tmp_path / "ours", "outgoing", as_text_of(tmp_path / "ours"), "--json"))
        assert (waiting["to"], waiting["data"]) == (["127.0.0.1:1"], "second")
        for command in READS:
            assert (await at(tmp_path / "ours", command)).status == 0
        for words in CHANGES:
            refused = await at(tmp_path / "ours", *words)
            assert (refused.status, refused.text) == (1, "")
            assert f"is in use by process {os.getpid()} since " in refused.error
        theirs.every("orders", got)
        await got.wait_for("first")
        assert stored(tmp_path / "ours", lambda store: store.counts().subscribers) == 1
    assert lines(await at(tmp_path / "ours", "remove", "127.0.0.1:1", "--json")) == [{"removed": 1}]
    assert lines(await at(tmp_path / "ours", "unlock", "--json")) == [{"removed": 0}]


def as_text_of(datadir: Path) -> str:
    """Return the id of the last outgoing message."""
    return stored(datadir, lambda store: [as_text(each.id) for each in listing.outgoing(store)][-1])


async def test_a_killed_owner_is_no_obstacle(datadir: Path) -> None:
    """RS-D12 and RS-D13: its lock ends with it; only its file is left, and its last transaction is in the log."""
    with owning(datadir) as pid:
        refused = await at(datadir, "unlock")
        assert (refused.status, refused.text) == (1, "")
        assert f"{datadir} is in use by process {pid} since " in refused.error
    (status,) = lines(await at(datadir, "status", "--json"))
    assert (status["incoming"], status["owner"]) == (3, None)
    assert len(lines(await at(datadir, "incoming", "--json"))) == 3
    assert (datadir / "outbox.lock").exists()
    unlocked = await at(datadir, "unlock")
    assert (unlocked.status, unlocked.text) == (0, f"removed {datadir}/outbox.lock\n")
    assert not (datadir / "outbox.lock").exists()
    assert (await at(datadir, "unlock")).text == "nothing to unlock\n"
    assert (await at(datadir, "requeue", "--all")).status == 0
    assert lines(await at(datadir, "incoming", "--json"))[-2]["error"] == "the process ended"
    Lock(datadir).release()


@contextmanager
def owning(datadir: Path) -> Iterator[int]:
    """Let a process own the store; yield its pid, then kill it."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(datadir)], stdout=subprocess.PIPE, cwd=ROOT) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            yield owner.pid
        finally:
            owner.send_signal(signal.SIGKILL)


async def test_a_damaged_store_is_salvaged(datadir: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(datadir / "outbox.db")) as db:
        db.execute("UPDATE messages SET data = CAST('y' AS BLOB) WHERE seq = 1")
        db.commit()
    new = tmp_path / "new"
    opened = await at(datadir, "requeue", "1")
    assert opened.status == 1
    assert "1 of messages: `penstock outbox salvage` copies" in opened.error
    shown = await penstock("outbox", "salvage", str(datadir), "--to", str(new))
    assert shown.status == 1
    assert "are of a message that is not whole" in shown.text
    assert [line["data64"] for line in lines(await at(new, "outgoing", "--json"))] == ["/wA="]
    assert len(lines(await at(new, "incoming", "--json"))) == 2
    assert len(lines(await at(new, "dead", "--json"))) == 2
    assert (await penstock("outbox", "salvage", str(datadir), "--to", str(new))).status == 2
    assert (await penstock("outbox", "salvage", str(tmp_path / "nothing"))).status == 2
    whole = await penstock("outbox", "salvage", str(new), "--to", str(tmp_path / "again"), "--json")
    assert (whole.status, lines(whole)[0]["incoming"]) == (0, {"copied": 2, "lost": []})


async def test_another_store_is_trusted_with_an_address(datadir: Path) -> None:
    with changed(datadir) as store:
        store.pin("b.example:7300", b"s" * 16)
    assert (
        await at(datadir, "trust", "b.example:7300")
    ).text == "b.example:7300 belongs to the store that subscribes next\n"
    with changed(datadir) as store:
        assert store.pinned() == {}
    assert (await at(datadir, "trust", "b.example:7300")).status == 1
