"""What every queue service promises whatever happens to it: one suite, run against each of them."""

import pytest

pytest.register_assert_rewrite("tests.reliability.accounts", "tests.reliability.fleet")
