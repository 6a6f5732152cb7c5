"""penstock lint of hrouter: rules with file and line, alone and in a composition."""

from pathlib import Path

import pytest

from tests.support.commandline import penstock

PROPS = """\
redis: redis://localhost:6379/0
redisNamespace: web:hrouter
in: web:req
pending: web:req:pending
replyLists: [web:res:*]
rules: routes.yaml
"""
ROUTES = """\
rules:
  - prefix: /days/
    to: web:days
  - prefix: /private
    respond: {status: 403}
  - match: all
    to: web:pagse
"""


@pytest.fixture
def composition(tmp_path: Path) -> Path:
    (tmp_path / "hrouter.yaml").write_text(PROPS)
    (tmp_path / "routes.yaml").write_text(ROUTES)
    (tmp_path / "Procfile").write_text("router: penstock run hrouter.yaml\n")
    external = "external:\n  writes: [web:req]\n  reads: [web:days, web:pages, 'web:res:*']\n"
    (tmp_path / "composition.yaml").write_text(external)
    return tmp_path


async def test_a_list_that_nothing_reads_is_named_with_the_line_of_its_rule(composition: Path) -> None:
    result = await penstock("lint", composition)
    assert result.status == 1
    text = result.text.replace("\n", "")
    assert f"{composition}/routes.yaml:7: rules: " in text
    assert "web:pagse" in text
    (composition / "routes.yaml").write_text(ROUTES.replace("pagse", "pages"))
    result = await penstock("lint", composition)
    assert (result.status, result.text.strip().partition(":")[2][:3]) == (0, " OK")


async def test_rules_are_judged_and_warned_of_with_file_and_line(composition: Path) -> None:
    file, routes = composition / "hrouter.yaml", composition / "routes.yaml"
    routes.write_text("rules:\n- {path: '(?!a)', to: web:days}\n- {path: .*x, to: web:days}\n")
    result = await penstock("lint", file)
    assert result.status == 1
    assert result.text.replace("\n", "") == (
        f"{routes}:2: rules: item 1: path: invalid perl operator: (?! (RE2 has no look-around and no atomic groups)"
    )
    routes.write_text("rules:\n- {path: .*x, to: web:days}\n")
    result = await penstock("lint", file)
    assert result.status == 0
    assert f"warning: {routes}:2: rules: item 1: path: begins with .*" in result.text
