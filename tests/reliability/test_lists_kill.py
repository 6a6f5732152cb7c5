"""A consumer of ``penstock.lists`` that is killed or cut off at any command loses and doubles nothing."""

from pathlib import Path

from penstock.composition.files import read
from penstock.testing.chaos.plan import Chosen
from penstock.testing.chaos.report import summary
from penstock.testing.chaos.run import Run


async def test_no_fault_at_any_command_of_a_consumer_loses_or_doubles_a_message(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("mover: exec python -m tests.reliability.list_worker in out\n")
    (tmp_path / "composition.yaml").write_text("programs: {mover: {reads: in, writes: [out], keeps: 'in:consumer'}}\n")
    report = await Run(read(tmp_path), Chosen(seed=1, rounds=1, lanes=8), lambda *_: None).report()
    assert [summary(result) for result in report.results if result.broken] == []
    assert len(report.points) > 8
    assert sum(result.met for result in report.results) > len(report.results) * 0.8
