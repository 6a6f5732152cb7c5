"""``penstock chaos`` with its default plan on every composition of ``compose/``."""

from pathlib import Path

import pytest

from penstock.composition.files import read_sound
from penstock.testing.chaos.plan import Chosen
from penstock.testing.chaos.report import summary
from penstock.testing.chaos.run import Run
from tests.commandline import ROOT
from tests.harness import sampled

SAMPLES = {"weather": None}
"""Faults of a composition; None for all, whatever ``PENSTOCK_ROUNDS`` is."""
COMPOSITIONS = sorted(file.parent for file in ROOT.glob("compose/*/Procfile"))


@pytest.mark.parametrize("directory", COMPOSITIONS, ids=lambda directory: directory.name)
async def test_chaos_breaks_no_promise_of_a_composition(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said: list[str] = []
    chosen = Chosen(seed=1, sample=SAMPLES.get(directory.name, sampled(100)))
    report = await Run(read_sound(directory.relative_to(ROOT)), chosen, lambda *_: None, said.append).report()
    print(f"{said}; {report.seconds:.0f} s")
    assert [summary(result) for result in report.results if result.broken] == []
    assert report.books == []
    unmet = [str(result.injection) for result in report.results if not result.met]
    assert len(unmet) < len(report.results) / 8, unmet
    assert "at a time: about " in said[-1]
