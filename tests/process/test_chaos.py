"""Chaos finds each defect of a composition, with the right count, and none in a correct one."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from penstock.composition.files import read
from penstock.testing.chaos.plan import Chosen
from penstock.testing.chaos.report import summary
from penstock.testing.chaos.run import Report, Run
from tests.process.chaos_programs import IN, OUT, RIGHT, SECOND, composed
from tests.support.harness import ROOT, sampled

RANDOM: Final = ("SIGTERM", "restart", "SCRIPT FLUSH", "CLIENT PAUSE", "maxmemory", "slow link", "swallowed")


async def run_chaos(directory: Path, **chosen: object) -> Report:
    options: dict[str, object] = {"seed": 1, "rounds": 0, "lanes": 8}
    return await Run(read(directory), Chosen(**{**options, **chosen}), lambda *_: None).report()  # type: ignore[arg-type]


def losses(report: Report) -> dict[str, Counter[str]]:
    """Return the numbers of lost and duplicated messages by fault and injection point."""
    found: dict[str, Counter[str]] = {}
    for result in report.results:
        point = result.injection.point
        if point and (result.lost or result.doubled):
            count = Counter({"lost": result.lost, "doubled": result.doubled})
            name = f"{result.injection.fault}: {point.phase} {point.shape}"
            found[name] = found.get(name, Counter()) + count
    return found


def at(fault: str, *phases: str, **counts: int) -> dict[str, Counter[str]]:
    """Return the same ``counts`` for both kinds of fault in each of ``phases`` (default: ``flow``)."""
    when, _, shape = fault.partition(": ")
    return {
        f"{kind} {when}: {phase} {shape}": Counter(counts)
        for kind in ("cut", "kill -9")
        for phase in phases or ("flow",)
    }


async def test_a_message_that_is_popped_and_then_pushed_is_lost_in_between(tmp_path: Path) -> None:
    report = await run_chaos(composed(tmp_path, "pops_and_pushes", OUT))
    assert not report.holds
    assert losses(report) == at(f"before the reply: BRPOP {IN}", "start", "flow", lost=1) | at(
        f"before the command: LPUSH {OUT}", lost=1
    )
    assert all(result.met for result in report.results)


async def test_a_message_that_is_acknowledged_before_it_is_pushed_is_lost_in_between(tmp_path: Path) -> None:
    report = await run_chaos(composed(tmp_path, "acknowledges_first", OUT))
    expected = at("before the reply: LREM shop:working", lost=1) | at(f"before the command: LPUSH {OUT}", lost=1)
    stuck = at(f"before the reply: BLMOVE {IN} shop:working", "start", "flow", lost=1) | at(
        "before the command: LREM shop:working", lost=1
    )
    assert losses(report) == expected | stuck
    left = {place for result in report.results for place in result.whereabouts}
    assert left == {"shop:working"}, "a message that nobody goes back for is found"


async def test_a_fan_out_outside_a_transaction_doubles_what_was_half_done(tmp_path: Path) -> None:
    report = await run_chaos(composed(tmp_path, "fans_out_one_by_one", OUT, SECOND))
    assert losses(report) == (
        at(f"before the reply: LPUSH {OUT}", doubled=1)
        | at(f"before the command: LPUSH {SECOND}", doubled=1)
        | at(f"before the reply: LPUSH {SECOND}", doubled=2)
        | at("before the command: LREM shop:working", doubled=2)
    )


async def test_what_settles_in_one_transaction_raises_no_alarm(tmp_path: Path) -> None:
    directory = composed(tmp_path, "settles_at_once", OUT, SECOND)
    report = await run_chaos(directory)
    assert losses(report) == {}
    assert report.holds
    assert {result.met for result in report.results} == {True}
    random = await run_chaos(directory, rounds=20, faults=RANDOM)
    assert len(random.results) >= 20 * len(RANDOM)
    assert [result for result in random.results if result.broken] == []


async def test_a_program_that_says_it_keeps_the_order_is_blamed_where_it_does_not(tmp_path: Path) -> None:
    kinds = ("kill -9 before", "cut before")
    program = composed(tmp_path, "puts_back_at_the_wrong_end", OUT)
    silent = await run_chaos(program, faults=kinds)
    assert sum(result.reordered for result in silent.results) > 5
    assert silent.holds, "it promises no order"
    composed(tmp_path, "puts_back_at_the_wrong_end", OUT, ordered=True)
    report = await run_chaos(program, faults=kinds)
    blamed = [result for result in report.results if result.broken]
    assert not report.holds
    assert {result.lost + result.doubled for result in blamed} == {0}
    assert any("mover flow: EXEC: " in summary(result) for result in blamed), "it is killed with one in hand"
    assert all(" out of order of " in summary(result) for result in blamed)


@pytest.mark.parametrize("program", RIGHT)
async def test_a_right_program_keeps_the_order_that_it_promises(tmp_path: Path, program: str) -> None:
    report = await run_chaos(composed(tmp_path, program, OUT, ordered=True), rounds=1)
    assert [summary(result) for result in report.results if result.broken] == []


async def test_what_a_program_loses_without_any_fault_is_seen_in_a_round_without_one(tmp_path: Path) -> None:
    directory = composed(tmp_path, "drops_every_300th", OUT)
    report = await run_chaos(directory, faults=["no fault"])
    (result,) = report.results
    assert (result.lost, result.pushed) == (3, 1_000)
    assert summary(result) == "no fault: 3 lost of 1000 messages"


async def test_every_service_passes_every_point_and_all_that_happens_by_chance() -> None:
    """Send messages through mpush, mdispatch, monitor, vpush and a worker."""
    report = await run_chaos(ROOT / "tests" / "support" / "every", rounds=1, lanes=6, sample=sampled(100))
    services = Counter(point.process for point in report.points)
    print(f"{services.total()} points, {len(report.results)} faults: {dict(services)}")
    assert min(services[name] for name in ("mpush", "mdispatch", "monitor", "vpush")) > 30
    assert [summary(result) for result in report.results if result.broken] == []
    assert report.books == []
    unmet = [str(result.injection) for result in report.results if not result.met]
    assert len(unmet) < len(report.results) / 3, unmet  # of a small sample; most are met
