"""Settings of himporter that can never match, or that name nothing."""

from typing import Any, Final

import pytest

from penstock.base.errors import SettingsError
from services.himporter.settings import Settings

NAMES: Final[dict[str, Any]] = {"redis": "redis://h", "redis_namespace": "web", "out": "in"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"accept": ["reports/*"]}, r"expected a pattern of paths such as /reports/\*, found 'reports/\*'"),
        ({"cache": ["days 60"]}, "expected a pattern of paths and seconds"),
        ({"status_path": "status"}, "expected a path such as /_requests"),
        ({"trusted_proxies": ["nginx"]}, "expected an address or a network"),
        ({"listen_port": 80_800}, "expected a port from 0 to 65535, found 80800"),
    ],
)
def test_what_cannot_work_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings(**{**NAMES, **more})


@pytest.mark.parametrize("accept", ["/reports/*", "*.pdf", "?", "[/]x"])
def test_a_pattern_that_may_match_a_path_is_accepted(accept: str) -> None:
    assert Settings(**NAMES, accept=[accept]).accept == [accept]
