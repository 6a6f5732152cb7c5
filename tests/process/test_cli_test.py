"""penstock test: options, output, and errors in test files."""

import json
import os
import re
import shutil
import signal
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from penstock.base.errors import SettingsError
from penstock.testing.spec.files import find, read_all
from tests.support.commandline import ROOT, ended, penstock, running
from tests.support.harness import eventually
from tests.support.spec_cases import written

FINE = "{name: a copy each, push: {in: [a, b]}, expect: {out: pushed, copy: [a, b]}}"
WRONG = "{name: wrong, push: {in: [a, b]}, expect: {out: [a, c]}, within: 2}"


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Write a weather composition whose fan-out lacks one of its lists; return its folder."""
    directory = shutil.copytree(ROOT / "compose/weather", tmp_path / "weather")
    props = directory / "mpush.yaml"
    props.write_text(props.read_text().replace("  - weather:report\n", ""))
    procfile = directory / "Procfile"
    procfile.write_text(procfile.read_text().replace("compose/weather/mpush.yaml", str(props)))
    tests = directory / "tests/days.yaml"
    tests.write_text(tests.read_text().replace("within: 60", "within: 4"))
    return directory


async def test_a_broken_composition_fails_and_the_difference_can_be_read(weather: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    result = await penstock("test", weather, "--filter", "a storm", "--junit", junit)
    assert result.status == 1
    lines = result.text.splitlines()
    assert lines[0].startswith("FAILED")
    assert lines[0].endswith(f"{weather}/tests/days.yaml:15: a storm is an alarm, and what is no day is a dead letter "
                             "of those who read it")  # fmt: skip
    assert lines[3:11] == [
        "  weather:reports: expected 2 messages, got 0",
        "  weather:report:dead: expected 1 message, got 0",
        "  mpush said last:",
        *lines[6:9],
        "  archive said nothing",
        "  alarm said nothing",
    ]
    assert '"event": "registered"' in lines[8]
    assert lines[-1] == "0 passed, 1 failed"
    (case,) = ElementTree.parse(junit).getroot().iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "weather:reports: expected 2 messages, got 0"
    assert "weather:report:dead: expected 1 message, got 0" in str(failure.text)


async def test_a_pass_is_reported_as_text_json_and_junit_xml(tmp_path: Path) -> None:
    directory, junit = written(tmp_path, f"tests: [{FINE}, {WRONG}]"), tmp_path / "junit.xml"
    result = await penstock("test", directory, "--filter", "COPY", "--junit", junit)
    assert (result.status, result.error) == (0, "")
    assert result.text.startswith("ok ")
    assert result.text.endswith(f"{directory}/tests/t.yaml:1: a copy each\n1 passed\n")
    suites = ElementTree.parse(junit).getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("1", "0")
    output = (await penstock("test", directory / "tests/t.yaml", "--json", "--jobs", "2")).json
    assert output["holds"] is False
    fine, wrong = output["tests"]
    assert (fine["name"], fine["holds"], fine["differences"], fine["logs"]) == ("a copy each", True, [], {})
    assert wrong["differences"][0] == "out: expected 2 messages, in this order; got 2"
    assert wrong["differences"][1:5] == ["  missing: 1", '    "c"', "  not expected: 1", '    "b"']
    assert json.loads(wrong["logs"]["mpush"][-1])["event"] == "registered"


@pytest.mark.parametrize(
    ("words", "many", "order"),
    [
        *product((["test"], ["chaos"]), (1, 2, 4), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        (["chaos", "--stages", "3"], 15, signal.SIGTERM),
        (["test", "--jobs", "2"], 10, signal.SIGINT),
    ],
)
async def test_an_order_to_end_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], many: int, order: signal.Signals
) -> None:
    long = "push: {in: [a]}, expect: {out: [b]}, within: 600"
    tests = f"tests: [{{name: a, {long}}}, {{name: b, {long}}}, {{name: c, {long}}}]"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with running(*words, written(tmp_path, tests), redis=None) as process:

        async def so_many() -> bool:
            children[:] = psutil.Process(process.pid).children(recursive=True)
            return (
                len(children) >= many
            )  # a sandbox has a server and its watchdog, a fork server, a supervisor, a service

        children = list[psutil.Process]()
        await eventually(so_many)
        os.killpg(process.pid, order)  # as a terminal does
        status, error = await ended(process)
    assert status == 130
    assert re.sub(r"penstock: (seed \d+|\d+ faults, .*)\n", "", error) == ""
    assert not sorted(temporary.rglob("*"))
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("tests: []", "t.yaml:1: is empty: expected one at least"),
        ("test:\n- name: a", "t.yaml:1: test: unknown key: did you mean tests?"),
        (
            "tests:\n- name: a\n  push: {in: [a]}\n  expects: {out: none}",
            "t.yaml:4: expects: unknown key: did you mean",
        ),
        (
            "tests:\n- name: a\n  push: {in: [1]}\n  expect: {out: none}",
            "t.yaml:3: push.in: a message is a text: put 1",
        ),
        (
            "tests:\n- name: a\n  push: {inn: [a]}\n  expect: {out: none}",
            "t.yaml:3: push.inn: no process is known to use inn: did you mean in?",
        ),
        (
            "tests:\n- name: a\n  expect:\n    out: none\n    outer: none",
            "t.yaml:5: expect.outer: no process is known to use outer: did you mean out?",
        ),
        (
            "tests:\n- name: a\n  expect: {out: {equals: [a]}}",
            "t.yaml:3: expect.out.equals: unknown key: did you mean equal?",
        ),
        ("tests:\n- name: a\n  expect: {out: {}}", "t.yaml:3: expect.out: nothing is expected"),
        ("tests:\n- name: a\n  expect: {out: {matches: 'a('}}", "t.yaml:3: expect.out.matches: 'a(' is no regular"),
        (
            "tests:\n- name: a\n  expect: {out: {json: {'$.[': 1}}}",
            "t.yaml:3: expect.out.json.$.[: '$.[' is no JSON path",
        ),
        (
            "tests:\n- name: a\n  expect: {out: {equal: {lines: no.csv}}}",
            "t.yaml:3: expect.out.equal: DIR/no.csv: No such",
        ),
        (
            "tests:\n- name: a\n  expect: {out: {equal: {pushed: im}}}",
            "t.yaml:3: expect.out.equal: nothing is pushed to im",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {kil: mpush}",
            "t.yaml:5: faults.kil: unknown key: did you",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {after: 1}",
            "t.yaml:5: faults: expected one of kill, stop",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {kill: mpsh}",
            "t.yaml:5: faults: the test starts no process mpsh: did you mean mpush?",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {kill: mpush, after: 3}",
            "t.yaml:5: faults: never comes: 3",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {pause: mpush, for: 60}",
            "t.yaml:5: faults.for: lasts 60 s",
        ),
        (
            "tests:\n- name: a\n  expect: {out: none}\n  faults:\n  - {restart: elsewhere}",
            "t.yaml:5: faults: no process of this test uses the server elsewhere: expected localhost:6379",
        ),
        (
            "tests:\n- name: a\n  processes:\n  - push\n  expect: {out: none}",
            "t.yaml:4: processes: no process is called push: did you mean mpush?",
        ),
        ("tests:\n- name: a\n  expect: {out: none}\n  expect: {out: none}", "t.yaml:4: expect: is there twice"),
        (
            "tests:\n- {name: a, expect: {out: none}}\n- {name: a, expect: {out: none}}",
            "t.yaml:3: name: another test is called",
        ),
        ("tests:\n- name: 'a", "t.yaml:2: not YAML: a quote is not closed"),
        ("tests:\n- name: a\n  then: [{push: {in: [a]}}]\n  expect: {out: none}", "t.yaml:3: then.expect: is missing"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(tmp_path: Path, tests: str, expected: str) -> None:
    directory = written(tmp_path, tests)
    with pytest.raises(SettingsError) as caught:
        read_all(find(directory))
    assert str(caught.value).startswith(f"{directory}/tests/{expected.replace('DIR', str(directory))}")


async def test_a_malformed_file_ends_with_2_and_nothing_is_started(tmp_path: Path) -> None:
    directory = written(tmp_path, "tests:\n- {name: a, expect: {out: none}, push: [a]}\n- {}")
    result = await penstock("test", directory)
    assert (result.status, result.out) == (2, b"")
    assert result.error.splitlines() == [
        f"penstock: {directory}/tests/t.yaml:2: push: expected keys with values",
        f"penstock: {directory}/tests/t.yaml:3: expect: is missing",
        f"penstock: {directory}/tests/t.yaml:3: name: is missing",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "nowhere: no such file or directory"),
        (["services"], "services: no tests are here; expected"),
        (["compose/weather", "--filter", "sunshine"], "no name or file name of 8 tests contains 'sunshine'"),
    ],
)
async def test_a_call_without_any_test_is_a_usage_error(words: list[str], expected: str) -> None:
    result = await penstock("test", *words)
    assert (result.status, result.out) == (2, b"")
    assert result.error.startswith(f"penstock: {expected}")


def test_a_folder_of_compositions_has_the_tests_of_all() -> None:
    names = {file.parent.parent.name for file in find(ROOT / "compose")}
    assert {"demo", "tracked"} < names == {each.parent.parent.name for each in ROOT.glob("compose/*/tests/*.yaml")}
