"""The parts that the slow tests are cut into, and where tests find what they share."""

import json
import re

import pytest

from tests.parts import COMMANDS, OWN_TOOLS, PARTS, SLOW_FOLDERS, Found, is_slow, part_of, show
from tests.support.harness import ROOT

MODULES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def test_each_module_belongs_to_a_part_and_each_part_has_modules() -> None:
    assert {part_of(f"{module}::test_it") for module in MODULES} == PARTS.keys()


@pytest.mark.parametrize(
    ("test", "slow"),
    [
        ("tests/unit/test_parts.py::test_it", False),
        ("tests/bus/test_federation.py::test_a_topic[gateway]", False),
        ("tests/bus/test_federation.py::test_a_topic[node]", True),
        ("tests/bus/test_interop_queue.py::test_it[python-python]", True),
        ("tests/bus/test_gateway_browser.py::test_it", True),
        *((f"tests/{folder}/test_new.py::test_it", True) for folder in sorted(SLOW_FOLDERS)),
    ],
)
def test_what_starts_services_or_needs_a_tool_of_its_own_is_slow(test: str, slow: bool) -> None:
    assert is_slow(test) is slow


def test_the_nightly_run_has_each_part() -> None:
    text = (ROOT / ".github/workflows/slow.yml").read_text()
    (parts,) = re.findall(r"'(\[[^']*\])'\) }}", text)
    assert json.loads(parts) == list(PARTS)


def test_parts_that_need_a_tool_and_commands_exist() -> None:
    assert PARTS.keys() >= OWN_TOOLS
    assert COMMANDS.keys() <= {"lint", *PARTS}


def test_the_table_names_what_was_red_flaky_or_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    one = Found("spark", 3, ["tests/spark/a.py::b"], ["tests/spark/a.py::c"], {"no java": 2}, 65.4)
    show([one], as_json=False)
    said = capsys.readouterr().out
    assert "spark: failed: tests/spark/a.py::b\nspark: flaky: tests/spark/a.py::c\nspark: skipped 2: no java\n" in said
    assert "65 s" in said
    assert max(map(len, said.splitlines())) <= 80
    show([one], as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["skipped"] == {"no java": 2}


def test_no_file_imports_a_test_file() -> None:
    """What tests share is in tests/support/, or in a module of their folder without tests."""
    imported = re.compile(r"^ *(?:from +(\S+) +)?import +(\([^)]*\)|[^\n(]+)", re.MULTILINE)
    files = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {each[0]}"
        for path in files
        for each in imported.finditer(path.read_text())
        if re.search(r"(^|[\s.,(])test_\w+", f"{each[1]} {each[2]}")
    ]
    assert found == []
