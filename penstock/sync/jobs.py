"""``penstock.jobs``, blocking. The types that editors and type checkers see are in jobs.pyi."""

from penstock.sync.blocking_jobs import *  # noqa: F403
