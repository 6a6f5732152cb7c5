"""No error of the settings contains a password."""

import io
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.settings.cli import parse
from common.settings.props import READERS
from penstock.base.urls import server_url
from penstock.core.connection import mask_password
from services.hqueue.settings import Settings as QueueSettings
from services.mpush.settings import Settings
from tests.unit.writers import FORMATS, as_javascript

quick: Final = settings(deadline=None, max_examples=40)
PASSWORD: Final = "s3cr3t"
PLAIN: Final = {"redis": f"redis://user:{PASSWORD}@h:6379/1", "in": "a", "pending": "b", "out": ["c"]}


@quick
@given(before=st.text("ab:/@?#%[ =", max_size=3), after=st.text("ab:/@?#%[ =", max_size=3))
@example(before="", after="")
def test_neither_an_accepted_url_nor_a_refused_one_shows_its_password(before: str, after: str) -> None:
    for url in (f"redis://user:{before}{PASSWORD}{after}@h/1", f"unix:///s?password={before}{PASSWORD}{after}"):
        assert PASSWORD not in answer_to(url)


def test_a_secret_that_may_be_missing_is_not_shown() -> None:
    environ = {"HQUEUE_REDIS": "redis://h", "HQUEUE_REDIS_NAMESPACE": "work"}
    assert QueueSettings.load(None, environ).shown()["webhookSecret"] is None
    settings = QueueSettings.load(None, environ | {"HQUEUE_WEBHOOK_SECRET": PASSWORD * 2})
    assert settings.shown()["webhookSecret"] == "***"
    assert PASSWORD not in f"{settings!r} {settings} {settings.shown()}"
    assert QueueSettings.secret_variables() == {"webhookSecret": "HQUEUE_WEBHOOK_SECRET"}


@pytest.mark.parametrize("suffix", READERS)
@quick
@given(data=st.data())
def test_no_password_is_shown_whatever_is_wrong_with_the_file(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    text = FORMATS.get(suffix, as_javascript)(PLAIN)
    place = data.draw(st.integers(0, len(text)))
    gone = data.draw(st.integers(0, 3))
    put = data.draw(st.text("{}[]\"'`:,=#*&!/\\ \nx", max_size=3))
    file = tmp_path_factory.getbasetemp() / f"broken{suffix}"
    file.write_text(text[:place] + put + text[place + gone :])
    assert PASSWORD not in said_of(file, {})


@quick
@given(
    name=st.sampled_from(["REDIS", "MPUSH_IN", "MPUSH_OUT", "MPUSH_BATCH", "MPUSH_OVERFLOW", "MPUSH_X"]),
    add=st.text("[\"',: x"),
)
def test_no_password_of_the_environment_is_shown(name: str, add: str) -> None:
    assert PASSWORD not in said_of(None, {name: add + str(PLAIN["redis"])})
    assert PASSWORD not in said_of(None, {"REDIS": str(PLAIN["redis"]), name: str(PLAIN["redis"]) + add})


def answer_to(url: str) -> str:
    try:
        return mask_password(server_url(url))
    except ValueError as error:
        return str(error)


def said_of(file: Path | None, environ: dict[str, str]) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), suppress(SystemExit):
        parse(Settings, ["--check", *([str(file)] if file else [])], environ)
    return output.getvalue()
