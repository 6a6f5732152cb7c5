"""The tests that every composition brings along, run as ``penstock test`` runs them."""

from contextlib import chdir
from pathlib import Path

import pytest

from penstock.testing.spec import Trial
from penstock.testing.spec.files import find, read_all
from penstock.testing.spec.run import perform
from tests.commandline import ROOT

with chdir(ROOT):
    TRIALS = read_all(find(Path("compose")))


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial.directory.name}: {trial.name}")
async def test_a_composition_does_what_its_own_test_says(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    outcome = await perform(trial)
    assert outcome.holds, "\n".join([trial.where, *outcome.report()])


def test_every_composition_brings_tests_along() -> None:
    compositions = {file.parent.name for file in ROOT.glob("compose/*/Procfile")}
    assert {trial.directory.name for trial in TRIALS} == compositions
