"""A test with ``every`` fails a wrong program at the points where it is wrong, and passes a correct one."""

import re
from pathlib import Path

import pytest
import yaml

from penstock.testing.spec.files import find, read_all
from penstock.testing.spec.run import perform
from tests.process.chaos_programs import IN, OUT, RIGHT, WRONG, composed
from tests.support.commandline import ROOT, penstock
from tests.support.spec_cases import written


def documented() -> str:
    """Return the example of docs/composition.md."""
    page = (ROOT / "docs/composition.md").read_text()
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "every: mover" in text]
    return str(example)


def composed_with(directory: Path, program: str, tests: str) -> Path:
    composed(directory, program, OUT)
    (directory / "tests").mkdir()
    (directory / "tests/t.yaml").write_text(tests)
    return directory


@pytest.mark.parametrize("program", WRONG)
async def test_the_documented_test_fails_for_each_wrong_program_and_names_the_point(
    tmp_path: Path, program: str
) -> None:
    (case,) = read_all(find(composed_with(tmp_path, program, documented())))
    result = await perform(case)
    assert not result.holds
    heading = result.differences[0]
    assert re.match(r"(cut|kill -9) before the (command|reply): mover (start|flow|recover|stop): [A-Z]+", heading)
    assert result.differences[1].startswith(f"  {OUT}: expected 100 messages")
    assert result.logs["mover"] is not None


@pytest.mark.parametrize("program", RIGHT)
async def test_the_documented_test_passes_for_a_correct_program(tmp_path: Path, program: str) -> None:
    patient = documented().replace("within: 10", "within: 60")  # a bound, which nothing waits for, on a busy machine
    (case,) = read_all(find(composed_with(tmp_path, program, patient)))
    result = await perform(case)
    assert result.holds, result.report()
    assert (result.points, result.injections) >= (5, 4 * 5)
    assert len(result.unmet) <= 2, result.unmet


@pytest.mark.parametrize("program", WRONG)
async def test_a_wrong_program_passes_without_faults(tmp_path: Path, program: str) -> None:
    once = yaml.safe_load(documented())
    once["tests"][0]["faults"] = []
    (case,) = read_all(find(composed_with(tmp_path, program, yaml.dump(once))))
    assert (await perform(case)).holds, "a defect was seen without a fault"


async def test_every_point_of_a_service_is_tested_and_the_faults_are_counted(tmp_path: Path) -> None:
    tests = """
    tests:
      - name: a copy each, wherever the fan-out is struck
        push: {in: {numbers: 20}}
        faults: every
        expect: {out: pushed, copy: pushed}
        within: 30
    """
    result = await penstock("test", written(tmp_path, tests), "--jobs", "3", "--json", seconds=400)
    assert result.status == 0, result.text
    (found,) = result.json["tests"]
    points, faults, unmet = (found["every"][name] for name in ("points", "faults", "unmet"))
    assert faults == 4 * points > 4 * 30
    assert len(unmet) < faults / 20, unmet


async def test_the_number_of_attempts_is_reported(tmp_path: Path) -> None:
    tests = f"tests: [{{name: a, push: {{{IN!r}: [a]}}, faults: [{{every: mover}}], expect: {{{OUT!r}: pushed}}}}]"
    result = await penstock("test", composed_with(tmp_path, RIGHT[1], tests), seconds=200)
    assert (result.status, result.text.splitlines()[-1]) == (0, "1 passed")
    assert re.search(r"a \(\d+ faults at \d+ points(, \d+ not met)?\)$", result.text.splitlines()[0])


async def test_a_test_that_fails_with_nothing_broken_says_so(tmp_path: Path) -> None:
    tests = f"tests: [{{name: a, push: {{{IN!r}: [a]}}, faults: every, expect: {{{OUT!r}: [b]}}, within: 2}}]"
    (case,) = read_all(find(composed_with(tmp_path, RIGHT[0], tests)))
    result = await perform(case)
    assert result.differences[0] == "nothing is broken:"
    assert result.injections == 0
