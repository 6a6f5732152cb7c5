"""Tests of a connection that fails at each command in every way: all messages arrive once, in order."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.command_proxy import CommandFault, CommandProxy, Kind
from tests.reliability.two_servers import Pushing, TwoServers, assert_once_in_order, numbered
from tests.support.harness import sampled

MESSAGES: Final = 10_000
"""Minimum number of messages in all runs of a sweep together."""
BATCHES: Final = 3
BATCHES_IN_A_WINDOW: Final = 2
BREAKS: Final = [kind for kind in Kind if not kind.swallows]
SWALLOWS: Final = [kind for kind in Kind if kind.swallows]


class Servers(NamedTuple):
    here: EmbeddedServer
    there: EmbeddedServer


class Run(NamedTuple):
    """The first words of the commands until all messages had arrived; ``met`` is True if one met the fault."""

    commands: list[str]
    met: bool


class Sweep:
    """Runs of vpush, each between lists of its own, with one fault on a connection to the server at ``end``."""

    def __init__(self, end: str, servers: Servers, fork_server: ForkServer, directory: Path) -> None:
        self._end, self._servers, self._fork_server, self._directory = end, servers, fork_server, directory

    def inject_each(self, kinds: list[Kind], at_once: int) -> None:
        """Inject a fault of each kind at each command of an undisturbed run, with ``at_once`` runs in parallel.

        With few rounds, some are drawn of those at later commands of a name.
        """
        commands = Counter(self.run(BATCHES).commands)
        each = [(word, nth) for word, times in commands.items() for nth in range(times)]
        faults = [CommandFault(kind, word, nth) for kind in kinds for word, nth in each]
        later = [fault for fault in faults if fault.nth]
        drawn = random.sample(later, sampled(len(later)) or len(later))
        faults = [fault for fault in faults if not fault.nth or fault in drawn]
        messages = max(math.ceil(MESSAGES / len(faults)), BATCHES)
        with ThreadPoolExecutor(at_once) as pool:
            met = [run.met for run in pool.map(lambda fault: self.run(messages, fault), faults)]
        print(f"{len(faults)} runs of {messages} messages; {met.count(False)} ended before the fault")
        assert met.count(False) < len(faults) / 10
        for kind in kinds:
            words = {fault.word for fault, was_met in zip(faults, met, strict=True) if was_met and fault.kind is kind}
            assert words >= {"CLIENT", "INFO", "EVALSHA"}, kind

    def run(self, messages: int, fault: CommandFault | None = None) -> Run:
        """Push messages and assert that they arrive."""
        name = f"{fault.kind.name}-{fault.word}-{fault.nth}".lower() if fault else "undisturbed"
        service = Pushing(
            source=f"{name}:in", pending=f"{name}:pending", outs=(f"{name}:out",), namespace=f"demo:{name}"
        )
        directory = self._directory / name
        directory.mkdir()
        here, there = self._servers
        with CommandProxy((here if self._end == "here" else there).port, fault) as link:
            through_it = {"redis" if self._end == "here" else "out_redis": link.url}
            settings = {"batch": math.ceil(messages / BATCHES), "window": BATCHES_IN_A_WINDOW, **through_it}
            with TwoServers(here.url, there.url, self._fork_server, directory, settings, service) as fleet:
                pushed = numbered(messages)
                fleet.push(pushed)
                replica = fleet.start()
                fleet.wait_until_settled(timeout=60)
                commands = link.commands.copy()
                if fault and fault.kind.swallows:
                    replica.kill()  # it may wait for a reply that never comes
                else:
                    fleet.stop()
                assert_once_in_order(fleet, pushed)
        return Run(commands, link.met)


@pytest.fixture(params=["there", "here"])
def sweep(request: pytest.FixtureRequest, servers: Servers, fork_server: ForkServer, tmp_path: Path) -> Sweep:
    return Sweep(request.param, servers, fork_server, tmp_path)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        yield Servers(here, there)


def test_a_link_cut_at_each_command_loses_and_doubles_nothing(sweep: Sweep) -> None:
    sweep.inject_each(BREAKS, at_once=6)


def test_a_link_that_swallows_each_command_or_reply_loses_and_doubles_nothing(sweep: Sweep) -> None:
    """A run spends most of its time waiting for the timeout."""
    sweep.inject_each(SWALLOWS, at_once=60)
