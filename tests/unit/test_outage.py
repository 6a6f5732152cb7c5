"""How trouble with the server reads in the log and in penstock status."""

import pytest
import structlog
from redis.exceptions import ReadOnlyError, ResponseError
from structlog.testing import capture_logs

from common.outage import Outage, describe

SHA = "879bab6b9588a8b5e80d24bdfd32dc46cf140b2d"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            f"command not allowed when used memory > 'maxmemory'. script: {SHA}, on @user_script:11.",
            "command not allowed when used memory > 'maxmemory'.",
        ),
        (
            f"MISCONF Errors writing to the AOF file: No space left on device script: {SHA}, on @user_script:1.",
            "MISCONF Errors writing to the AOF file: No space left on device",
        ),
        ("LOADING Redis is loading the dataset in memory", "LOADING Redis is loading the dataset in memory"),
        ("", "ResponseError"),
    ],
)
def test_where_in_a_script_the_server_refused_is_left_out(words: str, expected: str) -> None:
    assert describe(ResponseError(words)) == expected


def test_a_server_that_becomes_a_replica_is_one_reason() -> None:
    """It ends a wait by one error, and refuses what follows by another."""
    with capture_logs() as lines:
        outage = Outage(structlog.get_logger())
        outage.begins(ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"))
        outage.begins(ReadOnlyError("You can't write against a read only replica."))
    assert [line["event"] for line in lines] == ["waiting"]
