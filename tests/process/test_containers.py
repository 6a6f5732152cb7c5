"""Static checks of the images and of every compose.yaml; ``make container-check`` runs them in an engine."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parent.parent.parent
DOCKERFILES = sorted((ROOT / "compose").rglob("Dockerfile"))
COMPOSITIONS = sorted(path.parent for path in ROOT.glob("compose/*/compose.yaml"))
EXTRAS = {
    "compose/requirements.txt": ("web", "hqueue", "seal", "jobs", "outbox", "speed"),
    "compose/cluster/requirements.txt": ("web", "speed", "spark"),
}
"""What each image has besides the dependencies of all services."""

every_image = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
every_composition = pytest.mark.parametrize("composition", COMPOSITIONS, ids=lambda path: path.name)


def tool(name: str, *words: str | Path) -> None:
    """Run a tool of this virtual environment; fail with its output if its exit status is not 0."""
    done = subprocess.run([Path(sys.executable).parent / name, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def final_stage(dockerfile: Path) -> list[tuple[str, str]]:
    """Return instruction and value of each line from the last FROM on."""
    parsed = DockerfileParser(fileobj=BytesIO(dockerfile.read_bytes())).structure
    steps = [(step["instruction"], step["value"]) for step in parsed if step["instruction"] != "COMMENT"]
    start = max(at for at, (instruction, _) in enumerate(steps) if instruction == "FROM")
    return steps[start:]


def compose(composition: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((composition / "compose.yaml").read_text())
    return loaded


def ours(composition: Path) -> dict[str, dict[str, Any]]:
    """Return the services of a composition that run from the image of this project."""
    return {name: service for name, service in compose(composition)["services"].items() if "build" in service}


def by_hand(composition: Path, service: dict[str, Any]) -> list[str]:
    """Return the command line that runs ``service`` without a container."""
    here = str(composition.relative_to(ROOT))
    return ["exec", "python", "-m", *(word.replace("/etc/penstock", here) for word in service["command"])]


@every_image
def test_the_dockerfile_passes_hadolint(dockerfile: Path) -> None:
    tool("hadolint", dockerfile)


@every_image
def test_the_image_does_not_run_as_root(dockerfile: Path) -> None:
    users = [value for instruction, value in final_stage(dockerfile) if instruction == "USER"]
    assert users
    assert all(part.isdigit() and int(part) > 0 for part in users[-1].split(":"))


@every_image
def test_the_image_has_a_liveness_check(dockerfile: Path) -> None:
    [probe] = [value for instruction, value in final_stage(dockerfile) if instruction == "HEALTHCHECK"]
    assert '["penstock-health", "live"]' in probe, "a server that is away must not make an engine restart a service"
    assert [value for _, value in final_stage(dockerfile) if "PENSTOCK_HEALTH=" in value]


@every_image
def test_nothing_is_built_or_installed_in_the_final_stage(dockerfile: Path) -> None:
    assert not [value for instruction, value in final_stage(dockerfile) if instruction in ("RUN", "ADD")]


@every_image
def test_every_stage_uses_the_same_pinned_slim_python(dockerfile: Path) -> None:
    parsed = DockerfileParser(fileobj=BytesIO(dockerfile.read_bytes()))
    stages = {value.rpartition(" AS ")[2] for step in parsed.structure for value in [step["value"]] if " AS " in value}
    assert set(parsed.parent_images) - stages == {"docker.io/library/python:3.11-slim-bookworm"}
    assert "ARG BASE=docker.io/library/python:3.11-slim-bookworm\n" in dockerfile.read_text()


@every_image
def test_the_image_is_installed_from_the_locked_versions(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert "--require-hashes --requirement requirements.txt" in text
    assert text.index("--require-hashes") < text.index("COPY penstock penstock"), "a change would install all anew"


@pytest.mark.parametrize("file", EXTRAS)
def test_the_hashes_belong_to_the_locked_versions(file: str) -> None:
    locked = set(re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    hashed = set(re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / file).read_text(), re.MULTILINE))
    assert hashed <= locked, "run make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in EXTRAS[file] for each in project["optional-dependencies"][extra]]
    wanted = {re.split(r"[\[<>=]", each)[0].lower() for each in [*project["dependencies"], *extras]}
    assert wanted <= {each.partition("==")[0] for each in hashed}, "run make lock"


@every_composition
def test_compose_yaml_follows_the_compose_specification(composition: Path) -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", composition / "compose.yaml")


@every_composition
def test_what_compose_yaml_builds_and_mounts_exists(composition: Path) -> None:
    kept = compose(composition)["volumes"]
    for service in ours(composition).values():
        context = composition / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).resolve() in DOCKERFILES
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source in kept:
                continue
            assert (source, target, mode) == (".", "/etc/penstock", ["ro"]), "a mounted file keeps its former inode"
            for word in service["command"]:
                if word.startswith(f"{target}/"):
                    assert (composition / word.removeprefix(f"{target}/")).is_file()


@every_composition
def test_procfile_and_compose_yaml_run_the_same_commands(composition: Path) -> None:
    lines = (line.split(":", 1) for line in (composition / "Procfile").read_text().splitlines())
    assert {name: words.split() for name, words in lines} == {
        name: by_hand(composition, service) for name, service in ours(composition).items()
    }


@every_composition
def test_every_module_that_compose_yaml_runs_can_be_run(composition: Path) -> None:
    for service in ours(composition).values():
        module = service["command"][0]
        found = importlib.util.find_spec(module)
        assert found
        assert not found.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__")


@every_composition
def test_a_service_has_the_time_to_settle_and_no_more_rights_than_it_needs(composition: Path) -> None:
    for service in ours(composition).values():
        assert int(service["stop_grace_period"].removesuffix("s")) > 30
        assert service["restart"] == "unless-stopped"
        if service["command"][0].startswith("services."):
            assert service["environment"]["PENSTOCK_STAY"] == "1"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@every_composition
def test_the_server_of_a_composition_keeps_what_it_accepted(composition: Path) -> None:
    server = compose(composition)["services"]["redis"]
    words = server["command"]
    assert words[words.index("--appendonly") + 1] == "yes"
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"
    assert "redis:/data" in server["volumes"]


@pytest.mark.parametrize("name", ["ci", "slow"])
def test_the_workflows_are_valid_for_github(name: str) -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ROOT / f".github/workflows/{name}.yml")
