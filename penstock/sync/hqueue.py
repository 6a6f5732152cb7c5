"""``penstock.hqueue``, blocking. The types that editors and type checkers see are in hqueue.pyi."""

from penstock.sync.blocking_hqueue import *  # noqa: F403
