"""How trouble with the server reads in the log and in penstock status."""

import pytest
from redis.exceptions import ResponseError

from common.outage import describe

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
