"""``penstock chaos`` with its default plan on every composition of ``compose/``."""

from pathlib import Path

import pytest

from penstock.composition.files import read_sound
from penstock.testing.chaos.plan import Chosen
from penstock.testing.chaos.report import summary
from penstock.testing.chaos.run import Run
from tests.support.commandline import ROOT
from tests.support.harness import sampled

SAMPLES = {"weather": 120}
"""Faults of a composition, 40 of others; all of them with many rounds, as ``make test-soak`` sets."""
WITHOUT_LISTS = {"bus", "queue", "jobs", "edge"}
"""Compositions whose messages go through queues of a bus, HTTP, jobs or outboxes; their own tests kill.

Chaos can follow only jobs, but records for minutes, since consumers of jobs are never quiet.
"""
COMPOSITIONS = sorted(file.parent for file in ROOT.glob("compose/*/Procfile") if file.parent.name not in WITHOUT_LISTS)


@pytest.mark.parametrize("directory", COMPOSITIONS, ids=lambda directory: directory.name)
async def test_chaos_breaks_no_promise_of_a_composition(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said: list[str] = []
    chosen = Chosen(seed=1, sample=sampled(SAMPLES.get(directory.name, 40)))
    report = await Run(read_sound(directory.relative_to(ROOT)), chosen, lambda *_: None, said.append).report()
    print(f"{said}; {report.seconds:.0f} s")
    assert [summary(result) for result in report.results if result.broken] == []
    assert report.books == []
    unmet = [str(result.injection) for result in report.results if not result.met]
    assert len(unmet) < len(report.results) / 2, unmet  # of a small sample; most are met
    assert "at a time: about " in said[-1]
