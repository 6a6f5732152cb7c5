"""Props files in every format, valid and invalid."""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.settings.props import LARGEST, READERS, line_of, read_props
from penstock.base.errors import Problem, SettingsError
from services.mdispatch import settings as mdispatch
from tests.support.commandline import ROOT, penstock
from tests.support.harness import PATIENCE

ORIGINAL = """
/* as mpush-redis has it */
module.exports = {
   redis: 'redis://localhost:6379/1', // the lists
   'in': 'demo:mpush:in', /* popTimeout: 3 */
   out: ['demo:mpush:out0', "popTimeout: 4"],
   popTimeout: 10,
};
"""
SAME = {
    ".js": ORIGINAL,
    ".mjs": ORIGINAL.replace("module.exports =", "export default"),
    ".json5": ORIGINAL.replace("module.exports =", "").replace("};", "}"),
    ".json": """{
        "redis": "redis://localhost:6379/1", "in": "demo:mpush:in",
        "out": ["demo:mpush:out0", "popTimeout: 4"],

        "popTimeout": 10}""",
    ".yaml": """# popTimeout: 3
redis: redis://localhost:6379/1
in: demo:mpush:in
out: [demo:mpush:out0, 'popTimeout: 4']
popTimeout: 10
""",
    ".toml": """# popTimeout = 3
redis = "redis://localhost:6379/1"
in = 'demo:mpush:in'
out = [
    "demo:mpush:out0", # popTimeout = 5
    "popTimeout: 4",
]
popTimeout = 10
""",
}
LINE = {".js": 7, ".mjs": 7, ".json5": 7, ".json": 5, ".yaml": 5, ".toml": 8}


def written(directory: Path, suffix: str, text: str | bytes) -> Path:
    file = directory / f"props{suffix}"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def refused(file: Path) -> Problem:
    """Return the only problem that reading ``file`` raises."""
    with pytest.raises(SettingsError) as refusal:
        read_props(file)
    (problem,) = refusal.value.problems
    assert problem.file == str(file)
    return problem


@pytest.mark.parametrize("suffix", SAME)
def test_every_format_says_the_same(tmp_path: Path, suffix: str) -> None:
    props = read_props(written(tmp_path, suffix, SAME[suffix]))
    assert props.values == {
        "redis": "redis://localhost:6379/1",
        "in": "demo:mpush:in",
        "out": ["demo:mpush:out0", "popTimeout: 4"],
        "popTimeout": 10,
    }


@pytest.mark.parametrize("suffix", SAME)
def test_the_line_of_a_property_is_neither_in_a_comment_nor_in_a_value(tmp_path: Path, suffix: str) -> None:
    assert read_props(written(tmp_path, suffix, SAME[suffix])).lines["popTimeout"] == LINE[suffix]
    assert line_of(SAME[suffix], "popTimeout") == LINE[suffix]
    assert line_of(SAME[suffix], "pending") is None


def test_an_env_file_holds_texts_and_its_lines_are_known(tmp_path: Path) -> None:
    text = "\n# popTimeout=3\nexport in='a \"b\"'\n\npopTimeout=10 # seconds\nredis=redis://h/${X}#1\n"
    props = read_props(written(tmp_path, ".env", text))
    assert props.values == {"in": 'a "b"', "popTimeout": "10", "redis": "redis://h/${X}#1"}
    assert (props.lines, props.textual) == ({"in": 3, "popTimeout": 5, "redis": 6}, True)
    assert line_of(text, "popTimeout") == 5


def test_a_file_that_is_called_dot_env_is_one(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("in=a")
    assert read_props(tmp_path / ".env").values == {"in": "a"}


@pytest.mark.parametrize(
    ("suffix", "text", "line"),
    [
        (".json", '{"in": "a",\n "in": "b"}', 2),
        (".json", '{"in": "a", "\\u0069n": "b"}', 1),
        (".json5", "{in: 'a',\n\n 'in': 'b'}", 3),
        (".js", "module.exports = {in: 'a',\n\"in\": 'b'}", 2),
        (".yaml", "in: a\nout: [b]\nin: a\n", 3),
        (".toml", "in = 'a'\nin = 'b'\n", 2),
        (".env", "in=a\n\nin=b\n", 3),
    ],
)
def test_a_property_that_is_given_twice_is_refused(tmp_path: Path, suffix: str, text: str, line: int) -> None:
    assert refused(written(tmp_path, suffix, text)).line == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("const host = 'x';\nmodule.exports = {redis: host};", 1),
        ("// comment\nmodule.exports = {\n redis: process.env.REDIS\n};", 3),
        ("module.exports = {in: 'a'};\n\nconsole.log('x');", 3),
        ("module.exports = {in: 'a'}.x", 1),
        ("module.exports = {in: `a`}", 1),
        ("module.exports = {in: 'a' + 'b'}", 1),
        ("\nmodule.exports = () => ({in: 'a'})", 2),
        ("module.exports = {\n in: 'a'\n pending: 'b'}", 3),
        ("module.exports = {in: f('a')}", 1),
        ("module.exports = {...other}", 1),
        ("module.exports = ['a']", 1),
        ("", 1),
    ],
)
def test_a_javascript_file_that_is_more_than_a_literal_is_refused_unread(tmp_path: Path, text: str, line: int) -> None:
    problem = refused(written(tmp_path, ".js", text))
    assert problem.line == line
    assert "never executed" in problem.message


@pytest.mark.parametrize(
    ("suffix", "text", "line", "said"),
    [
        (".json", '{"in":\n a}', 2, "not JSON"),
        (".json", "[1]", None, "expected properties"),
        (".json", "[" * 100_000, None, "nested too deeply"),
        (".json", '{"batch": ' + "9" * 5000 + "}", None, "too large"),
        (".json", b'{\n"in": "\xff"}', 2, "not UTF-8"),
        (".json5", "{in: 'é😀',\n b: *}", 2, "not JSON5"),
        (".yaml", "in: a\nout: [", 2, "not YAML"),
        (".yaml", "in: a\n\x00", 2, "control character"),
        (".yaml", "in: a\nyes: b", None, "in quotes"),
        (".yaml", "in: !!bool a", None, "its tag"),
        (".yaml", "--- {}\n--- {}", 2, "single document"),
        (".yaml", "x: " + "[" * 1500, None, "nested too deeply"),
        (".toml", "in = \n", 1, "not TOML"),
        (".toml", "in = 'a'\n" + ".".join("a" * 30_000) + " = 1", 2, "nested too deeply"),
        (".env", "in=a\nno such thing\n", 2, "NAME=value"),
        (".env", "in\n", 1, "NAME=value"),
        (".ini", "in=a", None, ".toml"),
        (".json", " " * (LARGEST + 1), None, "not a props file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, suffix: str, text: str | bytes, line: int | None, said: str
) -> None:
    problem = refused(written(tmp_path, suffix, text))
    assert problem.line == line
    assert said in problem.message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.json").message == "cannot be read: No such file or directory"
    assert "cannot be read" in refused(Path("a\0.json")).message


def test_yaml_merge_keys_are_supported(tmp_path: Path) -> None:
    props = read_props(written(tmp_path, ".yml", "<<: {in: a, popTimeout: 5}\nin: b\n"))
    assert props.values == {"in": "b", "popTimeout": 5}


@pytest.mark.parametrize("suffix", READERS)
@settings(deadline=None, max_examples=40)
@given(content=st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")))
def test_no_garbage_raises_anything_but_settings_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes
) -> None:
    with suppress(SettingsError):
        read_props(written(tmp_path_factory.getbasetemp(), suffix, content))


MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 10)
)
MANY = range(60_000)


def _started(words: list[str]) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "REDIS": "redis://h"}
    call = [sys.executable, "-m", "services.mpush", *words]
    return subprocess.run(call, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mpush.yaml", MERGES, ":5: not YAML: merges (<<) of merges"),
        ("mpush.yaml", "".join(f"p{number}: {number}\n" for number in MANY), "not a file of ours"),
        ("mpush.yaml", "".join(f"p{number}: 1\n" for number in range(2_000)), "more than 1,000 properties"),
        ("mpush.json", json.dumps({f"p{number}": 1 for number in MANY}), "more than 1,000 properties"),
        ("mpush.json5", json.dumps({f"p{number}": 1 for number in MANY}), "more than 1,000 properties"),
        ("mpush.js", "module.exports = " + json.dumps(dict.fromkeys(map(str, MANY), 1)), "more than 1,000 properties"),
        ("mpush.toml", "".join(f"p{number} = 1\n" for number in MANY), "more than 1,000 properties"),
        ("mpush.env", "".join(f"p{number}=1\n" for number in MANY), "more than 1,000 properties"),
        ("mpush.yaml", None, "cannot be read: not a regular file"),
    ],
)
async def test_a_file_that_would_take_forever_is_refused_in_one_line_at_once(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    """Refuse a bomb, 60,000 unknown properties and a FIFO (None): with ``--check``, at a start, and in lint."""
    file = tmp_path / name
    os.mkfifo(file) if content is None else file.write_text(content)
    before = time.process_time()
    words = refused(file)
    assert said in str(words)
    assert time.process_time() - before < 10  # otherwise half a minute, or hours
    for more in ([], ["--check"]):
        ran = await asyncio.to_thread(_started, [*more, "--props", str(file)])
        assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"{words}\n")
    result = await penstock("lint", file)
    assert (result.status, result.text) == (1, f"{words}\n")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("in: a\nout: [b,\n c\npending: x", 2, "a [ is not closed, or a comma is missing"),
        ("in: a\nout: {b\n", 2, "a { is not closed, or a comma is missing"),
        ("in: a\nredis: 'redis://:s3cret@h\n", 2, "a quote is not closed"),
        ("in: a: s3cret\n", 1, "a second `: ` in a line"),
        ("in: a\n\tout: b\n", 2, "or with a tab"),
        ("redis: @s3cret\n", 1, "a character that YAML reserves"),
        ("in: a\nout: *s3cret\n", 2, "begins with *"),
        ("redis: !s3cret x\n", 1, "begins with !"),
        ("[a]: b\n", 1, "a name is a list or an object"),
        ('in: "\\s3cret"\n', 1, "an unknown \\ escape"),
        ("in: a\ns3cret\nout: b\n", 2, "a line without `: `"),
        ("- in: a\nout: b\n", 2, "a wrong indent"),
        ("in: ]\n", 1, "a value is missing"),
        ("<<: s3cret\n", 1, "what << names has no properties"),
    ],
)
def test_a_mistake_in_yaml_is_reported_with_the_remedy(tmp_path: Path, text: str, line: int, words: str) -> None:
    problem = refused(written(tmp_path, ".yaml", text))
    assert problem.message.startswith("not YAML: ")
    assert words in problem.message
    assert problem.line == line
    assert "s3cret" not in problem.message


def test_a_file_that_is_not_read_whole_is_not_blamed_for_what_it_may_say(tmp_path: Path) -> None:
    file = tmp_path / "mdispatch.yaml"
    file.write_text("redis: redis://h\nredisNamespace: d\nin: a\npending: p\nout: o\nbatch: 5\nbatch: 6\n")
    with pytest.raises(SettingsError) as error:
        mdispatch.Settings.load(file, {})
    assert [problem.message for problem in error.value.problems] == ["given twice, first on line 6"]
