"""The cluster composition, typed as in its README: every event of the messages is archived once."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.cluster.node import node
from penstock.base.errors import Unsuitable
from penstock.base.ports import free_port
from tests.spark.pipelines import events_in
from tests.support.commandline import penstock
from tests.support.demos import ROOT
from tests.support.shell import Shell

HERE = ROOT / "compose/cluster"


@pytest.fixture
def shell() -> Iterator[Shell]:
    session = Shell(free_port())
    session.replaced |= {"7077": str(free_port()), "8080": str(free_port())}
    session.run("export SPARK_MASTER=spark://127.0.0.1:7077 SPARK_MASTER_WEBUI_PORT=8080 SPARK_WORKER_WEBUI_PORT=0")
    yield session
    session.close()


def test_every_command_of_its_readme_works_as_typed(shell: Shell, tmp_path: Path) -> None:
    """Use free ports, and one terminal in place of two: the command that stays runs in the background."""

    def moved(text: str) -> str:
        text = text.replace("compose/cluster", str(tmp_path)).replace("/tmp/penstock-cluster", f"{tmp_path}/archive")
        return shell.ours(text)

    for file in [HERE / "Procfile", *HERE.glob("*.yaml")]:
        (tmp_path / file.name).write_text(moved(file.read_text()))
    shell.run(f"export SPARK_WORKER_DIR={tmp_path}/work")
    blocks = re.findall(r"^```\n(.*?)^```$", (HERE / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    first, *others = [moved(block) for block in blocks if "penstock " in block]
    shell.run(f"{first.rstrip()} > {tmp_path}/log 2>&1 &")
    assert shell.run("until .venv/bin/penstock redis ping > /dev/null 2>&1; do sleep 0.1; done")[1] == 0
    for block in others:
        for command in block.splitlines():
            printed, status = shell.run(command)
            assert status == 0, f"{command}\n{printed}\n{(tmp_path / 'log').read_text()[-4000:]}"
    counts = {("east", event): 20_000 for event in ("registered", "done")}
    counts |= {("west", event): 10_000 for event in ("registered", "done")}
    assert archived(tmp_path / "archive") == {
        (f"cluster:{shard}", event, str(number)): 1
        for (shard, event), many in counts.items()
        for number in range(1, many + 1)
    }
    executors = {log.parent.name for log in (tmp_path / "work").glob("*/*/stderr") if "Running task" in log.read_text()}
    assert executors >= {"0", "1"}


def archived(place: Path) -> Counter[tuple[str, str, str]]:
    """Count the rows of each event of each message."""
    return Counter((row["namespace"], row["event"], row["xid"]) for row in events_in(place.parent))


async def test_its_props_files_are_fine() -> None:
    result = await penstock("lint", *HERE.glob("[!c]*.yaml"))
    assert (result.status, result.error) == (0, "")


def test_a_node_listens_to_this_machine_alone_if_its_master_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)  # as a session of this process may have it
    command, environment = node("master", "spark://127.0.0.1:7999")
    assert command[1:] == ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "7999"]
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    command, environment = node("master", "spark://master:7077")
    assert command[2:] == ["--host", "master", "--port", "7077"]
    assert environment.get("SPARK_LOCAL_IP") is None


def test_a_node_that_cannot_find_its_master_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsuitable, match="SPARK_MASTER=7077: expected spark://host:port"):
        node("worker", "7077")
    monkeypatch.setattr("penstock.spark.session.MASTER_START_SECONDS", 0.2)
    port = free_port()
    with pytest.raises(Unsuitable, match=f"there is no Spark master at spark://localhost:{port} .*refused"):
        node("worker", f"spark://localhost:{port}")
