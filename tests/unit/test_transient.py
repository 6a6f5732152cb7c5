"""Which errors are temporary, and which end a service."""

import pytest
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, ResponseError

from penstock.base.errors import Unsuitable
from penstock.core.transient import passes


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (ResponseError("upstream not ready"), True, True),
        (ResponseError("proxy: no healthy backend"), True, True),
        (InvalidResponse('Protocol error, got "H" as reply type byte'), True, True),
        (AuthenticationError("Authentication required."), False, True),
        (AuthenticationError("invalid username-password pair or user is disabled."), False, True),
        (NoPermissionError("this user has no permissions to run the 'eval' command"), False, False),
        (ResponseError("The user executing the script can't run this command or subcommand"), False, False),
        (ResponseError("unknown command 'BLMOVE', with args beginning with: "), False, False),
        (ResponseError("wrong number of arguments for 'blmove' command"), False, False),
        (ResponseError("Error running script (call to f_1): @user_script:3: oops"), False, False),
        (ResponseError("user_script:3: attempt to index a nil value script: 1, on @user_script:3."), False, False),
        (ResponseError("SELECT is not allowed in cluster mode"), False, False),
        (ResponseError("DB index is out of range"), False, False),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True, True),
        (ResponseError("value is not an integer or out of range"), False, False),
        (Unsuitable("the server is Redis 5.0"), False, False),
    ],
    ids=str,
)
def test_temporary_errors(error: Exception, before: bool, after: bool) -> None:
    """Check both before and after the first successful connection."""
    assert (passes(error), passes(error, was_connected=True)) == (before, after)
