"""Distribution of the tests among the workers of pytest-xdist."""

from typing import Final

from xdist.scheduler import LoadScopeScheduling

OWN_SESSIONS: Final = {f"tests/spark/test_{name}.py" for name in ("cluster", "composition", "pipeline_process")}
"""Modules that start processes with Spark sessions of their own."""


class SparkInTwoWorkers(LoadScopeScheduling):  # type: ignore[misc]
    """Run the tests that share a Spark session in one worker, and those with sessions of their own in another.

    The mark ``xdist_group`` would do the same, but pytest-xdist 3.8 ignores it with pytest 9.2
    (https://github.com/pytest-dev/pytest-xdist/issues/1386): each worker had a session of its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of the unit of work that a test belongs to; tests of one unit run in one worker."""
        file = nodeid.partition("::")[0]
        if not file.startswith("tests/spark/"):
            return nodeid
        return "own sessions" if file in OWN_SESSIONS else "one session"
