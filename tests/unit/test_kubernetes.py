"""The manifests of compose/cluster/kubernetes: valid, complete, hardened, and without secrets."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator

from compose.cluster.kubernetes.executor import command
from tests.support.commandline import penstock
from tests.support.harness import ROOT

HERE: Final = ROOT / "compose/cluster/kubernetes"
SCHEMA: Final = json.loads((ROOT / "tests/support/kubernetes-1.37.json").read_text())
MANIFESTS: Final[list[dict[str, Any]]] = list(yaml.safe_load_all((HERE / "penstock.yaml").read_text()))
README: Final = (HERE / "README.md").read_text()


def of(kind: str, name: str = "pipeline") -> dict[str, Any]:
    """Return the one manifest of this kind and name."""
    (found,) = [each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


DATA: Final[dict[str, str]] = of("ConfigMap")["data"]
EXECUTOR: Final[dict[str, Any]] = yaml.safe_load(DATA["executor.yaml"])
DRIVER: Final[dict[str, Any]] = of("Deployment")["spec"]["template"]
CONF: Final = dict(line.split(maxsplit=1) for line in DATA["spark.conf"].splitlines() if not line.startswith("#"))
PODS: Final = pytest.mark.parametrize("pod", [DRIVER, EXECUTOR], ids=["driver", "executor"])


def problems(manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong with a manifest by Kubernetes' own schema, in which unknown fields are errors."""
    schema = {"$ref": f"#/$defs/{SCHEMA['kinds'][manifest['kind']]}", "$defs": SCHEMA["$defs"]}
    return [f"{each.json_path}: {each.message}" for each in Draft202012Validator(schema).iter_errors(manifest)]


def test_every_manifest_is_valid() -> None:
    assert [found for each in [*MANIFESTS, EXECUTOR] for found in problems(each)] == []
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in MANIFESTS]
    assert len(names) == len(set(names)) == 8


def test_the_schema_refuses_a_misspelt_field_and_a_wrong_type() -> None:
    wrong = json.loads(json.dumps(of("Deployment")))
    wrong["spec"]["replica"] = 1
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = "yes"
    assert {each.partition(":")[0] for each in problems(wrong)} == {
        "$.spec",
        "$.spec.template.spec.containers[0].securityContext.readOnlyRootFilesystem",
    }


@PODS
def test_a_pod_mounts_volumes_that_exist(pod: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    (container,) = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert of("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        elif "configMap" in volume:
            assert of("ConfigMap", volume["configMap"]["name"])
        elif "secret" in volume:
            assert f"kubectl create secret generic {volume['secret']['secretName']} " in README
        else:
            assert set(volume) == {"name", "emptyDir"}


def test_every_other_reference_resolves() -> None:
    (container,) = DRIVER["spec"]["containers"]
    assert of("ServiceAccount", DRIVER["spec"]["serviceAccountName"])
    binding = of("RoleBinding")
    assert of(binding["roleRef"]["kind"], binding["roleRef"]["name"])
    assert [of(each["kind"], each["name"])["metadata"]["name"] for each in binding["subjects"]] == [
        DRIVER["spec"]["serviceAccountName"]
    ]
    labels = DRIVER["metadata"]["labels"]
    assert of("Deployment")["spec"]["selector"]["matchLabels"] == labels
    service = of("Service", CONF["spark.driver.host"])
    assert service["spec"]["selector"] == labels
    ports = {each["name"]: str(each["port"]) for each in service["spec"]["ports"]}
    assert ports == {"driver": CONF["spark.driver.port"], "blocks": CONF["spark.blockManager.port"]}
    pods = {labels["app"], EXECUTOR["metadata"]["labels"]["app"]}
    policy = of("NetworkPolicy")["spec"]
    peers = [policy["podSelector"], policy["ingress"][0]["from"][0]["podSelector"]]
    assert [set(peer["matchExpressions"][0]["values"]) for peer in peers] == [pods, pods]
    assert CONF["spark.kubernetes.container.image"] == container["image"]
    named = CONF["spark.kubernetes.executor.podTemplateContainerName"]
    assert named == EXECUTOR["spec"]["containers"][0]["name"]
    for variable in re.findall(r"\$\((\w+)\)", " ".join(container["args"])):
        assert variable in [each["name"] for each in container["env"]]


def test_every_file_that_is_named_is_mounted_or_in_the_image() -> None:
    (container,) = DRIVER["spec"]["containers"]
    settings = {"/etc/penstock/" + name for name in DATA}
    words = [*container["args"], CONF["spark.kubernetes.executor.podTemplateFile"]]
    assert {word for word in words if word.startswith("/etc/")} == settings
    (program,) = [word for word in words if "/site-packages/" in word]
    assert (ROOT / program.partition("/site-packages/")[2]).is_file()
    (secret,) = [each for each in container["env"] if each["name"] == "PIPELINE_REDIS_FILE"]
    directory, _, key = secret["value"].rpartition("/")
    assert directory in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert f"--from-literal={key}=" in README or f"--from-file={key}=" in README
    assert EXECUTOR["spec"]["containers"][0]["command"][-1] == "compose.cluster.kubernetes.executor"


def test_no_secret_is_in_plain_text() -> None:
    assert "Secret" not in {each["kind"] for each in MANIFESTS}
    for text in map(json.dumps, MANIFESTS):
        assert not re.search(r"rediss?(\+\w+)?://|password|secret(key)?\"?: *\"", text, re.IGNORECASE)


@PODS
def test_a_pod_has_no_more_rights_than_it_needs(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert EXECUTOR["spec"]["automountServiceAccountToken"] is False


def test_the_role_names_verbs_and_resources() -> None:
    for rule in of("Role")["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "secrets" not in rule["resources"]


async def test_the_settings_of_the_pipeline_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline.yaml").write_text(DATA["pipeline.yaml"])
    monkeypatch.setenv("PIPELINE_REDIS", "redis://redis:6379/0")
    result = await penstock("lint", tmp_path / "pipeline.yaml")
    assert (result.status, result.error) == (0, "")


def test_an_executor_starts_with_what_spark_says_in_variables() -> None:
    names = ["DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP"]
    names += ["RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME"]
    said = {f"SPARK_{name}": name.lower() for name in names}
    said |= {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 9, 0)}
    said |= {"SPARK_EXECUTOR_MEMORY": "1g", "SPARK_CONF_DIR": "/opt/spark/conf"}
    words = command(said, "/jars/*")
    assert words[:8] == [*("java", "-Dn=0", "-Dn=9", "-Dn=10", "-Xms1g", "-Xmx1g", "-cp"), "/opt/spark/conf:/jars/*"]
    options = dict(zip(words[9::2], words[10::2], strict=True))
    assert options == {
        "--driver-url": "driver_url",
        "--executor-id": "executor_id",
        "--cores": "executor_cores",
        "--app-id": "application_id",
        "--hostname": "executor_pod_ip",
        "--resourceProfileId": "resource_profile_id",
        "--podName": "executor_pod_name",
    }
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_MEMORY"):
        command({}, "")
