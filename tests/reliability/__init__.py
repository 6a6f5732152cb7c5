"""Reliability suite: one set of guarantees, tested with every queue service."""

import pytest

pytest.register_assert_rewrite("tests.reliability.accounts", "tests.reliability.fleet")
