"""Tests of compositions fail wrong programs, and each fault has its documented effect."""

import asyncio
from pathlib import Path

import pytest

from penstock.testing.spec import Case, CaseResult
from penstock.testing.spec import run as running
from penstock.testing.spec.files import find, read_all
from tests.support.spec_cases import run_case, written

KILLED = """
tests:
  - name: killed at its work
    push: {in: [a, b, c]}
    faults: [{kill: it, after: {taken: 2}}]
    expect: {out: pushed}
    within: 5
"""


async def test_a_message_lost_by_a_killed_program_is_found(tmp_path: Path) -> None:
    result = await run_case(tmp_path, KILLED, "pops_and_pushes")
    assert result.differences == [
        "out: expected 3 messages, in this order; got 2",
        "  missing: 1",
        '    "b"',
        "  first difference at message 2",
        '    expected "b"',
        '    got      "c"',
    ]
    (fault,) = result.faults
    assert fault.startswith("kill it, ")


async def test_an_untaken_message_is_a_difference_even_if_all_else_is_as_expected(tmp_path: Path) -> None:
    tests = "tests: [{name: left, push: {in: [a, b, c]}, expect: {out: [b, a]}, within: 3}]"
    result = await run_case(tmp_path, tests, "ending", "0")
    assert "in: 3 messages left in it, for it" in result.differences


async def test_expecting_nothing_waits_until_the_messages_went_through(tmp_path: Path) -> None:
    tests = "tests: [{name: none, push: {in: [a, b]}, expect: {out: none}, within: 4}]"
    result = await run_case(tmp_path, tests, "late")
    assert result.differences == ["out: expected no message, got 2", "  got: 2", '    "a"', '    "b"']


async def test_a_process_that_ends_by_itself_fails_the_test_at_once_with_its_last_words(tmp_path: Path) -> None:
    tests = "tests: [{name: ends, push: {in: [a]}, expect: {out: pushed}, within: 60}]"
    result = await run_case(tmp_path, tests, "failing")
    assert result.differences[0] == "it ended by itself, before anything was broken"
    assert set(result.logs["it"]) == {"no such thing as luck"}
    assert "    no such thing as luck" in result.report()


async def test_settings_that_a_service_refuses_fail_the_test_at_once(tmp_path: Path) -> None:
    tests = "tests: [{name: refused, environ: {mpush: {MPUSH_BATCH: many}}, expect: {out: none}, within: 60}]"
    result = await run_case(tmp_path, tests)
    assert result.differences == ["mpush ended as it started"]
    assert "MPUSH_BATCH" in result.logs["mpush"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "program", "expected"),
    [
        ("{kill: it}", ("ending", "0"), "[started, started]"),
        ("{stop: it}", ("ending", "0"), "[started, asked, started]"),
        ("{pause: it, for: 3}", ("beating",), "{contains: [held up]}"),
        ("{restart: server}", ("serving",), "{count: 2}"),
        ("{spoil: in, for: 0.5}", ("typing",), "[none, string, none]"),
    ],
)
async def test_a_fault_is_what_it_says(tmp_path: Path, fault: str, program: tuple[str, ...], expected: str) -> None:
    tests = f"""
    tests:
      - name: {fault[1:5]}
        expect: {{out: {{atLeast: 1}}}}
        then: [{{faults: [{fault}], expect: {{out: {expected}}}, within: 30}}]
    """
    result = await run_case(tmp_path, tests, *program)
    assert result.holds, result.report()
    assert len(result.faults) == 1


async def test_flushed_scripts_are_gone(tmp_path: Path) -> None:
    tests = """
    tests:
      - name: scripts
        push: {in: [a]}
        expect: {out: ["True"]}
        then:
          - {faults: [{flush: server}], expect: {out: ["True"]}}
          - {push: {in: [b]}, expect: {out: ["True", "False"]}}
    """
    result = await run_case(tmp_path, tests, "scripting")
    assert result.holds, result.report()


async def test_a_process_that_fails_on_sigterm_is_a_difference(tmp_path: Path) -> None:
    tests = """
    tests:
      - name: badly
        expect: {out: [started]}
        then: [{faults: [{stop: it}], expect: {out: {atLeast: 3}}}]
    """
    result = await run_case(tmp_path, tests, "ending", "3")
    assert result.differences == ["step 2 of 2:", "  it was asked to stop, and ended with status 3"]


async def test_what_was_in_a_spoiled_list_is_there_again_in_order(tmp_path: Path) -> None:
    tests = """
    tests:
      - name: spoiled
        push: {in: [a, b, c, d]}
        faults: [{spoil: out, after: 2, for: 0.3}]
        expect: {out: pushed, copy: pushed}
    """
    result = await run_case(tmp_path, tests)
    assert result.holds, result.report()


async def test_a_fault_that_never_happens_is_a_difference(tmp_path: Path) -> None:
    tests = """
    tests:
      - name: never
        push: {in: [a]}
        faults: [{kill: mpush, after: {copy: 2}}]
        expect: {out: pushed, copy: pushed}
        within: 2
    """
    result = await run_case(tmp_path, tests)
    assert result.differences == ["kill mpush did not come about within 2 s"]


@pytest.mark.parametrize("jobs", [1, 3])
async def test_jobs_limits_how_many_tests_run_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    tests = [f"{{name: test {number}, expect: {{out: none}}}}" for number in range(7)]
    cases = read_all(find(written(tmp_path, f"tests: [{', '.join(tests)}]")))
    at_work, most, done = 0, 0, list[str]()

    async def perform(case: Case, _injections: object) -> CaseResult:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return CaseResult(case, 0)

    monkeypatch.setattr(running, "perform", perform)
    results = await running.run(cases, jobs, lambda result: done.append(result.case.name))
    assert most == jobs
    assert [result.case.name for result in results] == [f"test {number}" for number in range(7)] == sorted(done)
