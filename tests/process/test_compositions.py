"""The tests of every composition in ``compose/``, run as by ``penstock test``."""

from contextlib import chdir
from pathlib import Path

import pytest

from penstock.testing.spec import Case
from penstock.testing.spec.files import find, read_all
from penstock.testing.spec.run import perform
from tests.support.commandline import ROOT

with chdir(ROOT):
    CASES = read_all(find(Path("compose")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.directory.name}: {case.name}")
async def test_a_composition_passes_its_own_tests(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = await perform(case)
    assert result.holds, "\n".join([case.where, *result.report()])


def test_every_composition_has_tests() -> None:
    compositions = {file.parent.name for file in ROOT.glob("compose/*/Procfile")}
    assert {case.directory.name for case in CASES} == compositions
