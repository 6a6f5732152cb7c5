"""Import this first in a service: see ``penstock.signals``."""

import penstock.signals  # noqa: F401
