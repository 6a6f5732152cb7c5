"""The sites composition, run as by a user, also with its data damaged: the demo must report every difference."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis as Client
from redis.asyncio import Redis

from compose.outcome import Outcome
from compose.sites import demo
from compose.sites.demo import read_outcome
from compose.sites.sent import Sent
from compose.sites.site import Site
from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.demos import ROOT, demonstrate
from tests.support.harness import until
from tests.support.shell import Shell

DEMO = ("-m", "compose.sites.demo")
PROCESSES = ["mpush", "to-two", "to-three"]
ROWS = demo.ROWS[::5]

SAMPLE = """
import sys
from pathlib import Path
from compose import runner
from compose.outcome import Outcome
from compose.sites import demo
from compose.sites.demo import read_outcome
demo.main(Path(sys.argv.pop()), demo.ROWS[::5])
"""
"""Program that runs the demo of the directory in its argument with ``ROWS``."""

THIEF = '''
import os, signal, sys, time, redis
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server = redis.Redis.from_url(os.environ["REDIS"])
steal = server.register_script("""
if redis.call('llen', KEYS[1]) < 100 then return 0 end
redis.call('lpop', KEYS[1])
redis.call('lpush', KEYS[1], redis.call('lindex', KEYS[1], 0))
return 1
""")
while not steal(["sites:for:three"]):
    time.sleep(0.001)
signal.pause()
'''
"""Program that removes a message that waits for site three, and duplicates another, at once: vpush may come back."""


def test_the_demo_carries_every_reading_to_both_sites_though_one_is_down_in_between() -> None:
    done = demonstrate(None, *DEMO, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    output = json.loads(done.stdout)
    assert (output["holds"], output["differences"], output["pushed"]) == (True, [], 8759)
    assert list(output["sites"]) == ["two", "three"]
    for name, site in output["sites"].items():
        content = {"sent": 8759, "got": 8759, "lost": 0, "doubled": 0, "foreign": 0, "inOrder": True}
        assert content.items() <= site.items()
        assert site["metrics"]["delivered"] == {"count": "8759", f"sites:{name}": "8759"}
    two, three = output["sites"].values()
    assert two["down"] == 0
    assert 0 < three["down"] < three["longestDelay"]
    assert three["mostWaiting"] > 2000
    assert {name: audit["problems"] for name, audit in output["audits"].items()} == {
        "sites:mpush": [],
        "sites:vpush:two": [],
        "sites:vpush:three": [],
    }
    assert output["exitStatus"] == dict.fromkeys(PROCESSES, 0)


class SiteUrls(NamedTuple):
    """URLs of the three sites, a database each."""

    one: str
    two: str
    three: str

    @classmethod
    def on(cls, url: str) -> "SiteUrls":
        return cls(*(url.replace("/0", f"/{database}") for database in range(3)))

    def given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pass sites two and three to demos in the environment; ``demonstrate`` passes site one."""
        monkeypatch.setenv("SITE_TWO", self.two)
        monkeypatch.setenv("SITE_THREE", self.three)


@pytest.fixture
def urls(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> SiteUrls:
    found = SiteUrls.on(redis_url)
    found.given(monkeypatch)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the composition with ``THIEF`` as a further process; return its folder."""
    (tmp_path / "thief.py").write_text(THIEF)
    procfile = (ROOT / "compose/sites/Procfile").read_text()
    (tmp_path / "Procfile").write_text(f"{procfile}thief: exec python {tmp_path}/thief.py\n")
    return tmp_path


async def test_the_demo_on_given_servers_leaves_everything_to_look_at_and_runs_again(
    redis: "Redis", urls: SiteUrls
) -> None:
    await redis.mset({"sites:other": "somebody's"})
    for _ in range(2):
        done = demonstrate(urls.one, "-c", SAMPLE, "compose/sites")
        assert done.returncode == 0, done.stderr + done.stdout
        printed = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
        count = f"{len(ROWS):,}"
        for row in (
            ["sent", count, count],
            ["arrived", count, count],
            ["lost", "0", "0"],
            ["doubled", "0", "0"],
            ["in", "order", "yes", "yes"],
            ["its", "server", "was", "down", "(s)", "0.0", "0.0"],
            ["vpush:", "taken", count, count],
            ["vpush:", "delivered", count, count],
            ["sites:three", count, count, "0", "0", "0", "0"],
        ):
            assert row in printed, row
        assert "Nothing lost, nothing doubled, all in order at every site\n" in done.stdout
        for name, url in (("two", urls.two), ("three", urls.three)):
            async with Redis.from_url(url) as site:
                assert await site.lrange(f"sites:{name}", 0, -1) == ROWS[::-1]
    assert await redis.get("sites:other") == b"somebody's"


async def test_a_lost_and_a_duplicated_message_are_reported_and_the_demo_exits_1(directory: Path) -> None:
    done = demonstrate(None, "-c", SAMPLE, str(directory))
    assert done.returncode == 1, done.stderr
    differs = [line for line in done.stdout.splitlines() if line.startswith("differs: ")]
    assert [line.partition(", e.g. ")[0] for line in differs] == [
        "differs: sites:three: lost 1",
        "differs: sites:three: doubled 1",
    ]
    assert "Nothing lost" not in done.stdout


@pytest.fixture(scope="module")
def ran() -> Iterator[tuple[SiteUrls, subprocess.CompletedProcess[str]]]:
    """Run the demo with ``ROWS``; yield the sites' URLs and the finished process."""
    with EmbeddedServer() as server:
        urls = SiteUrls.on(server.url)
        with pytest.MonkeyPatch.context() as monkeypatch:
            urls.given(monkeypatch)
            done = demonstrate(urls.one, "-c", SAMPLE, "compose/sites")
        yield urls, done


class SiteClients(NamedTuple):
    """A client for each site."""

    one: "Redis"
    two: "Redis"
    three: "Redis"

    async def judged(self) -> Outcome:
        sites = [Site(name, "", None, client) for name, client in zip(("two", "three"), self[1:], strict=True)]
        return await read_outcome(self.one, Sent(ROWS), sites, dict.fromkeys(PROCESSES, 0))


@pytest.fixture
async def after(ran: tuple[SiteUrls, object]) -> AsyncIterator[SiteClients]:
    """Yield clients of the sites after the demo; restore their data after the test."""
    async with AsyncExitStack() as stack:
        places = SiteClients(*[await stack.enter_async_context(Redis.from_url(url)) for url in ran[0]])
        kept = [{key: await each.dump(key) for key in await each.keys()} for each in places]
        yield places
        for each, values in zip(places, kept, strict=True):
            await each.flushdb()
            for key, value in values.items():
                await each.restore(key, 0, value or b"")


async def lose(at: SiteClients) -> None:
    await at.three.lrem("sites:three", 1, ROWS[70].decode())


async def turn(at: SiteClients) -> None:
    await at.three.lmove("sites:three", "sites:three", "LEFT", "RIGHT")


async def miscount(at: SiteClients) -> None:
    await at.one.hincrby("sites:vpush:two:metrics:delivered", "count", -1)
    await at.one.hincrby("sites:vpush:two:metrics:delivered", "sites:two", -1)


async def forget(at: SiteClients) -> None:
    await at.one.rpush("sites:for:three", ROWS[0])


BROKEN: list[tuple[Callable[[SiteClients], Awaitable[None]], list[str]]] = [
    (lose, [f"sites:three: lost 1, e.g. {ROWS[70]!r}"]),
    (turn, ["sites:three: all there, but in another order"]),
    (
        miscount,
        [
            f"sites:vpush:two: sites:two: taken {len(ROWS):,} is not",
            f"sites:two: {len(ROWS) - 1:,} of {len(ROWS):,} counted as delivered",
        ],
    ),
    (forget, ["sites:for:three: 1 left behind"]),
]


@pytest.mark.parametrize(("damage", "expected"), BROKEN)
async def test_each_damage_after_a_run_is_reported_and_nothing_else(
    after: SiteClients, damage: Callable[[SiteClients], Awaitable[None]], expected: list[str]
) -> None:
    assert (await after.judged()).differences == []
    await damage(after)
    differences = (await after.judged()).differences
    assert len(differences) == len(expected), differences
    for line, words in zip(sorted(differences), sorted(expected), strict=True):
        assert line.startswith(words)


async def test_the_longest_delay_is_that_of_the_oldest_message_that_came_late(redis: "Redis") -> None:
    site = Site("two", "", None, redis)
    assert site.longest_delay([1.0]) is None
    site.arrivals = [(2, 9.0), (3, 13.0)]
    assert site.longest_delay([1.0, 8.5, 12.9]) == 8.0
    site.arrivals = [(1, 1.5), (3, 13.0), (9, 14.0)]  # more than were pushed
    assert site.longest_delay([1.0, 2.0, 12.9]) == 11.0


@pytest.fixture
def shell() -> Iterator[Shell]:
    session = Shell(*(free_port() for _ in range(3)))
    yield session
    session.close()


def test_every_command_of_its_readme_works_as_typed(shell: Shell, tmp_path: Path) -> None:
    """Use free ports, and one terminal in place of two: the command that stays runs in the background."""
    for file in [ROOT / "compose/sites/Procfile", *ROOT.glob("compose/sites/*.yaml")]:
        text = shell.ours(file.read_text()).replace("compose/sites", str(tmp_path))
        (tmp_path / file.name).write_text(text)
    text = (ROOT / "compose/sites/README.md").read_text().replace("compose/sites", str(tmp_path))
    text = text.replace("/tmp/site-three", f"{tmp_path}/three")
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    first, *others = [block for block in blocks if "penstock " in block]
    shell.run(f"{first.rstrip()} > /dev/null 2>&1 &")
    for port in shell.ports:
        wait = (
            f"until .venv/bin/penstock redis --redis redis://localhost:{port}/0 ping 2> /dev/null; do sleep 0.1; done"
        )
        assert shell.run(wait)[1] == 0
    for block in others:
        for command in block.splitlines():
            printed, status = shell.run(command)
            assert status == 0, f"{command}\n{printed}"
    with Client.from_url(f"redis://localhost:{shell.ports['6381']}/0") as there:
        until(lambda: there.llen("sites:three") == 1488)


async def test_the_props_files_of_vpush_are_fine() -> None:
    files = [*(ROOT / "compose").glob("*/vpush*.yaml")]
    assert len(files) >= 2
    result = await penstock("lint", *files)
    assert (result.status, result.error) == (0, "")
