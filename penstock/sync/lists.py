"""``penstock.lists``, blocking. The types that editors and type checkers see are in lists.pyi."""

from penstock.sync.blocking_lists import *  # noqa: F403
