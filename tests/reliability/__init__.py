"""The reliability suite: one set of promises, tested with every queue service."""

import pytest

pytest.register_assert_rewrite("tests.reliability.accounts", "tests.reliability.fleet")
