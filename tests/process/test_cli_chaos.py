"""``penstock chaos``: options, output and files."""

import re
from pathlib import Path

import pytest
from junitparser import JUnitXml

from tests.process.chaos_programs import IN, OUT, composed
from tests.support.commandline import ROOT, penstock


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return composed(tmp_path, "pops_and_pushes", OUT)


async def test_a_finding_is_a_row_a_line_a_page_and_a_command_that_reproduces_it(bad: Path, tmp_path: Path) -> None:
    xml, html = tmp_path / "junit.xml", tmp_path / "page.html"
    words: list[str | bytes | Path] = [
        "chaos",
        bad,
        "--fault",
        "cut before the command",
        "--rounds",
        "0",
        "--seed",
        "7",
        "--stages",
        "4",
    ]
    result = await penstock(*words, "--junit", xml, "--html", html, seconds=120)
    assert result.status == 1
    (row,) = [line for line in result.text.splitlines() if "cut before the command" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == cells[2] != "0", "all were met"
    assert cells[3:6] == ["1", "0", "0"]
    assert f"cut before the command: mover flow: LPUSH {OUT}: 1 lost of" in result.error
    again = f"--fault 'cut before the command' --point 'mover flow: LPUSH {OUT}'"
    assert f"again: penstock chaos {bad} {again}" in result.error
    suites = JUnitXml.fromfile(str(xml))
    assert (suites.tests, suites.failures) == (int(cells[1]), 1)
    page = html.read_text()
    assert "A promise is broken" in page
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org/", ""), "it needs no network"


async def test_one_finding_can_be_reproduced_with_json_output(bad: Path) -> None:
    point = f"mover flow: BRPOP {IN}"
    words: list[str | bytes | Path] = ["chaos", bad, "--fault", "cut before the reply", "--point", point, "--json"]
    result = await penstock(*words, seconds=120)
    assert result.status == 1
    found = result.json
    assert not found["holds"]
    (outcome,) = found["outcomes"]
    assert (outcome["lost"], outcome["doubled"], outcome["met"]) == (1, 0, True)
    assert outcome["injection"]["point"]["shape"] == f"BRPOP {IN}"
    assert [point["process"] for point in found["points"]] == ["mover"] * len(found["points"])


async def test_compositions_that_chaos_cannot_test_are_refused_with_advice(bad: Path, tmp_path: Path) -> None:
    nothing = await penstock("chaos", bad, "--fault", "earthquake")
    assert nothing.status == 2
    assert "no fault is called 'earthquake': expected part of no fault, cut before the command, cut" in nothing.error
    nobody = await penstock("chaos", bad, "--service", "nobody")
    assert nobody.status == 2
    assert "no process is called 'nobody': expected one of mover" in nobody.error
    empty = tmp_path / "empty"
    empty.mkdir()
    absent = await penstock("chaos", empty)
    assert absent.status == 1
    assert f"{empty}: no composition found" in absent.error


async def test_settings_without_a_process_are_left_out_and_the_duration_is_estimated() -> None:
    """Only mpush is in the Procfile; the other props files name a server that no process uses."""
    result = await penstock("chaos", ROOT / "compose/demo", "--fault", "no fault", "--seed", "1", seconds=120)
    assert (result.status, result.error.splitlines()[:2]) == (
        0,
        ["penstock: seed 1", "penstock: left out, as no process runs it: mdispatch, monitor, vpush"],
    )
    assert re.fullmatch(r"penstock: 1 fault, \d+ points, 1 at a time: about 5 s", result.error.splitlines()[2])
    assert "nothing was lost" in result.text


async def test_a_composition_says_which_processes_chaos_does_not_start(bad: Path) -> None:
    with (bad / "Procfile").open("a") as procfile:
        procfile.write("aside: exec false\n")
    with (bad / "composition.yaml").open("a") as declared:
        declared.write("chaos: {without: asid}\n")
    unknown = await penstock("chaos", bad)
    assert unknown.status == 1
    assert f"{bad}/composition.yaml: chaos.without: no process is called 'asid': expected mover, aside" in unknown.error
    (bad / "composition.yaml").write_text((bad / "composition.yaml").read_text().replace("asid}", "aside}"))
    result = await penstock("chaos", bad, "--fault", "no fault", seconds=120)
    assert (result.status, "penstock: left out, as composition.yaml says: aside" in result.error) == (0, True)


async def test_messages_missing_without_a_fault_are_reported(bad: Path) -> None:
    declared = bad / "composition.yaml"
    declared.write_text(declared.read_text().replace(f"[{OUT}]", f"[{OUT}, shop:never]"))
    result = await penstock("chaos", bad, seconds=120)
    assert result.status == 1
    assert f"{IN} to shop:never: with nothing broken" in result.error
    assert "chaos: message must be one that" in result.error
