"""``penstock.bus``, blocking. The types that editors and type checkers see are in bus.pyi."""

from penstock.sync.blocking_bus import *  # noqa: F403
