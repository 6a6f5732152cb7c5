"""outbox where there is no Redis: programs in plain Python and in Node at its socket, and kills of all of them."""

import random
import shutil
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.base.ports import free_port
from penstock.outbox.store import Counts, Store
from tests.support.harness import ROUNDS, Service, until

PUBLISH: Final = """
import json, socket, sys, time
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stored = 0
while stored < last:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            answers = s.makefile()
            s.sendall(b'{"source":"till"}\\n')
            stored = json.loads(answers.readline())["last"]
            for start in range(max(stored + 1, first), last + 1, 20):
                numbers = range(start, min(start + 20, last + 1))
                s.sendall(b"".join(b'{"publish":"rain","number":%d,"text":"%d"}\\n' % (n, n) for n in numbers))
                for n in numbers:
                    stored = json.loads(answers.readline())["stored"]
    except (OSError, ValueError):
        time.sleep(0.05)
"""
TAKE: Final = """
import json, os, socket, sys, time
path, file = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            s.sendall(b'{"take":5}\\n')
            for line in s.makefile():
                told = json.loads(line)
                os.write(file, b"%s %s\\n" % (told["id"].encode(), told["text"].encode()))
                s.sendall(b'{"done":%d}\\n' % told["message"])
    except OSError:
        pass
    time.sleep(0.05)
"""
NODE: Final = """
const lines = require('readline').createInterface({input: require('net').connect(process.argv[1])
  .on('connect', function () { this.write(process.argv[2] + '\\n'); })
  .on('data', () => {})});
lines.on('line', line => { console.log(line); process.exit(); });
"""


class Place:
    """A site without a server, and the programs beside it."""

    def __init__(self, name: str, directory: Path, ends: ExitStack) -> None:
        self.address, self.datadir = f"127.0.0.1:{free_port()}", directory / name
        self.socket = directory / f"{name}.socket"
        self.file = directory / f"{name}.taken"
        self._log, self._ends = directory / f"{name}.log", ends

    def up(self, **settings: Any) -> Service:
        """Start the service; return it, possibly before it listens."""
        given = {"datadir": self.datadir, "bind": self.address, "socket": self.socket, **settings}
        return self._ends.enter_context(Service("outbox", self._log, **given))

    def program(self, text: str, *words: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", text, str(self.socket), *map(str, words)]
        started = subprocess.Popen(command)
        self._ends.callback(_end, started)
        return started

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as program:
            return program.connect_ex(str(self.socket)) == 0

    def counts(self) -> Counts:
        store = Store.read(self.datadir)
        try:
            return store.counts()
        finally:
            store.close()

    def taken(self) -> dict[str, set[str]]:
        """Return what programs have taken here, by content, with the ids of the messages that had it."""
        found = defaultdict[str, set[str]](set)
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            id, _, text = line.partition(" ")
            found[text].add(id)
        return found

    def has(self, messages: int) -> bool:
        return len(self.taken()) >= messages


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def one(tmp_path: Path, ends: ExitStack) -> Place:
    return Place("one", tmp_path, ends)


@pytest.fixture
def two(tmp_path: Path, ends: ExitStack) -> Place:
    return Place("two", tmp_path, ends)


def test_kills_of_sites_and_programs_lose_nothing_and_publish_nothing_twice(one: Place, two: Place) -> None:
    """What was in hand of a program that is killed comes again, with the same id."""
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    rounds, each = max(4, ROUNDS // 5), 400
    last = rounds * each
    starts: dict[str, Callable[[], Any]] = {
        "site one": one.up,
        "site two": lambda: two.up(subscribe=f"rain@{one.address}"),
        "publisher": lambda: one.program(PUBLISH, 1, last),
        "taker": lambda: two.program(TAKE, two.file),
    }
    running = {name: start() for name, start in starts.items()}
    victims = [*starts]
    chance.shuffle(victims)
    for number in range(rounds):
        victim = victims[number % len(victims)]
        until(partial(two.has, number * each + chance.randrange(1, each)))
        running[victim].kill()
        if isinstance(running[victim], subprocess.Popen):
            running[victim].wait()
        running[victim] = starts[victim]()
    until(lambda: two.has(last))
    until(lambda: one.counts().outgoing == two.counts().incoming == 0)
    taken = two.taken()
    assert {int(text) for text in taken} == set(range(1, last + 1))
    assert [text for text, ids in taken.items() if len(ids) > 1] == []
    assert running["publisher"].wait(60) == 0
    until(lambda: one.listens() and two.listens())  # the last that was killed may have just been started
    assert (running["site one"].stop(), running["site two"].stop()) == (0, 0)
    assert not one.socket.exists()


def test_a_list_comes_out_of_a_socket_and_a_socket_in_a_list(
    one: Place, two: Place, here: Any, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site with lists, and one without a server, whose programs are in Node if it is there."""
    health = tmp_path / "health"
    lists = {"redis": redis_url, "redis_namespace": "one", "in_": "one:in", "pending": "one:pending", "out": "one:out"}
    one.up(**lists, publish="rain", subscribe=f"snow@{two.address}")
    monkeypatch.setenv("PENSTOCK_HEALTH", str(health))
    service = two.up(subscribe=f"rain@{one.address}")
    until(lambda: health.exists() and health.read_text() == "ready\n")
    here.lpush("one:in", "Größe ✓")
    assert '"text":"Gr\\u00f6\\u00dfe \\u2713"' in _say(two, '{"take":1}')
    assert _say(two, '{"publish":"snow","text":"flake ✓"}') == '{"stored":1}\n'
    until(lambda: here.lrange("one:out", 0, -1) == ["flake ✓".encode()])
    assert two.counts().incoming == 1, "nobody has finished it"
    service.signal(signal.SIGHUP)
    until(lambda: '"reloaded"' in service.log_text())
    assert service.stop() == 0
    assert not health.exists()


def _say(place: Place, line: str) -> str:
    """Have a program say ``line`` and return the first answer."""
    if shutil.which("node"):
        command = ["node", "-e", NODE, str(place.socket), line]
    else:
        program = (
            "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline(), end='')"
        )
        command = [sys.executable, "-c", program, str(place.socket), line]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
