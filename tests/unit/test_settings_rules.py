"""Rules of mpush beyond the inventory of the original; all problems are reported at once."""

from pathlib import Path
from typing import Any

import pytest

from common.settings.collisions import different_slots
from common.settings.redaction import nearest
from penstock.base.errors import Problem, SettingsError
from penstock.base.installed import services
from penstock.composition.service import settings_of
from services.mpush.settings import Settings
from tests.support.given import ENVIRONMENT, made, one, problems, refused


@pytest.mark.parametrize(
    "name", ["id", "ids", "7", "events", "dead", "done", "lease", "owners", "lists", "metrics:start", "message:ids"]
)
def test_the_services_own_keys_cannot_be_lists(name: str) -> None:
    key = f"demo:{name}"
    assert "is a key of the service itself" in one(redis_namespace="demo", in_=key)
    assert "is a key of the service itself" in one(redis_namespace="demo", pending=key)
    assert "is a key of the service itself" in one(redis_namespace="demo", out=["a", key])
    assert made(in_=key).in_ == key  # without a namespace, the service has no keys there


def test_lists_may_lie_below_the_namespace() -> None:
    settings = made(redis_namespace="demo", in_="demo:in", pending="demo:pending", out=["demo:out0", "demo:7a"])
    assert settings.lists() == {"demo:in": "in", "demo:pending": "pending", "demo:out0": "out", "demo:7a": "out"}


def test_the_pending_list_of_an_instance_cannot_be_another_list() -> None:
    assert "is the pending list of an instance" in one(in_="pending:7")
    assert "is the pending list of an instance" in one(out=["a", "pending:12"])
    assert made(out=["pending:a", "pending:"]).out == ["pending:a", "pending:"]


@pytest.mark.parametrize("pending", ["demo", "demo:metrics", "demo:message"])
def test_no_pending_list_of_an_instance_may_be_a_key_of_the_service(pending: str) -> None:
    assert "would give instances pending lists" in one(redis_namespace="demo", pending=pending)


def test_an_out_on_another_server_is_refused_in_favour_of_vpush() -> None:
    assert one(out=["redis://u:secret@h/0"]).endswith("use vpush to deliver to another one")
    assert "found the URL of a server" in one(in_="rediss://h")


def test_ordered_and_dead_letters_need_a_namespace() -> None:
    assert one(ordered=True).startswith("ordered: needs redisNamespace")
    assert one(overflow="dead", max_length=5).startswith("overflow: dead needs redisNamespace")
    settings = made(redis_namespace="demo", ordered=True, overflow="dead", max_length=5)
    assert settings.lists()["demo:dead"] == "dead"


def test_an_overflow_that_can_never_come_is_refused() -> None:
    assert one(overflow="block") == "overflow: has no effect without maxLength"
    assert made(overflow="block", max_length=1).max_length == 1


@pytest.mark.parametrize("durability", ["memory", "aof", "replicas:1", "replicas:12", "replicas:majority"])
def test_durability_has_three_forms(durability: str) -> None:
    assert made(durability=durability).durability == durability


@pytest.mark.parametrize(
    "durability", ["", "disk", "replicas", "replicas:0", "replicas:-1", "replicas:1 ", "replicas:Majority", "aof\n", 1]
)
def test_durability_of_another_form_is_refused(durability: object) -> None:
    assert "expected memory | aof | replicas:N" in one(durability=durability)


def test_the_longest_wait_on_the_server_covers_the_pop_and_the_disk() -> None:
    assert made(pop_timeout=7).longest_wait == 7
    assert made(pop_timeout=7, durability="aof", durability_timeout=20).longest_wait == 20


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "props.yaml"
    file.write_text(
        "in: a\npending: a\nout: []\nserviceRenew: 40\nserviceExpire: 44\npopTimeout: 4\npop_timeout: 5\nmaxLenght: 3\n"
    )
    environ = {"MPUSH_POP_TIMEOT": "5", "MPUSH_SERVICE_HOST": "10.0.0.1", "MPUSH_PORT_6379_TCP_ADDR": "x", "OTHER": "1"}
    with pytest.raises(SettingsError) as refusal:
        Settings.load(file, environ)
    found = refusal.value.problems
    assert [(problem.line, problem.property) for problem in found] == [
        (None, "redis"),
        (2, "pending"),
        (3, "out"),
        (4, "serviceRenew"),
        (6, "popTimeout"),
        (7, "pop_timeout"),
        (8, "maxLenght"),
        (None, "MPUSH_POP_TIMEOT"),
    ]
    assert found[5] == Problem("unknown property: did you mean popTimeout?", str(file), 7, "pop_timeout")
    assert found[6].message == "unknown property: did you mean maxLength?"
    assert found[7].message == "unknown variable: did you mean MPUSH_POP_TIMEOUT?"
    assert str(refusal.value).count("\n") == len(found) - 1


def test_a_contradiction_is_reported_beside_an_error_of_another_field() -> None:
    assert [problem.partition(":")[0] for problem in problems(service_renew=57, batch=0, overflow="dead")] == [
        "batch",
        "serviceRenew",
        "overflow",
        "overflow",
    ]


def test_a_fault_of_the_environment_names_the_variable() -> None:
    (problem,) = refused(None, **ENVIRONMENT, MPUSH_POP_TIMEOUT="4")
    assert problem == 'MPUSH_POP_TIMEOUT: expected a whole number of seconds from 5 to 30, found "4"'
    (problem,) = refused(None, **{**ENVIRONMENT, "MPUSH_OUT": '["a"'})
    assert problem.startswith("MPUSH_OUT: expected a list of names")


@pytest.mark.parametrize("service", ["", "_METRICS", "_REDIS", "_REDIS_SERVICE", "_LISTEN", "_SERVICE"])
def test_what_kubernetes_adds_for_a_service_of_any_name_is_no_setting(service: str) -> None:
    address, port = "10.96.0.10", "10.96.0.10:9464"
    for name in services():
        prefix = f"{name.upper()}{service}"
        environ = {
            f"{prefix}_SERVICE_HOST": address,
            f"{prefix}_SERVICE_PORT": "9464",
            f"{prefix}_SERVICE_PORT_HTTP": "9464",
            f"{prefix}_PORT": f"tcp://{port}",
            f"{prefix}_PORT_9464_TCP": f"tcp://{port}",
            f"{prefix}_PORT_9464_TCP_PROTO": "tcp",
            f"{prefix}_PORT_9464_TCP_PORT": "9464",
            f"{prefix}_PORT_9464_TCP_ADDR": address,
        }
        settings: Any = settings_of(name)
        found = settings.names().in_environment(environ)
        assert (found.problems, found.given) == ([], {}), name


def test_a_file_that_cannot_be_read_hides_no_fault_of_the_environment(tmp_path: Path) -> None:
    found = refused(tmp_path / "none.yaml", MPUSH_POP_TIMEOUT="4")
    assert [problem.rpartition(":")[0].endswith(("cannot be read", "MPUSH_POP_TIMEOUT")) for problem in found] == [
        True
    ] * 2


def test_an_unknown_property_that_begins_as_a_known_one_is_a_hint_at_it(tmp_path: Path) -> None:
    file = tmp_path / "props.yaml"
    file.write_text("input: a\noutput: [b]\nkolour: red\n")
    problems = [line.removeprefix(f"{file}:") for line in refused(file, **ENVIRONMENT)]
    assert problems == [
        "1: input: unknown property: did you mean in?",
        "2: output: unknown property: did you mean out?",
        "3: kolour: unknown property",
    ]


def test_two_names_of_one_setting_in_a_file_contradict_each_other_by_line(tmp_path: Path) -> None:
    file = tmp_path / "props.json5"
    file.write_text("{redisNamespace: 'a',\nserviceNamespace: 'b'}")
    assert f"{file}:2: serviceNamespace: contradicts redisNamespace" in "\n".join(refused(file, **ENVIRONMENT))


def test_names_in_different_slots_are_reported_with_their_slots() -> None:
    assert different_slots(["{demo}:in", "{demo}:out", "{demo}"]) == {}
    assert different_slots(["in", "out", "é"]).keys() == {"in", "out", "é"}


def test_python_takes_python_names_only() -> None:
    assert one(popTimeout=5) == "popTimeout: unknown property: did you mean pop_timeout?"


@pytest.mark.parametrize("given", ['"in"', "'in'", ' "in" ', '\'["a", "b"]\'', '"a","b"', "a, 'b'", "'a', b"])
def test_quotes_that_an_env_file_has_kept_are_named(given: str) -> None:
    (problem,) = refused(None, **{**ENVIRONMENT, "MPUSH_OUT": given})
    assert problem == "MPUSH_OUT: it contains its quotes, as docker's --env-file hands them over: write it without them"


@pytest.mark.parametrize("variable", ["REDIS", "MPUSH_REDIS", "MPUSH_IN", "MPUSH_POP_TIMEOUT"])
def test_quotes_of_one_value_are_named_without_it(variable: str) -> None:
    given = '"redis://:hunter2@h"'
    (problem,) = refused(None, **{**ENVIRONMENT, variable: given})
    assert problem.startswith(f"{variable}: it contains its quotes")
    assert "hunter2" not in problem


def test_quotes_within_a_value_belong_to_it() -> None:
    environ = {**ENVIRONMENT, "MPUSH_IN": "it's", "MPUSH_OUT": '["a", "b"]', "MPUSH_PENDING": 'say "it"s'}
    settings = Settings.load(None, environ)
    assert (settings.in_, settings.out, settings.pending) == ("it's", ["a", "b"], 'say "it"s')


@pytest.mark.parametrize(("word", "found"), [("no", "false"), ("on", "true"), ("7", "7"), ("1.5", "1.5")])
@pytest.mark.parametrize("place", ["in: {}", "out: [a, {}]"])
def test_a_name_that_yaml_reads_as_another_value_is_to_be_quoted(
    word: str, found: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "mpush.yaml").write_text(place.format(word))
    (problem,) = (line for line in refused(tmp_path / "mpush.yaml") if ", found" in line)
    assert f", found {found}" in problem
    assert problem.endswith(": YAML reads some words and numbers as other values: write it in quotes")


@pytest.mark.parametrize("number", ["0123", "12:30", "-010", "1:30.5", "00"])
@pytest.mark.parametrize("place", ["in: {}", "popTimeout: {}", "out: [a, {}]"])
def test_a_number_that_yaml_reads_as_another_one_is_refused(number: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "mpush.yaml").write_text("redis: redis://h\n" + place.format(number))
    (problem,) = refused(tmp_path / "mpush.yaml", **ENVIRONMENT)
    words = "YAML reads a number with a colon, or with 0 before it, as another one: write it in quotes"
    assert problem == f"{tmp_path}/mpush.yaml:2: {words}"


@pytest.mark.parametrize("number", ["0", "10", "0.5", "0x1F", "'0123'", "-1", "1e1"])
def test_other_numbers_of_yaml_are_read(number: str, tmp_path: Path) -> None:
    (tmp_path / "mpush.yaml").write_text(f"popTimeout: {number}")
    assert not [line for line in refused(tmp_path / "mpush.yaml") if "YAML" in line]


def test_a_port_is_that_on_which_to_listen() -> None:
    """It looked more like `sharePort`, which is no number."""
    known = ("shareHost", "sharePort", "listenHost", "listenPort", "popTimeout", "in")
    found = [nearest(name, known) for name in ("port", "Host", "share_port", "pop_timeout", "input", "xyz")]
    assert found == ["listenPort", "listenHost", "sharePort", "popTimeout", "in", None]
