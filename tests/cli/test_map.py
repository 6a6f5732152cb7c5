"""penstock map: a composition drawn from its files."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from redis.asyncio import Redis

from penstock.base.shape import shape_json
from tests.support.commandline import AWKWARD, ROOT, penstock
from tests.support.given import made
from tests.support.lint_cases import FINE, HOPS, compose
from tests.support.membership import register

TREE = """\
DIR
├── shop:in  on localhost:6379/0, from others
│   └── ─▶ fan (mpush)
│       ├── shop:orders
│       │   └── ─▶ track (mdispatch)
│       │       ├── shop:work
│       │       │   └── ─▶ worker (program)
│       │       │       └── shop:track:done
│       │       │           └── ─▶ watch (monitor)
│       │       │               └── gives back to shop:work, shop:track:dead
│       │       ├── shop:track:dead  dead letters
│       │       └── shop:track:events  stream
│       │           └── ─▶ keep (pipeline)
│       └── shop:copies
│           └── ─▶ send (vpush)
│               ├── archive:in  on elsewhere:6379/0, to others
│               └── shop:send:dead  dead letters
"""


@pytest.fixture(autouse=True)
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command in this process, as it reads no input."""
    monkeypatch.setattr("tests.support.commandline.IN_PROCESS", {"map"})


async def test_the_way_of_messages_is_drawn_from_source_to_sink(tmp_path: Path) -> None:
    result = await penstock("map", compose(tmp_path))
    assert (result.status, result.error) == (0, "")
    text = result.text.replace(str(tmp_path), "DIR")
    assert text.replace("└── shop:in", "├── shop:in").replace("\n    ", "\n│   ") == TREE


async def test_what_instances_wait_for_is_drawn(redis: Redis, redis_url: str) -> None:
    settings = made(redis=redis_url, redis_namespace="demo")
    for id in "1", "2", "3":
        await register(redis, "demo", id)
        await redis.hset("demo:" + id, "waiting", "full: b\x1b" if id != "3" else "")
    await redis.set("demo:shape", shape_json(settings))
    result = await penstock("map", "--live", "--once", redis=redis_url)
    assert "─▶ demo (mpush)  3 alive, waits: full: b\\x1b\n" in result.text
    (part,) = (await penstock("map", "--live", "--once", "--json", redis=redis_url)).json["parts"]
    assert part["waits"] == ["full: b\x1b"]


async def test_instances_are_found_where_they_register(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text(f"fan: python -m services.mpush --props {tmp_path}/fan.yaml\n")
    elsewhere = redis_url.replace("/0", "/1")
    names = f"redis: {redis_url}\nserviceRedis: {elsewhere}\nredisNamespace: demo\n"
    (tmp_path / "fan.yaml").write_text(f"{names}in: a\npending: p\nout: [b]\n")
    async with Redis.from_url(elsewhere) as registry:
        await register(registry, "demo", "1")
        await registry.hset("demo:1", "waiting", "full: b")
        result = await penstock("map", tmp_path, "--live", "--once", redis=redis_url)
        await registry.flushdb()
    assert "─▶ fan (mpush)  1 alive, waits: full: b\n" in result.text


async def test_a_pipeline_is_joined_to_all_streams_of_its_pattern(tmp_path: Path) -> None:
    text = (await penstock("map", compose(tmp_path, FINE["a pipeline that names its namespaces by a pattern"]))).text
    assert text.replace(str(tmp_path), "DIR") == (await plain(tmp_path))
    assert "shop:*" not in text


async def plain(directory: Path) -> str:
    """Return the drawing of the unchanged composition."""
    return (await penstock("map", compose(directory))).text.replace(str(directory), "DIR")


async def test_a_loop_and_a_join_are_marked_and_drawn_once(tmp_path: Path) -> None:
    hop = {"vpush.yaml": ("outRedis: redis://elsewhere:6379/0\nout: archive:in\n", HOPS + "maxHops: 3\n")}
    loop = (await penstock("map", compose(tmp_path, hop))).text
    assert loop.count("↺ goes round") == 1
    assert "shop:in  from others  ↺ goes round" in loop or "shop:in  ↺" in loop
    join = (await penstock("map", compose(tmp_path, FINE["replicas of a program"]))).text
    assert "worker (program)" in join
    assert join.count("shop:track:done  ↑ see above") == 1


@pytest.mark.slow
async def test_every_part_and_list_of_our_own_compositions_is_drawn() -> None:
    for directory in sorted(file.parent for file in ROOT.glob("compose/*/composition.yaml")):
        text = (await penstock("map", directory)).text
        found = (await penstock("map", directory, "--json")).json
        names = [part["name"] for part in found["parts"]] + [each["key"] for each in found["lists"]]
        assert names
        assert [name for name in names if name not in text] == []


async def test_json_has_parts_and_lists(tmp_path: Path) -> None:
    found = (await penstock("map", compose(tmp_path), "--json")).json
    server = "localhost:6379/0"
    assert found["composition"] == str(tmp_path)
    assert found["parts"][3] == {
        "name": "send",
        "service": "vpush",
        "namespace": "shop:send",
        "reads": [{"key": "shop:copies", "server": server}],
        "writes": [{"key": "archive:in", "server": "elsewhere:6379/0"}, {"key": "shop:send:dead", "server": server}],
    }
    assert found["lists"][0] == {
        "key": "shop:in",
        "server": server,
        "kind": "list",
        "from_others": True,
        "to_others": False,
    }


async def test_mermaid_is_a_flowchart_with_a_box_for_each_server(tmp_path: Path) -> None:
    result = await penstock("map", compose(tmp_path), "--mermaid")
    assert (result.status, result.error) == (0, "")
    first, *lines = result.text.splitlines()
    assert first == "flowchart LR"
    assert [line for line in lines if "subgraph" in line] == [
        '  subgraph server0["localhost:6379/0"]',
        '  subgraph server1["elsewhere:6379/0"]',
    ]
    assert '    part0["fan (mpush)"]:::service' in lines
    assert "  list0 --> part0" in lines
    assert "  from{{others}} --> list0" in lines
    assert any("-.->" in line for line in lines), "what a monitor gives back"


async def test_a_picture_is_svg_with_every_name_in_it(tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    result = await penstock("map", compose(tmp_path), "--svg", picture)
    assert (result.status, result.out, result.error) == (0, b"", "")
    texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {"fan (mpush)", "send (vpush)", "shop:in", "archive:in", "elsewhere:6379/0", "others"} <= texts


async def test_without_graphviz_a_picture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    result = await penstock("map", compose(tmp_path), "--svg", tmp_path / "map.svg")
    assert (result.status, (tmp_path / "map.svg").exists()) == (1, False)
    assert result.error == "penstock: --svg needs Graphviz: pip install 'penstock[map]'; --mermaid needs nothing\n"


def escaped(name: str) -> str:
    """Return ``name`` with all but letters, digits and harmless characters replaced by their code points."""
    return re.sub(r"[^\w :./(),+*@~-]", lambda found: f"#{ord(found[0])};", name)


@pytest.mark.parametrize("name", [*AWKWARD, "<b>&amp;", "back\\nslash", "[link](x)[red]"])
async def test_a_list_may_have_any_name(tmp_path: Path, name: str) -> None:
    quoted = json.dumps(name, ensure_ascii=True)
    (tmp_path / "mpush.yaml").write_text(f"redisNamespace: fan\nin: source\npending: hand\nout: [{quoted}, other]\n")
    assert name in (await penstock("map", tmp_path)).text
    picture = tmp_path / "map.svg"
    assert (await penstock("map", tmp_path, "--svg", picture)).status == 0
    texts = {(text.text or "").strip() for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert name in texts
    assert f'"{escaped(name)}"' in (await penstock("map", tmp_path, "--mermaid")).text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "expected a directory with a composition, or --live"),
        (["DIR", "--once"], "--once requires --live"),
        (["DIR", "--json", "--mermaid"], "expected one of --svg, --mermaid and --json"),
        (["--live", "--mermaid"], "pass --once with --live"),
    ],
)
async def test_a_usage_error_is_reported(tmp_path: Path, words: list[str], reason: str) -> None:
    result = await penstock("map", *(str(compose(tmp_path)) if word == "DIR" else word for word in words))
    assert (result.status, result.out) == (2, b"")
    assert reason in result.error


async def test_a_composition_with_mistakes_is_not_drawn(tmp_path: Path) -> None:
    compose(tmp_path, {"mpush.yaml": ("out:", "oud:")})
    result = await penstock("map", tmp_path)
    assert (result.status, result.out) == (1, b"")
    assert f"penstock: {tmp_path}/mpush.yaml:4: oud: unknown property" in result.error
