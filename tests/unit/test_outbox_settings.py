"""Settings of outbox, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from services.outbox.settings import Settings
from tests.support.commandline import penstock
from tests.support.given import problems_of

LEAST: dict[str, Any] = {
    "redis": "redis://here",
    "redis_namespace": "site",
    "datadir": "site",
    "in_": "in",
    "pending": "pending",
    "publish": "rain",
    "out": "out",
}
TLS = {"certificate": "a", "key": "b", "authority": "c"}
SECRET = "sixteen bytes or more"
NO_LISTS: dict[str, Any] = {"in_": ..., "pending": ..., "publish": ..., "out": ...}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"redis_namespace": ...}, "missing: the lists in and out need it"),
    ({"redis": ...}, "missing: the lists in and out need a server"),
    ({**NO_LISTS, "socket": "s", "redis": ...}, "needs redis: leave both out to run without a server"),
    ({"socket": "x" * 104}, "expected at most 103 bytes"),
    ({"datadir": ...}, "datadir: missing"),
    (NO_LISTS, "expected in, out, or both; or socket"),
    ({"pending": ...}, "in and pending are needed both, or neither"),
    ({"in_": ..., "publish": ...}, "in and pending are needed both, or neither"),
    ({"in_": ..., "pending": ...}, "has no effect without in"),
    ({"publish": ...}, "expected either publish, the key of all messages, or publishField"),
    ({"publish_field": "meta.topic"}, "expected either publish, the key of all messages, or publishField"),
    ({"out": ..., "subscribe": ["rain@here:1"]}, "needs out, the list for what comes, or socket"),
    ({"out": "in"}, "its messages would go round for ever"),
    ({"bind": "here"}, "expected host:port"),
    ({"bind": "127.0.0.1:65536"}, "expected host:port"),
    ({"advertise": "here:port"}, "expected host:port"),
    ({"subscribe": ["rain"]}, "expected KEY@HOST:PORT"),
    ({"subscribe": ["@here:1"]}, "expected KEY@HOST:PORT"),
    ({"subscribe": ["rain@here"]}, "expected host:port"),
    ({"allowed": ["rain"]}, "expected KEY@PEER"),
    ({"secret": "fifteen letters"}, "expected at least 16 bytes"),
    ({"certificate": "a", "key": "b"}, "certificate, key and authority are needed together"),
    ({"bind": "10.0.0.1:7700"}, "others on the network reach this address: set secret or certificate"),
    ({"bind": "0.0.0.0:7700", "secret": SECRET}, "expected the address at which other sites reach this one"),
    ({"ordered": False}, "false is not possible"),
    ({"service_expire": 30, "service_renew": 29}, "serviceRenew (29 s)"),
]


def made(**more: Any) -> Settings:
    given = {**LEAST, **more}
    return Settings(**{name: value for name, value in given.items() if value is not ...})


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_what_cannot_work_is_refused(more: dict[str, Any], words: str) -> None:
    (problem,) = problems_of(Settings, {**LEAST, **more})
    assert words in problem


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"out": ...},
        {"in_": ..., "pending": ..., "publish": ...},
        {"publish": ..., "publish_field": "meta.topic"},
        {"bind": "10.0.0.1:7700", "secret": SECRET},
        {"bind": "10.0.0.1:7700", "insecure": True},
        {"bind": "[::1]:7700"},
        {"bind": "localhost:0"},
        {"bind": "0.0.0.0:7700", "advertise": "oak:7700", **TLS},
    ],
)
def test_what_can_work_is_accepted(more: dict[str, Any]) -> None:
    assert made(**more).redis_namespace == "site"


def test_keys_may_have_an_at_sign() -> None:
    found = made(subscribe=["rain@oak:1", "a@b@oak:1", "snow@elm:2"], allowed=["*@oak:1", "a@b@*"])
    assert found.subscriptions == {"oak:1": ["rain", "a@b"], "elm:2": ["snow"]}
    assert found.grants == {"oak:1": ["*"], "*": ["a@b"]}
    assert made().grants == {"*": ["*"]}


def test_the_secret_is_not_shown() -> None:
    settings = made(secret=SECRET)
    assert settings.shown()["secret"] == "***"
    assert SECRET not in repr(settings)


def test_a_site_without_lists_needs_no_server() -> None:
    alone = made(**NO_LISTS, redis=..., redis_namespace=..., socket="s", subscribe=["rain@oak:1"])
    assert (alone.has_server, alone.redis, alone.rights()) == (False, "", {})
    assert made(**NO_LISTS, socket="s").has_server, "it registers where its namespace is"


async def test_a_site_without_a_server_can_be_checked_and_drawn(tmp_path: Path) -> None:
    props = tmp_path / "outbox.yaml"
    props.write_text(f"datadir: {tmp_path}/data\nsocket: {tmp_path}/socket\n")
    checked = await penstock("lint", str(props))
    assert (checked.status, checked.error) == (0, "")
    (tmp_path / "Procfile").write_text(f"outbox: exec python -m services.outbox --props {props}\n")
    for command in ("lint", "map", "acl"):
        shown = await penstock(command, f"{tmp_path}/")
        assert (command, shown.status, shown.error) == (command, 0, "")


@pytest.mark.parametrize(("lines", "drawn"), [("in: a\npending: b\npublish: k\n", "a"), ("out: c\n", "c")])
async def test_a_site_of_one_direction_can_be_checked_and_drawn(tmp_path: Path, lines: str, drawn: str) -> None:
    props = tmp_path / "outbox.yaml"
    props.write_text(f"redis: redis://localhost:6379/0\nredisNamespace: site\ndatadir: {tmp_path}/data\n{lines}")
    checked = await penstock("lint", str(props))
    assert (checked.status, checked.error) == (0, "")
    (tmp_path / "Procfile").write_text(f"outbox: exec python -m services.outbox --props {props}\n")
    shown = await penstock("map", f"{tmp_path}/")
    assert (shown.status, "outbox" in shown.text, drawn in shown.text) == (0, True, True)
    rights = await penstock("acl", str(props))
    assert "ACL SETUSER outbox reset on >PASSWORD" in rights.text
    assert "~site:*" in rights.text
