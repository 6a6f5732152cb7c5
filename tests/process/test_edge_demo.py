"""The edge composition, run as by a user; its net; and what its outcome reports."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client
from redis.asyncio import Redis
from redis.exceptions import RedisError

from compose.comparison import Comparison
from compose.edge.demo import judge
from compose.edge.net import Net
from compose.edge.site import Result, Site
from compose.ending import Ending
from compose.outcome import Outcome
from penstock.accounting.audit import Audit
from penstock.base.ports import free_port
from tests.support.demos import ROOT, demonstrate
from tests.support.harness import eventually, until
from tests.support.shell import Shell

AUDIT = Audit("edge:north", 1, {}, [], [], [])
ROWS = [b"a", b"b", b"b"]
NORTH = Site("north", Redis(), Path(), ROWS, off_net=2.5, waited=7, killed_with=3)
FINE = Result(NORTH, Comparison.compare("edge:north:out", ROWS, ROWS, ordered=False), 0, 0, 0, AUDIT)
ENDING = Ending({"north": 0}, {}, [])


def test_nothing_is_lost_doubled_or_dead_though_a_site_is_off_the_net_and_another_is_killed() -> None:
    done = demonstrate(None, "-m", "compose.edge.demo", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    output = json.loads(done.stdout)
    assert (output["holds"], output["differences"]) == (True, [])
    assert {name: (site["sent"], site["got"]) for name, site in output["sites"].items()} == {
        "north": (5839, 5839),
        "east": (5839, 5839),
        "south": (5840, 5840),
    }
    for site in output["sites"].values():
        assert {"lost": 0, "doubled": 0, "foreign": 0, "dead": 0, "left": 0}.items() <= site.items()
    north, _, south = output["sites"].values()
    assert min(north["offNet"], north["waited"], south["killedWith"], output["refused"]) > 0
    assert output["exitStatus"] == {"north": 0, "east": 0, "south": 0}


def judged(result: Result = FINE, *, refused: int = 4, ending: Ending = ENDING) -> Outcome:
    return judge([result], refused, ending)


def compared(*got: bytes) -> Outcome:
    return judged(replace(FINE, comparison=Comparison.compare("edge:north:out", ROWS, got, ordered=False)))


def changed(**values: Any) -> Outcome:
    of_site = {name: values.pop(name) for name in ("off_net", "waited", "killed_with") if name in values}
    return judged(replace(FINE, site=replace(NORTH, **of_site), **values))


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (lambda: compared(b"b", b"a", b"b"), []),
        (lambda: compared(b"a", b"b"), ["edge:north:out: lost 1, e.g. b'b'"]),
        (lambda: changed(dead=1), ["north: 1 dead letters"]),
        (lambda: changed(left=2), ["north: 2 messages left in its datadir"]),
        (lambda: changed(audit=replace(AUDIT, problems=["a sum"])), ["edge:north: a sum"]),
        (lambda: changed(waited=0), ["no site was missed while it was off the net"]),
        (lambda: changed(killed_with=0), ["no site was killed while it had messages in hand"]),
        (lambda: judged(ending=Ending({"north": 1}, {}, [])), ["north: exit status 1"]),
        (lambda: judged(ending=Ending({}, {"edge:north:in": 3}, [])), ["edge:north:in: 3 left behind"]),
    ],
)
def test_what_is_not_as_promised_is_reported(outcome: Callable[[], Outcome], words: list[str]) -> None:
    assert outcome().differences == words


async def test_a_site_that_is_cut_off_reaches_nobody_and_is_reached_by_nobody() -> None:
    heard, running = Counter[str](), set[asyncio.StreamWriter]()

    async def site(name: str, net: Net) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            running.add(writer)
            with suppress(OSError):
                while word := await reader.read(100):
                    heard[name] += 1
                    writer.write(word)
            writer.transport.abort()
            running.discard(writer)

        server = await asyncio.start_server(serve, "127.0.0.1")
        await net.add(name, server.sockets[0].getsockname()[1])
        return server

    async def call(net: Net, caller: str, called: str) -> tuple[bytes, asyncio.StreamWriter]:
        """Say who calls, as outboxes do; return the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", int(net.addresses[called].rpartition(":")[2]))
        writer.write(f"here is {net.addresses[caller]}".encode())
        try:
            return await reader.read(100), writer
        except ConnectionResetError:
            return b"", writer

    async with Net() as net:
        servers = [await site(name, net) for name in ("one", "two", "three")]
        answer, kept = await call(net, "one", "two")
        assert answer == f"here is {net.addresses['one']}".encode()
        net.cut("one")
        for caller, called, answers in (("one", "two", False), ("two", "one", False), ("two", "three", True)):
            answer, writer = await call(net, caller, called)
            assert bool(answer) is answers
            writer.close()
        assert (net.refused, heard) == (2, {"two": 1, "three": 1})
        net.mend("one")
        answer, writer = await call(net, "one", "two")
        assert answer
        for each in (writer, kept):
            each.close()
    await eventually(lambda: not running)
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.fixture
def shell() -> Iterator[Shell]:
    session = Shell(*(free_port() for _ in range(3)))
    session.replaced |= {str(port): str(free_port()) for port in (7701, 7702, 7703)}
    yield session
    session.close()


def test_every_command_of_its_readme_works_as_typed(shell: Shell, tmp_path: Path) -> None:
    """Use free ports."""
    for file in ROOT.glob("compose/edge/*.yaml"):
        text = shell.ours(file.read_text()).replace("compose/edge", str(tmp_path))
        (tmp_path / file.name).write_text(text.replace("build/edge", f"{tmp_path}/data"))
    text = (ROOT / "compose/edge/README.md").read_text().replace("compose/edge", str(tmp_path))
    text = text.replace("build/edge", f"{tmp_path}/data")
    _, first, others = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert shell.run(first)[1] == 0
    with Client.from_url(f"redis://localhost:{shell.ports['6381']}/0") as south:
        until(lambda: answers(south) and south.hget("edge:south:metrics:outbox", "subscribers") == b"2")
        for command in others.splitlines():
            printed, status = shell.run(command)
            assert status == 0, f"{command}\n{printed}"
        until(lambda: south.llen("edge:south:out") == 744)


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False
