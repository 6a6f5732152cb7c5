"""penstock lint of a composition: each rule, with a composition that breaks only this rule."""

from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commandline import ROOT, penstock
from tests.support.lint_cases import BREAKS, FINE, SHOP, compose, found


def test_a_composition_that_is_right_has_no_findings(tmp_path: Path) -> None:
    assert found(compose(tmp_path)) == []


@pytest.mark.parametrize(
    "directory", sorted(ROOT.glob("compose/*/composition.yaml")), ids=lambda file: file.parent.name
)
def test_our_own_compositions_have_no_findings(directory: Path) -> None:
    assert found(directory.parent) == []


@pytest.mark.parametrize("breaks", BREAKS)
def test_each_mistake_is_found_with_file_and_line_and_nothing_else(tmp_path: Path, breaks: str) -> None:
    changes, expected = BREAKS[breaks]
    lines = found(compose(tmp_path, changes))
    assert len(lines) == len(expected)
    for line, wanted in zip(sorted(lines), sorted(expected), strict=True):
        words, _, rule = wanted.rpartition(" [")
        assert line.startswith(words), line
        assert line.endswith(f"[{rule}"), line


@pytest.mark.parametrize("case", FINE)
def test_what_only_looks_like_a_mistake_is_not_found(tmp_path: Path, case: str) -> None:
    assert found(compose(tmp_path, FINE[case])) == []


def test_an_undeclared_program_is_named_if_it_may_explain_what_is_missing(tmp_path: Path) -> None:
    compose(tmp_path, {"composition.yaml": (SHOP["composition.yaml"].partition("programs:")[2], " {}\n")})
    assert len(lines := found(tmp_path)) == 2
    assert all("or what 'worker' " in line for line in lines)


def test_names_of_one_slot_are_no_note_and_others_are(tmp_path: Path) -> None:
    one = {
        "Procfile": "fan: python -m services.mpush --props mpush.yaml\n",
        "mpush.yaml": 'redisNamespace: "{a}:fan"\nin: "{a}:in"\npending: "{a}:pending"\nout: ["{a}:out"]\n',
        "composition.yaml": 'external:\n  writes: "{a}:in"\n  reads: "*out"\n',
    }
    for name, text in one.items():
        (tmp_path / name).write_text(text)
    assert found(tmp_path, notes=True) == []
    (tmp_path / "mpush.yaml").write_text(one["mpush.yaml"].replace('"{a}:out"', '"{b}:out"'))
    assert found(tmp_path) == []
    (note,) = found(tmp_path, notes=True)
    assert note.startswith(
        "mpush.yaml:1: redisNamespace: {a}:fan:ids, {a}:in, {a}:pending, {b}:out are in different slots"
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_correct_composition_has_no_findings_and_one_wrong_name_is_found(data: st.DataObject) -> None:
    """Generate trees of fan-outs; a branch ends in a tracker with a worker, on another server, or outside."""
    numbers, files, programs, outside, legs = count(1), dict[str, str](), list[str](), list[str](), list[str]()
    lines, tracked = list[str](), list[str]()

    def fan(source: str, depth: int) -> None:
        number = next(numbers)
        outs = [f"list{number}x{leg}" for leg in range(data.draw(st.integers(2, 3)))]
        settings = (
            f"redisNamespace: fan{number}\nin: {source}\npending: fan{number}:pending\nout: [{', '.join(outs)}]\n"
        )
        files[f"mpush-{number}.yaml"] = settings
        lines.append(f"fan{number}: python -m services.mpush --props mpush-{number}.yaml\n")
        for name in outs:
            legs.append(f"mpush-{number}.yaml {name}")
            end = data.draw(st.sampled_from(["others", "tracker", "away", *(["fan"] if depth < 2 else [])]))
            if end == "fan":
                fan(name, depth + 1)
            else:
                {"others": outside.append, "tracker": track, "away": send}[end](name)

    def track(source: str) -> None:
        number = next(numbers)
        tracked.append(f"track{number}")
        files[f"mdispatch-{number}.yaml"] = (
            f"redisNamespace: track{number}\nin: {source}\npending: track{number}:pending\nout: work{number}\n"
        )
        lines.append(f"track{number}: python -m services.mdispatch --props mdispatch-{number}.yaml\n")
        lines.append(f"worker{number}: python worker.py\n")
        programs.append(f"  worker{number}:\n    reads: work{number}\n    writes: track{number}:done\n")

    def send(source: str) -> None:
        number = next(numbers)
        outside.append(f"far{number}")
        files[f"vpush-{number}.yaml"] = (
            f"redisNamespace: send{number}\nin: {source}\npending: send{number}:pending\n"
            f"outRedis: redis://far:6379/0\nout: far{number}\n"
        )
        lines.append(f"send{number}: python -m services.vpush --props vpush-{number}.yaml\n")

    fan("entry", 0)
    if tracked:
        files["monitor.yaml"] = f"redisNamespace: watch\nwatch: [{', '.join(tracked)}]\nmetricsPort: 0\n"
        lines.append("monitor: python -m services.monitor --props monitor.yaml\n")
    files["Procfile"] = "".join(lines)
    external = f"external:\n  writes: entry\n  reads: [{', '.join(outside)}]\n"
    files["composition.yaml"] = external + (f"programs:\n{''.join(programs)}" if programs else "")
    with TemporaryDirectory() as directory:
        for file, text in files.items():
            Path(directory, file).write_text(text)
        assert found(Path(directory)) == []
        file, name = data.draw(st.sampled_from(legs)).split()
        Path(directory, file).write_text(files[file].replace(name, f"{name}-typo"))
        rules = sorted(line.rpartition(" ")[2] for line in found(Path(directory)))
        assert rules == (["[orphan]"] if name in outside else ["[orphan]", "[unfed]"])


async def test_the_command_prints_all_and_ends_with_1(tmp_path: Path) -> None:
    compose(tmp_path, BREAKS["a list written by a misspelt name"][0])
    result = await penstock("lint", tmp_path)
    assert (result.status, result.error) == (1, "")
    first, second = sorted(result.text.splitlines())
    assert first.startswith(f"{tmp_path}/mpush.yaml:6: out: ")
    assert second.startswith(f"{tmp_path}/vpush.yaml:2: in: ")
    result = await penstock("lint", tmp_path, "--json")
    assert result.status == 1
    (composition,) = result.json["compositions"]
    errors = [finding for finding in composition["findings"] if finding["severity"] == "error"]
    assert composition["composition"] == str(tmp_path)
    assert [(finding["rule"], finding["line"], finding["property"]) for finding in errors] == [
        ("orphan", 6, "out"),
        ("unfed", 2, "in"),
    ]


async def test_a_composition_that_is_right_is_fine_and_on_a_cluster_it_is_not(tmp_path: Path) -> None:
    compose(tmp_path)
    result = await penstock("lint", tmp_path, tmp_path / "mpush.yaml")
    assert result.status == 0
    assert f"{tmp_path}: OK (not ready for Redis Cluster; details: lint --cluster)" in result.text
    assert f"{tmp_path}/mpush.yaml: OK" in result.text
    result = await penstock("lint", tmp_path, "--cluster")
    assert result.status == 1
    assert all(line.endswith("[slots]") for line in result.text.splitlines())


async def test_a_directory_without_a_composition_is_one_clear_line(tmp_path: Path) -> None:
    result = await penstock("lint", tmp_path)
    assert (result.status, result.out) == (1, b"")
    assert "no composition found; expected a Procfile, a compose.yaml or props files" in result.error


async def test_a_secret_that_only_the_container_has_stands_for_a_server_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services:\n"
        "  fan: {command: python -m services.mpush --props mpush.yaml, environment: {REDIS_FILE: /run/secrets/one}}\n"
        "  send: {command: python -m services.vpush --props vpush.yaml,\n"
        "    environment: {REDIS_FILE: /run/secrets/one, VPUSH_OUT_REDIS_FILE: /run/secrets/two}}\n"
    )
    (tmp_path / "mpush.yaml").write_text("redisNamespace: fan\nin: in\npending: p\nout: [a]\n")
    (tmp_path / "vpush.yaml").write_text("redisNamespace: send\nin: a\npending: q\nout: in\n")
    (tmp_path / "composition.yaml").write_text("external: {reads: [in], writes: [in]}\n")
    result = await penstock("lint", tmp_path)
    assert (result.status, result.text.partition(" (")[0]) == (0, f"{tmp_path}: OK")
